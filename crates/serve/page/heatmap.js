// A picture of rows by steps that grows one column at a time, with a bar for each row at the step that is shown, and a table behind it.

import { css, viridis } from "./colour.js";
import { h, percent, s } from "./dom.js";

const BARS = 136; // room for the bars and their numbers
const WIDEST = 56; // a cell
const AXIS = 22;

export class HeatMap {
  /**
   * `title`: for readers of the screen; `label`: room for the rows' labels in pixels; `pick`: called with the step that was clicked;
   * `compete`: whether one row is the winner.
   */
  constructor({ title, label = 26, pick = () => {}, compete = true }) {
    Object.assign(this, { title, label, pick, compete });
    this.rows = [];
    this.steps = 0;
    this.columns = [];
    this.shown = 0;
    this.svg = s("svg", { class: "heat", role: "img", "aria-label": title });
    this.table = h("details", { class: "table", ontoggle: () => this.fillTable() }, h("summary", { text: "As a table" }), h("div", { class: "scroll" }));
    this.root = h("div", { class: "heatmap" }, this.svg, this.table);
    this.svg.addEventListener("click", (e) => this.clicked(e));
    new ResizeObserver(() => this.root.clientWidth !== this.width && this.layout()).observe(this.root);
  }

  /** Begins anew; the same rows and steps keep their cells, so that nothing flickers. */
  reset(rows, steps) {
    this.columns = [];
    if (rows.join("\u0000") === this.rows.join("\u0000") && steps === this.steps) {
      for (const cell of this.cells?.flat() ?? []) cell.setAttribute("class", "cell empty");
      return;
    }
    this.rows = rows;
    this.steps = steps;
    this.layout();
  }

  /** New labels of the same rows. */
  relabel(rows) {
    this.rows = rows;
    this.labels?.forEach((node, i) => (node.textContent = rows[i] ?? ""));
  }

