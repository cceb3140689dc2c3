// A square to draw on with mouse, finger or pen. It keeps strokes in the unit square, or shows levels that came from elsewhere.

import { fromStrokes } from "./digits.js";
import { h } from "./dom.js";

const PEN = 0.085; // of the square's side

export class Sketch {
  constructor(changed) {
    this.changed = changed;
    this.strokes = [];
    this.levels = null; // of an example, a file or an address
    this.picture = null; // of a file that is sent as it is
    this.canvas = h("canvas", { class: "sketch", role: "img", "aria-label": "Draw a digit here with the mouse, a finger or a pen; examples to choose from follow" });
    this.canvas.addEventListener("pointerdown", (e) => this.down(e));
    this.canvas.addEventListener("pointermove", (e) => this.move(e));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => (this.pen = null));
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  get empty() {
    return !this.strokes.length && !this.levels && !this.picture;
  }

  /** The 64 levels that a model of digits sees. */
  get digit() {
    return this.strokes.length ? fromStrokes(this.strokes) : this.levels;
  }

  at(e) {
    const box = this.canvas.getBoundingClientRect();
    return [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height];
  }

  down(e) {
    if (e.button !== 0) return;
    e.preventDefault();
    this.canvas.setPointerCapture(e.pointerId);
    if (!this.strokes.length) this.levels = this.picture = null;
    this.pen = e.pointerId;
    this.strokes.push([this.at(e)]);
    this.draw();
  }

  move(e) {
    if (this.pen !== e.pointerId) return;
    const all = e.getCoalescedEvents?.() ?? [];
    this.strokes.at(-1).push(...(all.length ? all : [e]).map((x) => this.at(x)));
    this.draw();
  }

  draw() {
    this.paint();
    this.changed();
  }

  clear() {
    this.show({});
  }

  undo() {
    if (this.strokes.length) this.strokes.pop();
    else this.levels = this.picture = null;
    this.draw();
  }

  /** Levels or a picture in place of strokes. */
  show({ levels = null, picture = null }) {
    Object.assign(this, { strokes: [], levels, picture });
    this.draw();
  }

  paint() {
    const { canvas } = this;
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (!side) return;
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const c = canvas.getContext("2d");
    c.clearRect(0, 0, side, side);
    if (this.picture) return cover(c, this.picture, side);
    const style = getComputedStyle(canvas);
    c.strokeStyle = c.fillStyle = style.color;
    if (this.levels) return this.paintLevels(c, side);
    c.lineWidth = PEN * side;
    c.lineCap = c.lineJoin = "round";
    for (const stroke of this.strokes) {
      c.beginPath();
      stroke.forEach(([x, y]) => c.lineTo(x * side, y * side));
      if (stroke.length === 1) c.lineTo(stroke[0][0] * side + 0.1, stroke[0][1] * side);
      c.stroke();
    }
  }

  paintLevels(c, side) {
    const cell = side / 8;
    this.levels.forEach((v, i) => {
      c.globalAlpha = v / 16;
      const [x, y] = [i % 8, Math.floor(i / 8)];
      const [left, top] = [Math.round(x * cell), Math.round(y * cell)]; // whole pixels: no seams
      c.fillRect(left, top, Math.round((x + 1) * cell) - left, Math.round((y + 1) * cell) - top);
    });
    c.globalAlpha = 1;
  }
}

/** Fills a square with the middle of a picture. */
export function cover(c, picture, side) {
  const part = Math.min(picture.width, picture.height);
  c.drawImage(picture, (picture.width - part) / 2, (picture.height - part) / 2, part, part, 0, 0, side, side);
}

/** 64 levels as an 8×8 picture: light ink on black, as the data are. */
export function digitCanvas(levels, canvas = document.createElement("canvas")) {
  canvas.width = canvas.height = 8;
  const c = canvas.getContext("2d");
  const pixels = c.createImageData(8, 8);
  levels.forEach((v, i) => pixels.data.set([...new Array(3).fill(Math.floor((v * 255) / 16)), 255], 4 * i));
  c.putImageData(pixels, 0, 0);
  return canvas;
}
