// The timeline at the bottom: plays and scrubs the steps of the tab that is open, draws their entropy, and holds the settings that all
// tabs share. It knows tabs only by what LiveTab offers.

import { apiKey } from "./api.js";
import { series } from "./colour.js";
import { calm, clamp, h, note, s } from "./dom.js";
import { menu } from "./menu.js";
import { savePng, saveSvg } from "./save.js";
import { asCurl, asPython } from "./share.js";

const PLAY = "M8 5.500v13l11-6.500z";
const PAUSE = "M7 5h3.500v14H7zM13.500 5H17v14h-3.500z";
const REPLAY_MS = 70;

const icon = (d) => s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d }));

export class Dock {
  constructor(root) {
    this.root = root;
    this.tab = null;
    this.playing = 0;
    this.build();
  }

  build() {
    const button = (label, d, onclick) => h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick }, icon(d));
    this.play = button("Play", PLAY, () => this.toggle());
    this.range = h("input", { type: "range", min: 1, max: 20, step: 1, "aria-label": "Step", oninput: () => this.seek(Number(this.range.value)) });
    this.curve = s("svg", { class: "curve", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.where = h("output", { class: "where" });
    this.steps = this.slider("Steps", { min: 1, max: 100, step: 1 }, "steps");
    this.guidance = this.slider("Guidance", { min: 0, max: 8, step: 0.1 }, "guidance");
    this.seed = h("input", { type: "number", min: 0, max: 4294967295, step: 1, "aria-label": "Seed", oninput: () => this.tab?.set("seed", clamp(Math.round(Number(this.seed.value)) || 0, 0, 4294967295)) });
    const dice = h("button", { type: "button", class: "icon small", "aria-label": "Another seed", title: "Another seed", onclick: () => this.another() }, icon("M4 12a8 8 0 0 1 13.700-5.600L20 8.500M20 4v4.500h-4.500M20 12a8 8 0 0 1-13.700 5.600L4 15.500M4 20v-4.500h4.500"));
    this.time = h("span", { class: "took" });
    this.root.append(
      h("div", { class: "time" },
        h("div", { class: "buttons" },
          button("One step back", "M15 6l-6 6 6 6", () => this.move(-1)),
          this.play,
          button("One step on", "M9 6l6 6-6 6", () => this.move(1)),
        ),
        h("div", { class: "track" }, this.curve, this.range),
        this.where,
        h("button", { type: "button", class: "icon more", "aria-label": "Settings", title: "Settings", "aria-expanded": "false", onclick: (e) => e.currentTarget.setAttribute("aria-expanded", String(this.root.classList.toggle("open"))) }, icon("M4 8h10M18 8h2M4 16h2M10 16h10M16 6v4M8 14v4")),
      ),
      h("div", { class: "settings" },
        this.steps.root,
        this.guidance.root,
        h("div", { class: "setting seed" }, h("span", { class: "name", text: "Seed" }), this.seed, dice),
        this.time,
        h("div", { class: "actions" },
          menu("Copy", "Copy as …", () => [["Link to this", () => this.copy("link")], ["curl", () => this.copy("curl")], ["Python", () => this.copy("python")]]),
          menu("Save", "Save a picture", () => this.pictures()),
        ),
      ),
    );
    new ResizeObserver(() => this.refresh()).observe(this.curve);
  }

  slider(name, limits, key) {
    const value = h("output", { class: "value" });
    const input = h("input", { type: "range", ...limits, "aria-label": name, oninput: () => {
      value.textContent = this.format(key, Number(input.value));
      this.tab?.set(key, Number(input.value));
    } });
    return { root: h("label", { class: `setting ${key}` }, h("span", { class: "name", text: name }), input, value), input, value };
  }

  format(key, x) {
    return key === "guidance" ? x.toFixed(1) : String(x);
  }

  /** Shows another tab's run, or hides where a tab has none. */
  bind(tab) {
    this.stop();
    this.tab = tab;
    this.root.hidden = !tab;
    if (tab) this.refresh();
  }

  /** Everything anew from the tab; called when a step came, a setting changed, or the shown step did. */
  refresh() {
    const tab = this.tab;
    if (!tab) return;
    const { settings } = tab;
    for (const key of ["steps", "guidance"]) {
      const { input, value } = this[key];
      if (document.activeElement !== input) input.value = settings[key];
      value.textContent = this.format(key, settings[key]);
    }
    this.guidance.root.hidden = !tab.guided;
    if (document.activeElement !== this.seed) this.seed.value = settings.seed;
    const run = tab.runs[0];
    const total = run?.total || settings.steps;
    this.range.max = total;
    this.range.value = tab.position || 1;
    this.range.disabled = !run?.steps.length;
    this.play.disabled = this.range.disabled;
    this.range.style.setProperty("--done", `${((Number(this.range.value) - 1) / Math.max(total - 1, 1)) * 100}%`);
    this.describe(run, total);
    this.drawCurve(tab.runs, total);
  }

  describe(run, total) {
    const step = run?.at(this.tab.position);
    const parts = step ? [`step ${step.step} of ${total}`, `t = ${step.t}`, `signal ${Math.round(100 * step.signal)} %`] : [`${total} steps`];
    this.where.replaceChildren(...parts.map((text) => h("span", { text })));
    this.range.setAttribute("aria-valuetext", parts.join(", "));
    const ms = run?.done?.ms?.total;
    this.time.textContent = run?.waiting ?? (ms !== undefined ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : "");
  }

  /** The mean entropy of the tokens at each step, of each run: scaled to the largest. */
  drawCurve(runs, total) {
    const [width, height] = [this.curve.clientWidth || 300, this.curve.clientHeight || 26];
    this.curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const rows = runs.map((run) => run.steps.map((e) => (e ? mean(e.tokens.map((x) => x.entropy ?? 0)) : NaN)));
    const top = Math.max(0.05, ...rows.flat().filter(Number.isFinite));
    const at = (v, i) => `${((i / Math.max(total - 1, 1)) * width).toFixed(1)} ${(height - 2 - (v / top) * (height - 4)).toFixed(1)}`;
    const paths = rows.map((row, r) => s("path", { class: `line ${series(r)}`, d: row.length > 1 ? `M${row.map(at).filter((p) => !p.includes("NaN")).join("L")}` : "" }));
    this.curve.replaceChildren(...paths);
  }

  seek(k) {
    this.stop();
    this.tab?.seek(k);
  }

  move(by) {
    const run = this.tab?.runs[0];
    if (run?.steps.length) this.seek(clamp((this.tab.position || run.steps.length) + by, 1, run.steps.length));
  }

  toggle() {
    if (this.playing) return this.stop();
    const run = this.tab?.runs[0];
    if (!run?.steps.length) return;
    if (this.tab.position >= run.total) this.tab.seek(1);
    const tick = calm() ? 400 : REPLAY_MS;
    this.playing = setInterval(() => {
      if (this.tab.position >= this.tab.runs[0].total) return this.stop();
      this.tab.seek(this.tab.position + 1);
    }, tick);
    this.face(PAUSE, "Pause");
  }

  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    this.face(PLAY, "Play");
  }

  face(d, label) {
    this.play.replaceChildren(icon(d));
    this.play.setAttribute("aria-label", label);
    this.play.title = `${label} (space)`;
  }

  another() {
    const seed = Math.floor(Math.random() * 10000);
    this.seed.value = seed;
    this.tab?.set("seed", seed);
  }

  async copy(what) {
    const request = this.tab.request();
    if (!request && what !== "link") return note("There is nothing to ask yet.");
    const text = what === "link" ? location.href : (what === "curl" ? asCurl : asPython)(location.origin, request, apiKey());
    try {
      await navigator.clipboard.writeText(text);
      note("Copied.");
    } catch {
      // Plain HTTP on another machine's address has no clipboard: show it to copy by hand.
      showText(text);
    }
  }

  pictures() {
    const all = this.tab.pictures().filter(({ svg }) => svg?.childElementCount);
    const items = all.flatMap(({ name, title, svg }) => [[`${title}, SVG`, () => saveSvg(svg, name)], [`${title}, PNG`, () => savePng(svg, name)]]);
    return items.length ? items : [["Nothing to save yet", () => {}]];
  }
}

const mean = (xs) => (xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length : NaN);

function showText(text) {
  const area = h("textarea", { rows: 8, readonly: true, "aria-label": "To copy" });
  area.value = text;
  const box = h("dialog", {}, h("form", { method: "dialog" }, h("h2", { text: "Copy by hand" }), area, h("button", { class: "primary", text: "Close" })));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  area.select();
}
