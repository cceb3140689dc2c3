// Method: one token, its noise and what Bayes' rule makes of it, at any time; the equations beside it.

import { css, series, viridis } from "./colour.js";
import { h, percent, s } from "./dom.js";
import { equations } from "./equations.js";
import { menu } from "./menu.js";
import { SCHEDULES, T, alphaBars, noisy, normals, posterior, survival } from "./process.js";
import { savePng, saveSvg } from "./save.js";
import { number } from "./state.js";

const WORDS = ["cat", "dog", "bird", "fish", "bear", "cow", "hen", "frog", "deer", "fox"];
const K = WORDS.length;
const TIGHT = 560; // width below which numbers have no room for their sign

export class Method {
  constructor(root, app) {
    Object.assign(this, { name: "method", root, app, token: 3, t: 400, seed: 7, schedule: "cosine" });
    this.bars = Object.fromEntries(SCHEDULES.map((name) => [name, alphaBars(name, K)]));
    this.build();
  }

  build() {
    this.slider = h("input", { type: "range", min: 0, max: T, step: 1, "aria-label": "Time t, from the clean token to pure noise", oninput: () => this.set({ t: Number(this.slider.value) }) });
    this.word = h("select", { "aria-label": "Token", onchange: () => this.set({ token: this.word.selectedIndex }) }, ...WORDS.map((text) => h("option", { text })));
    this.which = h("select", { "aria-label": "Schedule", onchange: () => this.set({ schedule: this.which.value }) }, ...SCHEDULES.map((text) => h("option", { text, value: text })));
    this.plots = ["one-hot", "noisy", "posterior", "schedule"].map((kind) => s("svg", { class: "bars", role: "img", "data-kind": kind }));
    this.readout = h("p", { class: "readout", role: "status", "aria-live": "off" });
    const figure = (title, text, svg) => h("figure", { class: "plot" }, h("figcaption", {}, h("strong", { text: title }), h("span", { text })), svg);
    const [hot, noise, bayes, schedule] = this.plots;
    const save = menu("Save", "Save a picture", () => [["One-hot", hot], ["Noisy vector", noise], ["Posterior", bayes], ["Schedules", schedule]].flatMap(([name, svg]) => [
      [`${name}, SVG`, () => saveSvg(svg, name.toLowerCase().replace(" ", "-"))], [`${name}, PNG`, () => savePng(svg, name.toLowerCase().replace(" ", "-"))],
    ]));
    const controls = h("div", { class: "method-controls" },
      h("label", { class: "setting" }, h("span", { class: "name", text: "Token" }), this.word),
      h("label", { class: "setting" }, h("span", { class: "name", text: "Schedule" }), this.which),
      h("button", { type: "button", text: "Other noise", onclick: () => this.set({ seed: Math.floor(Math.random() * 10000) }) }), save,
    );
    this.root.append(
      h("div", { class: "intro" }, h("h2", { text: "A word, a little noise, and Bayes" }),
        h("p", { text: "A token is a vector with a single one. Noise drowns it. A network looks at the noisy vector and says, for each word, how likely it is to be the one underneath. For a single word without a picture Bayes’ rule gives the exact answer: pull the slider and watch it." })),
      h("div", { class: "columns method" },
        h("div", { class: "process" }, controls,
          h("div", { class: "card slide" }, h("div", { class: "ends" }, h("span", { text: "clean, t = 0" }), this.readout, h("span", { text: `noise, t = ${T}` })), this.slider),
          h("div", { class: "card stack" },
            figure("The token", "one-hot", hot), figure("What is seen at t", "√ᾱ · one-hot + √(1 − ᾱ) · noise", noise), figure("What that says", "posterior of each word", bayes)),
          h("div", { class: "card" }, figure("Schedules", "signal left (ᾱ) over time", schedule))),
        h("div", { class: "equations" }, ...equations())),
    );
    new ResizeObserver(() => this.draw()).observe(hot);
  }

  open(params) {
    this.t = number(params.t, 0, T, this.t);
    this.seed = number(params.seed, 0, 4294967295, this.seed);
    this.token = number(params.token, 0, K - 1, this.token);
    if (SCHEDULES.includes(params.schedule)) this.schedule = params.schedule;
    this.draw();
  }

  get params() {
    return { t: this.t, token: this.token, schedule: this.schedule, seed: this.seed };
  }

  set(values) {
    Object.assign(this, values);
    this.draw();
    this.app.changed(this);
  }

  /** Arrows move the time. */
  move(by) {
    this.set({ t: Math.min(T, Math.max(0, this.t + 20 * by)) });
  }

