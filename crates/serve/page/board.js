// Shapes that can be dragged, with the keys too; one is selected.

import { s } from "./dom.js";
import { INKS, SIDE, moved, outline, radius, spoken } from "./scene.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Board {
  /** `changed(objects)` after each move, `selected(index)` when another shape is chosen. */
  constructor({ changed, selected }) {
    Object.assign(this, { changed, selected });
    this.objects = [];
    this.chosen = -1;
    this.svg = s("svg", { class: "scene", viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": "Scene: shapes to drag; arrows move, Delete takes away" });
    this.svg.addEventListener("pointerdown", (e) => this.down(e));
    this.svg.addEventListener("pointermove", (e) => this.drag(e));
    for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => (this.held = null));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.svg.addEventListener("focusin", (e) => this.choose(this.indexOf(e.target)));
  }

  set(objects) {
    this.objects = objects;
    if (this.chosen >= objects.length) this.choose(objects.length - 1);
    this.draw();
  }

  choose(i) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.mark();
    this.selected(i);
  }

  /** Keeps the elements, so that a shape that is held or focused stays so. */
  draw() {
    while (this.svg.children.length > this.objects.length) this.svg.lastElementChild.remove();
    while (this.svg.children.length < this.objects.length) {
      this.svg.append(s("g", { class: "object", tabindex: 0, role: "button" }, s("path", { class: "halo" }), s("path", { class: "shape" })));
    }
    this.objects.forEach((o, i) => {
      const group = this.svg.children[i];
      const [halo, shape] = group.children;
      group.setAttribute("transform", `translate(${o.x} ${o.y})`);
      group.setAttribute("aria-label", spoken(o));
      halo.setAttribute("d", outline(o.shape, radius(o)));
      shape.setAttribute("d", outline(o.shape, radius(o)));
      shape.setAttribute("fill", INKS[o.color]);
    });
    this.mark();
  }

  mark() {
    [...this.svg.children].forEach((g, i) => g.classList.toggle("chosen", i === this.chosen));
  }

  indexOf(target) {
    return [...this.svg.children].indexOf(target.closest?.(".object"));
  }

  units(e) {
    const box = this.svg.getBoundingClientRect();
    return [((e.clientX - box.left) / box.width) * SIDE, ((e.clientY - box.top) / box.height) * SIDE];
  }

  down(e) {
    const i = this.indexOf(e.target);
    this.choose(i);
    if (i < 0 || e.button !== 0) return;
    e.preventDefault();
    this.svg.children[i].focus({ preventScroll: true });
    this.svg.setPointerCapture(e.pointerId);
    const [x, y] = this.units(e);
    this.held = { i, dx: this.objects[i].x - x, dy: this.objects[i].y - y };
  }

  drag(e) {
    if (!this.held) return;
    const [x, y] = this.units(e);
    this.move(this.held.i, x + this.held.dx, y + this.held.dy);
  }

  move(i, x, y) {
    const object = moved(this.objects[i], x, y);
    this.set(this.objects.map((o, k) => (k === i ? object : o)));
    this.changed(this.objects);
  }

  key(e) {
    const i = this.indexOf(e.target);
    if (i < 0) return;
    const by = ARROWS[e.key];
    if (by) this.move(i, this.objects[i].x + by[0], this.objects[i].y + by[1]);
    else if (e.key === "Delete" || e.key === "Backspace") this.remove(i);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  remove(i) {
    if (this.objects.length < 2) return;
    this.set(this.objects.filter((_, k) => k !== i));
    this.changed(this.objects);
    this.svg.children[Math.max(0, i - 1)]?.focus();
  }
}
