// Lines over steps, drawn by hand: one picture for each number that runs have in common.

import { series } from "./colour.js";
import { h, s, short } from "./dom.js";

const [LEFT, BOTTOM, TOP, HEIGHT] = [52, 24, 10, 190];

/** Round numbers between two ends, about `count` of them. */
export function roundTicks(low, high, count = 4) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((v) => v >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Largest and smallest, with some room; one value gets a range of its own. */
export function reach(values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** At most `most` points of a line, evenly taken; the last stays. */
export function thin(points, most = 600) {
  if (points.length <= most) return points;
  const every = points.length / most;
  return [...Array.from({ length: most - 1 }, (_, i) => points[Math.floor(i * every)]), points.at(-1)];
}

export class Chart {
  constructor(title) {
    this.title = title;
    this.lines = []; // {name, points: [[x, y]]}
    this.svg = s("svg", { class: "chart", role: "img", "aria-label": title });
    this.value = h("span", { class: "now" });
    this.root = h("figure", { class: "plot" }, h("figcaption", {}, h("span", { text: title }), this.value), this.svg);
    new ResizeObserver(() => this.root.clientWidth !== this.width && this.draw()).observe(this.root);
  }

  show(lines) {
    this.lines = lines;
    this.draw();
  }

  draw() {
    const width = (this.width = this.root.clientWidth);
    if (!width) return;
    const points = this.lines.flatMap((l) => l.points);
    const [x0, x1] = reachOfSteps(points);
    const [y0, y1] = reach(points.map((p) => p[1]));
    const x = (v) => LEFT + ((v - x0) / (x1 - x0)) * (width - LEFT - 8);
    const y = (v) => TOP + (1 - (v - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
    const grid = roundTicks(y0, y1).flatMap((v) => [
      s("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(v), y2: y(v) }),
      s("text", { class: "tick", x: LEFT - 8, y: y(v), "text-anchor": "end", "dominant-baseline": "central", text: short(v) }),
    ]);
    const below = roundTicks(x0, x1, Math.max(2, Math.floor(width / 110))).map((v) =>
      s("text", { class: "tick", x: x(v), y: HEIGHT - 6, "text-anchor": v === x0 ? "start" : x(v) > width - 30 ? "end" : "middle", text: short(v) }),
    );
    const lines = this.lines.map((line, i) => {
      const d = thin(line.points).map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L");
      const last = line.points.at(-1);
      return s("g", { class: series(i) }, s("path", { class: "line", d: d ? `M${d}` : "" }), last && s("circle", { class: "dot", cx: x(last[0]), cy: y(last[1]), r: 3 }));
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.replaceChildren(...grid, ...below, ...lines);
    this.value.textContent = this.lines.length === 1 && points.length ? short(points.at(-1)[1]) : "";
    this.svg.setAttribute("aria-label", `${this.title}: ${this.lines.map((l) => `${l.name} ${short(l.points.at(-1)?.[1])}`).join(", ")}`);
  }
}

function reachOfSteps(points) {
  const xs = points.map((p) => p[0]);
  return xs.length ? [0, Math.max(1, ...xs)] : [0, 1];
}

/** The numbers of metrics' rows as lines over steps: {"loss": [[step, value], …], …}. */
export function curves(rows) {
  const found = {};
  const skip = new Set(["step", "epoch", "skipped", "best", "examples", "time", "images", "seconds", "eta", "waited"]);
  for (const row of rows) {
    if (!Number.isFinite(row.step)) continue;
    for (const [key, value] of Object.entries(row)) {
      if (skip.has(key) || typeof value !== "number" || !Number.isFinite(value)) continue;
      (found[key] ??= []).push([row.step, value]);
    }
  }
  return found;
}