  draw() {
    const width = this.plots[0].clientWidth;
    if (!width) return;
    const bar = this.bars[this.schedule][this.t];
    const y = noisy(this.token, normals(K, this.seed), bar);
    const p = posterior(y, bar);
    this.slider.value = this.t;
    this.word.selectedIndex = this.token;
    this.which.value = this.schedule;
    const kept = survival(Math.sqrt(bar / Math.max(1 - bar, 1e-9)), K);
    this.readout.textContent = `t = ${this.t} · ᾱ = ${bar.toFixed(3)} · still the largest ${percent(kept)} of the time`;
    this.slider.setAttribute("aria-valuetext", this.readout.textContent);
    this.slider.style.setProperty("--done", `${(this.t / T) * 100}%`);
    const hot = WORDS.map((_, k) => (k === this.token ? 1 : 0));
    columns(this.plots[0], hot, { width, low: 0, high: 1, height: 74, token: this.token, tell: "The token" });
    columns(this.plots[1], y, { width, low: -2.6, high: 2.6, height: 130, token: this.token, tell: "Noisy vector" });
    columns(this.plots[2], p, { width, low: 0, high: 1, height: 130, token: this.token, tell: "Posterior", scale: true, numbers: true });
    this.drawSchedules(width);
  }

  drawSchedules(width) {
    const svg = this.plots[3];
    const across = width < 420 ? 2 : SCHEDULES.length; // names in a row
    const below = 18 * (SCHEDULES.length / across);
    const [height, left] = [152 + below, 30];
    const x = (t) => left + (t / T) * (width - left - 8);
    const y = (v) => 10 + (1 - v) * (height - 18 - below);
    const axis = [0, 0.5, 1].flatMap((v) => [s("line", { class: "grid", x1: left, x2: width - 8, y1: y(v), y2: y(v) }), s("text", { class: "tick", x: left - 8, y: y(v), "text-anchor": "end", "dominant-baseline": "central", text: String(v) })]);
    const lines = SCHEDULES.map((name, i) => {
      const d = this.bars[name].filter((_, t) => t % 10 === 0).map((v, i) => `${x(i * 10).toFixed(1)} ${y(v).toFixed(1)}`).join("L");
      return s("path", { class: `line ${series(i)}${name === this.schedule ? " chosen" : ""}`, d: `M${d}` });
    });
    const names = SCHEDULES.map((name, i) => {
      const [nx, ny] = [left + (i % across) * ((width - left) / across), height - below + 10 + 18 * Math.floor(i / across)];
      return s("g", { class: series(i) }, s("line", { class: "line", x1: nx, x2: nx + 18, y1: ny, y2: ny }), s("text", { class: "tick", x: nx + 24, y: ny, "dominant-baseline": "central", text: name }));
    });
    const at = s("circle", { class: "dot here", cx: x(this.t), cy: y(this.bars[this.schedule][this.t]), r: 5 });
    frame(svg, width, height, [...axis, ...lines, ...names, at], `Share of signal over time; ${this.schedule}, ${this.bars[this.schedule][this.t].toFixed(3)} at ${this.t}`);
  }
}

function frame(svg, width, height, children, label) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(...children);
}

/** A bar for each word; of a posterior in the colours of its values, with the numbers on top. */
function columns(svg, values, { width, low, high, height, token, tell, scale = false, numbers = false }) {
  const [top, bottom] = [numbers ? 18 : 6, 20];
  const step = width / values.length;
  const y = (v) => top + (1 - (Math.min(high, Math.max(low, v)) - low) / (high - low)) * (height - top - bottom);
  const turned = width < TIGHT;
  const children = values.flatMap((v, k) => {
    const [from, to] = [y(Math.max(v, 0)), y(Math.min(v, 0))];
    const bar = s("rect", { class: `column${k === token ? " chosen" : ""}`, x: k * step + step * 0.16, y: from, width: step * 0.68, height: Math.max(1, to - from), rx: 2, ...(scale && { fill: css(viridis(v)) }) });
    if (scale) bar.classList.add("scaled");
    const name = s("text", { class: `tick${k === token ? " first" : ""}`, x: (k + 0.5) * step, y: height - 5, "text-anchor": "middle", text: WORDS[k] });
    const value = numbers && v >= 0.005 ? s("text", { class: "tick", x: (k + 0.5) * step, y: from - 5, "text-anchor": "middle", text: turned ? String(Math.round(100 * v)) : percent(v) }) : null;
    return [bar, name, value].filter(Boolean);
  });
  const zero = s("line", { class: "grid", x1: 0, x2: width, y1: y(0), y2: y(0) });
  const said = values.map((v, k) => `${WORDS[k]} ${scale ? percent(v) : v.toFixed(2)}`).join(", ");
  frame(svg, width, height, [zero, ...children], `${tell}: ${said}`);
}
