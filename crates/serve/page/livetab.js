// What Draw, Scenes and Text share: a model and its twin, settings, a request that starts anew when something changes, and the step
// that is shown.

import { calm, h, throttle } from "./dom.js";
import { LiveRun } from "./live.js";
import { number } from "./state.js";

const WAIT_MS = 40; // so that a slider does not start a request for each pixel

export class LiveTab {
  /** `app` offers models, changed(tab) and say(text). */
  constructor(name, task, root, app) {
    Object.assign(this, { name, task, root, app });
    this.modelName = null;
    this.chosen = {}; // settings that differ from the model's own
    this.runs = [];
    this.position = 0;
    this.following = true;
    this.pace = 0; // at least so many milliseconds for each step that is shown live
    this.restart = throttle(() => this.begin(), WAIT_MS);
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
  }

  get models() {
    return this.app.models.filter((m) => m.task === this.task);
  }

  get model() {
    return this.models.find((m) => m.name === this.modelName) ?? this.models.find((m) => m.method === "tdd") ?? this.models[0] ?? null;
  }

  get twin() {
    return this.models.find((m) => m.name === this.model?.twin) ?? null;
  }

  get guided() {
    return Boolean(this.model?.image);
  }

  get settings() {
    const own = this.model?.sample ?? {};
    return { steps: own.steps ?? 20, guidance: own.guidance ?? 1, seed: own.seed ?? 0, ...this.chosen };
  }

  /** Sets steps, guidance or seed and asks again. */
  set(key, value) {
    this.chosen[key] = value;
    this.restart();
    this.app.changed(this);
  }

  choose(name) {
    this.modelName = name;
    this.chosen = {};
    this.modelChanged?.();
    this.restart();
    this.app.changed(this);
  }

  /** What an address says of the settings. */
  restore({ model, steps, guidance, seed }) {
    this.modelName = model ?? this.modelName;
    const given = { steps: number(steps, 1, 1000, null), guidance: number(guidance, 0, 100, null), seed: number(seed, 0, 4294967295, null) };
    this.chosen = Object.fromEntries(Object.entries(given).filter(([, v]) => v !== null));
  }

  get params() {
    const first = this.models.find((m) => m.method === "tdd")?.name;
    return { model: this.modelName === first ? null : this.modelName, ...this.chosen, ...this.input };
  }

  /** The request of a model as it would be sent, or null where there is nothing to ask. */
  request(model = this.model) {
    const asked = model && this.ask(model);
    if (!asked) return null;
    const { steps, guidance, seed } = this.settings;
    // All tokens at one time, as in the paper: only so can a run go on from any of its steps.
    const unmask = model.per_token_time && { unmask: "random" };
    return { path: this.path, body: { model: model.name, ...asked, ...unmask, steps, ...(this.guided && { guidance }), seed } };
  }

  /** Stops what runs and starts the next. */
  begin() {
    this.stop();
    this.restarted?.();
    const wanted = [this.model, this.twin].map((m) => m && this.request(m)).filter(Boolean);
    this.follow(wanted.map((r) => new LiveRun(r.path, r.body, { changed: (run) => this.moved(run) })));
  }

  /** Shows these runs from now on. */
  follow(runs) {
    this.runs = runs;
    this.following = true;
    this.position = 0;
    this.problem.hidden = true;
    this.began();
    this.app.changed(this);
  }

  stop() {
    this.runs.forEach((run) => run.cancel());
  }

  /** A run got further. */
  moved(run) {
    const r = this.runs.indexOf(run);
    if (r < 0) return;
    if (run.error) this.complain(run.error);
    this.stepped(r, run);
    this.advance();
    if (run.done) this.finished?.(r, run);
  }

  /** While following, the shown step goes to the last one, not faster than the pace. */
  advance() {
    if (this.ticking) return;
    this.ticking = true;
    requestAnimationFrame((now) => {
      this.ticking = false;
      const last = Math.max(0, ...this.runs.map((run) => run.steps.length));
      if (this.following) {
        if (!this.pace || document.hidden || calm()) this.position = last;
        else if (this.position < last && now - (this.movedAt ?? 0) >= this.pace) {
          this.position += 1;
          this.movedAt = now;
        }
        if (this.position < last) this.advance();
        this.show(this.position);
      }
      this.app.changed(this);
    });
  }

  /** Shows step k; following goes on only at the end. */
  seek(k) {
    const last = Math.max(0, ...this.runs.map((run) => run.total));
    this.position = k;
    this.following = k >= last;
    this.show(k);
    this.app.changed(this);
  }

  complain(error) {
    this.problem.hidden = false;
    this.problem.textContent = error.message;
    if (error.type === "lost") this.problem.append(" ", h("button", { type: "button", text: "Try again", onclick: () => this.begin() }));
  }
}
