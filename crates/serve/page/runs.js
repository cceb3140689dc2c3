// Runs: everything in the runs folder, live while it trains; several beside each other; a run's model opens in the other tabs.

import { json, stream } from "./api.js";
import { Chart, curves } from "./chart.js";
import { series } from "./colour.js";
import { duration, h, note, short, throttle } from "./dom.js";
import { savePng, saveSvg } from "./save.js";
import { menu } from "./menu.js";

// What the numbers of metrics.jsonl are called here; the most telling first.
const NAMES = {
  loss: "Loss", top1: "Top-1 accuracy", ema_top1: "Top-1 accuracy, averaged weights", score: "Score", ema_score: "Score, averaged weights",
  exact: "Exactly right", nll: "Negative log-likelihood", lr: "Learning rate", grad_norm: "Gradient norm", images_per_second: "Images per second",
};
const FIRST = Object.keys(NAMES);
const TAB_OF = { class: "draw", caption: "scenes", text: "text" };
const MOST = 4; // runs beside each other

export class Runs {
  constructor(root, app) {
    Object.assign(this, { name: "runs", root, app });
    this.list = [];
    this.chosen = [];
    this.details = new Map(); // name → {detail, rows}
    this.charts = new Map();
    this.redraw = throttle(() => this.drawCharts(), 100);
    this.table = h("div", { class: "run-list", role: "group", "aria-label": "Runs" });
    this.empty = h("div", { class: "empty", hidden: true });
    this.detail = h("div", { class: "thinks" });
    this.root.append(h("h2", { class: "hidden", text: "Runs" }), this.empty, h("div", { class: "columns runs" }, h("div", { class: "input" }, h("p", { class: "hint-line", text: "Choose one; tick more to compare." }), this.table), this.detail));
  }

  get params() {
    return { runs: this.chosen.join(",") };
  }

  async open(params) {
    if (params.runs) this.chosen = params.runs.split(",").slice(0, MOST);
    clearInterval(this.timer);
    this.timer = setInterval(() => document.hidden || this.refresh(), 3000);
    await this.refresh();
  }

  close() {
    clearInterval(this.timer);
    for (const { abort } of this.details.values()) abort?.abort();
    this.details.clear();
    this.shown = null;
  }

  async refresh() {
    try {
      const { runs, unread = [], hint, folder } = await json("/v1/runs");
      this.list = runs;
      this.chosen = this.chosen.filter((name) => runs.some((r) => r.name === name));
      if (!this.chosen.length && runs.length) this.chosen = [newest(runs).name];
      this.drawList(unread);
      this.drawEmpty(runs.length, hint, folder);
      await this.follow();
    } catch (e) {
      if (!this.list.length) this.drawEmpty(0, null, null, e.message);
    }
  }

  drawEmpty(count, hint, folder, problem) {
    this.empty.hidden = count > 0;
    this.empty.nextElementSibling.hidden = count === 0;
    if (count || this.emptySays === (problem ?? folder)) return;
    this.emptySays = problem ?? folder;
    const command = hint ?? "tweedie train digits";
    const copy = h("button", { type: "button", text: "Copy", onclick: () => navigator.clipboard?.writeText(command).then(() => note("Copied.")) });
    this.empty.replaceChildren(...(problem ? [h("h3", { text: "The runs cannot be listed" }), h("p", { text: problem })] : [
      h("h3", { text: "No runs yet" }),
      h("p", { text: `This makes the first one, in ${folder ? `the folder “${folder}”` : "the runs folder"}. On two cores digits take a few minutes; the curves appear here while they are learned.` }),
      h("p", { class: "command" }, h("code", { text: command }), copy),
    ]));
  }