  layout() {
    this.width = this.root.clientWidth;
    const { rows, steps, width, svg } = this;
    svg.replaceChildren();
    if (!width || !rows.length || !steps) return;
    const bars = width < 300 ? 84 : BARS;
    const rowHeight = rows.length > 24 ? 13 : rows.length > 12 ? 20 : 29;
    const height = rows.length * rowHeight;
    const cellWidth = Math.min(WIDEST, (width - this.label - bars) / steps);
    const barsAt = this.label + steps * cellWidth + 10; // few steps leave more room for the bars
    Object.assign(this, { rowHeight, cellWidth, barsAt, barsWide: width - barsAt - 50 });
    svg.setAttribute("viewBox", `0 0 ${width} ${height + AXIS}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height + AXIS);
    const gap = cellWidth > 6 ? 1 : 0;
    const middle = (r) => r * rowHeight + rowHeight / 2;
    this.labels = rows.map((text, r) => s("text", { class: "label", x: this.label - 8, y: middle(r), "text-anchor": "end", "dominant-baseline": "central", text }));
    this.cells = Array.from({ length: steps }, (_, i) =>
      rows.map((_, r) =>
        s("rect", { class: "cell empty", x: this.label + i * cellWidth, y: r * rowHeight, width: Math.max(cellWidth - gap, 0.5), height: rowHeight - 1, rx: gap ? 2 : 0 }),
      ),
    );
    this.bars = rows.map((_, r) => s("rect", { class: "bar", x: this.barsAt, y: r * rowHeight + 4, width: 0, height: Math.max(rowHeight - 9, 4), rx: 2 }));
    this.numbers = rows.map((_, r) => s("text", { class: "value", x: this.barsAt, y: middle(r), "dominant-baseline": "central" }));
    this.marker = s("rect", { class: "marker", y: -1, width: Math.max(cellWidth - gap, 1) + 2, height: height + 1, rx: 3 });
    const ticks = this.ticks().map((k) =>
      s("text", { class: "tick", x: this.label + (k - 0.5) * cellWidth, y: height + 15, "text-anchor": "middle", text: String(k) }),
    );
    const unit = s("text", { class: "tick", x: this.label - 8, y: height + 15, "text-anchor": "end", text: this.label >= 36 ? "step" : "" });
    svg.append(...this.labels, ...this.cells.flat(), ...this.bars, ...this.numbers, this.marker, ...ticks, unit);
    this.columns.forEach((values, i) => values && this.paint(i, values));
    this.show(this.shown);
  }

  /** First, last, and round numbers that have room. */
  ticks() {
    const every = [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * this.cellWidth >= 34) ?? this.steps;
    const inner = Array.from({ length: this.steps }, (_, i) => i + 1).filter((k) => k % every === 0);
    return [1, ...inner.filter((k) => k !== 1 && (k - 1) * this.cellWidth > 28)];
  }

  /** What step `i + 1` says of each row. */
  column(i, values) {
    this.columns[i] = values;
    this.paint(i, values);
  }

  paint(i, values) {
    this.cells?.[i]?.forEach((cell, r) => {
      const known = Number.isFinite(values[r]);
      cell.setAttribute("class", known ? "cell" : "cell empty");
      if (known) cell.setAttribute("fill", css(viridis(values[r])));
    });
  }

  /** Marks a step; the bars are those of it, later ones step back. */
  show(k) {
    this.shown = k;
    if (!this.cells || !this.marker) return;
    this.cells.forEach((column, i) => column.forEach((cell) => cell.classList.toggle("later", k > 0 && i >= k)));
    this.marker.setAttribute("x", this.label + (k - 1) * this.cellWidth - 1);
    this.marker.classList.toggle("none", k < 1 || k > this.steps);
    const values = this.columns[k - 1];
    const top = values && this.compete ? Math.max(...values.filter(Number.isFinite)) : NaN;
    this.bars.forEach((bar, r) => {
      const p = values?.[r];
      const wide = Number.isFinite(p) ? Math.max(p * this.barsWide, p > 0.001 ? 1.5 : 0) : 0;
      bar.setAttribute("width", wide);
      bar.setAttribute("fill", css(viridis(p ?? 0)));
      this.numbers[r].setAttribute("x", this.barsAt + wide + 6);
      this.numbers[r].textContent = p >= 0.005 ? percent(p) : "";
      this.numbers[r].classList.toggle("first", p === top);
      this.labels[r].classList.toggle("first", p === top);
    });
    if (this.table.open) this.fillTable();
  }

  clicked(e) {
    const x = ((e.clientX - this.svg.getBoundingClientRect().left) * this.width) / this.svg.clientWidth - this.label;
    const k = Math.floor(x / this.cellWidth) + 1;
    if (k >= 1 && k <= this.columns.length) this.pick(k);
  }

  fillTable() {
    if (!this.table.open) return;
    const head = h("tr", {}, h("th", { scope: "col", text: "step" }), ...this.rows.map((r) => h("th", { scope: "col", text: r })));
    const body = this.columns.map((values, i) =>
      h("tr", { class: i + 1 === this.shown ? "now" : "" }, h("th", { scope: "row", text: String(i + 1) }), ...values.map((p) => h("td", { text: percent(p) }))),
    );
    const table = h("table", {}, h("caption", { class: "hidden", text: this.title }), h("thead", {}, head), h("tbody", {}, ...body));
    this.table.lastElementChild.replaceChildren(table);
  }
}

/** A swatch of the scale with its ends named, after a line that says how to read the picture. */
export function legend(low, high, text = "") {
  const steps = Array.from({ length: 24 }, (_, i) => s("rect", { x: i * 5, width: 5.5, height: 10, fill: css(viridis(i / 23)) }));
  const strip = s("svg", { class: "legend", viewBox: "0 0 120 10", width: 120, height: 10, "aria-hidden": "true" }, ...steps);
  return h("div", { class: "foot" }, h("p", { text }), h("p", { class: "scale" }, h("span", { text: low }), strip, h("span", { text: high })));
}

