// Characters on a grid, each on the colour of its bits; an SVG, so that it can be saved.

import { css, ink, viridis } from "./colour.js";
import { h, s, short } from "./dom.js";
import { plain, visible } from "./words.js";

const [WIDE, HIGH] = [13, 24];
export const MOST_BITS = 8;

/** Lines of tokens: broken after a line's end and where there is no more room. */
export function lines(tokens, columns) {
  const all = [[]];
  let used = 0;
  for (const token of tokens) {
    const width = Math.max(1, token.text?.length ?? 1);
    if (used + width > columns && used) {
      all.push([]);
      used = 0;
    }
    all.at(-1).push({ token, at: used, width });
    used += width;
    if (token.text === "\n") {
      all.push([]);
      used = 0;
    }
  }
  return all.filter((line) => line.length);
}

export class Strip {
  constructor(point) {
    this.point = point;
    this.tokens = [];
    this.svg = s("svg", { class: "strip", role: "img", "aria-label": "Bits of each character" });
    this.table = h("details", { class: "table", ontoggle: () => this.fillTable() }, h("summary", { text: "As a table" }), h("div", { class: "scroll" }));
    this.root = h("div", { class: "heatmap" }, this.svg, this.table);
    this.svg.addEventListener("pointerover", (e) => {
      const i = Number(e.target.dataset?.i);
      if (Number.isInteger(i)) this.point(i, this.tokens[i]);
    });
    new ResizeObserver(() => this.root.clientWidth !== this.width && this.draw()).observe(this.root);
  }

  show(tokens) {
    this.tokens = tokens.map((t) => ({ ...t, text: plain(t.text ?? "") }));
    this.draw();
    this.fillTable();
  }

  draw() {
    this.width = this.root.clientWidth;
    const columns = Math.max(8, Math.floor(this.width / WIDE));
    const rows = lines(this.tokens, columns);
    let i = 0;
    const cells = rows.flatMap((line, y) => line.map(({ token, at, width }) => {
      const rgb = viridis((token.bits ?? 0) / MOST_BITS);
      const place = { "data-i": i++ };
      const text = token.text === " " ? "" : visible(token.text ?? "");
      return s("g", {},
        s("rect", { ...place, x: at * WIDE, y: y * HIGH, width: width * WIDE - 1, height: HIGH - 2, rx: 2, fill: css(rgb) }),
        s("text", { ...place, class: "character", x: at * WIDE + (width * WIDE - 1) / 2, y: y * HIGH + HIGH / 2 - 1, "text-anchor": "middle", "dominant-baseline": "central", fill: ink(rgb), text }),
      );
    }));
    const [width, height] = [columns * WIDE, Math.max(1, rows.length) * HIGH];
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(...cells);
  }

  fillTable() {
    if (!this.table.open) return;
    const rows = this.tokens.map((t, i) => h("tr", {}, h("th", { scope: "row", text: `${i + 1}` }), h("td", { text: visible(t.text ?? "") }), h("td", { text: short(t.bits) })));
    const head = h("thead", {}, h("tr", {}, ...["place", "token", "bits"].map((text) => h("th", { scope: "col", text }))));
    this.table.lastElementChild.replaceChildren(h("table", {}, head, h("tbody", {}, ...rows)));
  }
}