  drawList(unread) {
    const rows = this.list.map((run) => {
      const on = this.chosen.includes(run.name);
      const tick = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, onchange: () => this.tick(run.name, tick.checked) });
      tick.checked = on;
      const facts = [run.method?.toUpperCase(), run.recipe, run.seconds ? duration(run.seconds) : null].filter(Boolean).join(" · ");
      const score = run.score ? `${short(run.score.value)} ${run.score.name}` : `step ${short(run.step)}`;
      const colour = on && this.chosen.length > 1 ? h("span", { class: `swatch ${series(this.chosen.indexOf(run.name))}` }) : null;
      const button = h("button", { type: "button", class: "run", "aria-pressed": String(on), "data-run": run.name, onclick: () => this.choose([run.name]) },
        h("span", { class: "name" }, colour, run.name), h("span", { class: `status ${run.status}`, text: run.status }), h("span", { class: "facts", text: facts }), h("span", { class: "facts score", text: score }));
      return h("div", { class: `run-row${on ? " on" : ""}` }, tick, button);
    });
    const broken = unread.map(({ name, why }) => h("p", { class: "hint-line", text: `${name} cannot be read: ${why}` }));
    const focus = document.activeElement?.dataset?.run;
    this.table.replaceChildren(...rows, ...broken);
    if (focus) this.table.querySelector(`[data-run="${CSS.escape(focus)}"]`)?.focus();
  }

  tick(name, on) {
    const rest = this.chosen.filter((n) => n !== name);
    if (on && rest.length >= MOST) note(`Up to ${MOST} runs fit beside each other.`);
    this.choose(on ? [...rest, name].slice(-MOST) : rest.length ? rest : [name]);
  }

  choose(names) {
    this.chosen = names;
    this.drawList([]);
    this.follow();
    this.app.changed(this);
  }

  /** Loads what is chosen, and listens to runs that train. */
  async follow() {
    for (const [name, { abort }] of this.details) {
      if (this.chosen.includes(name)) continue;
      abort?.abort();
      this.details.delete(name);
    }
    await Promise.all(this.chosen.map((name) => this.load(name)));
    const key = this.chosen.map((n) => `${n}:${this.list.find((r) => r.name === n)?.status}:${this.details.get(n)?.checkpoints}`).join();
    if (key !== this.shown) {
      this.shown = key;
      await this.drawDetail();
    }
    this.redraw();
  }

  async load(name) {
    const run = this.list.find((r) => r.name === name);
    const known = this.details.get(name);
    const checkpoints = run?.checkpoints?.length ?? 0;
    if (known?.checkpoints === checkpoints) return;
    const entry = known ?? { rows: [], abort: new AbortController() };
    entry.checkpoints = checkpoints; // with a new one come new samples
    this.details.set(name, entry);
    try {
      entry.detail = await json(`/v1/runs/${encodeURIComponent(name)}`, { signal: entry.abort.signal });
      if (entry.rows.length < entry.detail.metrics.length) entry.rows = entry.detail.metrics;
      if (!known && run?.status === "training") this.listen(name, entry);
    } catch (e) {
      if (e.name !== "AbortError") entry.problem = e.message;
    }
  }

  /** The rows from the first on, and then as they are written. */
  async listen(name, entry) {
    const rows = [];
    try {
      for await (const { event, data } of stream(`/v1/runs/${encodeURIComponent(name)}/metrics?from=0`, { signal: entry.abort.signal })) {
        if (event === "reset") rows.length = 0; // a resumed run takes back what came after its checkpoint
        if (event !== "row") continue;
        rows.push(data);
        if (rows.length >= entry.rows.length) entry.rows = rows;
        this.redraw();
      }
    } catch (e) {
      if (e.name === "AbortError") return;
    }
    // The run ended or the connection did: the list tells which, and load() begins anew.
    setTimeout(() => this.details.get(name) === entry && (this.details.delete(name), this.refresh()), 1500);
  }

  drawCharts() {
    const found = this.chosen.map((name) => [name, curves(this.details.get(name)?.rows ?? [])]);
    const keys = [...new Set(found.flatMap(([, c]) => Object.keys(c)))].sort((a, b) => rank(a) - rank(b)).slice(0, 6);
    const box = this.detail.querySelector(".plots");
    if (!box) return;
    for (const key of this.charts.keys()) if (!keys.includes(key)) this.charts.delete(key);
    for (const key of keys) {
      if (!this.charts.has(key)) this.charts.set(key, new Chart(NAMES[key] ?? key.replaceAll("_", " ")));
      this.charts.get(key).show(found.filter(([, c]) => c[key]).map(([name, c]) => ({ name, points: c[key] })));
    }
    const roots = keys.map((key) => this.charts.get(key).root);
    if (roots.some((r, i) => box.children[i] !== r) || box.children.length !== roots.length) box.replaceChildren(...roots);
    box.classList.toggle("none", !keys.length);
  }

  async drawDetail() {
    const [name] = this.chosen;
    if (!name) return this.detail.replaceChildren();
    const run = this.list.find((r) => r.name === name);
    const { detail, problem } = this.details.get(name) ?? {};
    const several = this.chosen.length > 1;
    const differences = several ? await this.differences() : null;
    const open = TAB_OF[run?.task] && h("button", { type: "button", class: "primary", text: `Open in ${title(TAB_OF[run.task])}`, onclick: () => this.openModel(run) });
    const save = menu("Save", "Save a picture", () => [...this.charts].flatMap(([key, chart]) => [[`${key}, SVG`, () => saveSvg(chart.svg, key)], [`${key}, PNG`, () => savePng(chart.svg, key)]]));
    const keys = this.chosen.map((n, i) => h("span", { class: "key" }, h("span", { class: `swatch ${series(i)}` }), n));
    this.detail.replaceChildren(...[
      h("div", { class: "run-head" }, several ? h("p", { class: "keys-of" }, ...keys) : h("h3", { text: name }), h("div", { class: "row" }, !several && open, save)),
      problem && h("p", { class: "problem", text: problem }),
      h("div", { class: "plots" }),
      differences,
      !several && this.samples(detail),
      !several && this.checkpoints(detail),
      !several && detail?.settings && fold("Settings", h("pre", { text: detail.settings })),
      !several && detail?.card && fold("Model card", h("pre", { class: "prose", text: detail.card })),
    ].filter(Boolean));
    this.redraw();
  }

  async differences() {
    try {
      const { names, settings } = await json(`/v1/runs/compare?names=${this.chosen.map(encodeURIComponent).join(",")}`);
      if (!settings.length) return h("p", { class: "hint-line", text: "Their settings are the same." });
      const head = h("tr", {}, h("th", { scope: "col", text: "What differs" }), ...names.map((n) => h("th", { scope: "col", text: n })));
      const rows = settings.map(({ key, values }) => h("tr", {}, h("th", { scope: "row" }, h("code", { text: key })), ...values.map((v) => h("td", { text: v === null ? "–" : typeof v === "string" ? v : JSON.stringify(v) }))));
      return h("div", { class: "card scroll" }, h("table", { class: "differences" }, h("thead", {}, head), h("tbody", {}, ...rows)));
    } catch (e) {
      return h("p", { class: "problem", text: e.message });
    }
  }

  samples(detail) {
    const texts = (detail?.samples ?? []).map(({ name, text }) => text ?? name);
    if (!texts.length) return null;
    return fold("Samples", h("ul", { class: "samples" }, ...texts.slice(0, 24).map((text) => h("li", { text }))), true);
  }

  checkpoints(detail) {
    const names = detail?.checkpoints ?? [];
    return names.length ? fold(`Checkpoints (${names.length})`, h("ul", { class: "checkpoints" }, ...names.map((c) => h("li", {}, h("code", { text: c }))))) : null;
  }

  async openModel(run) {
    try {
      const name = run.model ?? (await json("/v1/models", { method: "POST", body: { run: run.name } })).name ?? run.name;
      await this.app.loadModels();
      this.app.go(TAB_OF[run.task], { model: name });
    } catch (e) {
      note(e.message, "error");
    }
  }
}

const newest = (runs) => runs.reduce((a, b) => (b.status === "training" && a.status !== "training" ? b : a));
const rank = (key) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
const title = (tab) => tab[0].toUpperCase() + tab.slice(1);

function fold(summary, content, open = false) {
  const details = h("details", { class: "fold" }, h("summary", { text: summary }), content);
  details.open = open;
  return details;
}
