// Draw or drop: a digit (or any picture, for a run of your own), and the classes that fight over it step by step.

import { bitmap } from "./api.js";
import { fromGrey } from "./digits.js";
import { h, percent } from "./dom.js";
import { fileInput, grey, readPicture } from "./files.js";
import { HeatMap, legend } from "./heatmap.js";
import { LiveTab } from "./livetab.js";
import { Sketch, cover, digitCanvas } from "./sketch.js";
import { packDigits, unpackDigits } from "./state.js";

const HARD = [3, 25, 104, 41, 65, 62, 91, 76]; // of the test images, those that a small model is least sure of

export class Draw extends LiveTab {
  constructor(root, app) {
    super("draw", "class", root, app);
    this.path = "/v1/classify";
    this.page = 0; // of examples: the hard ones, then all in order
    this.build();
  }

  build() {
    this.sketch = new Sketch(() => this.drawn());
    this.hint = h("p", { class: "hint", text: "Draw a digit" });
    this.seen = h("canvas", { class: "seen", width: 8, height: 8, role: "img", "aria-label": "The 8 by 8 pixels that the model sees" });
    this.examples = h("div", { class: "examples", role: "group", "aria-label": "Examples to start from" });
    const button = (text, onclick) => h("button", { type: "button", text, onclick });
    const board = h("div", { class: "board" }, this.sketch.canvas, this.hint);
    const input = h("div", { class: "input" },
      h("div", { class: "stage" }, board, h("div", { class: "sees" }, this.seen, h("p", {}, h("strong", { text: "What the model sees" }), h("span", { class: "sees-what" })))),
      h("div", { class: "row" }, button("Clear", () => this.sketch.clear()), button("Undo", () => this.sketch.undo()), fileInput(board, (file) => this.take(file))),
      h("div", { class: "head" }, (this.which = h("h3", {})), button("Others", () => this.loadExamples(this.page + 1))),
      this.examples,
    );
    this.cards = [0, 1].map((r) => this.card(r));
    this.pairs = h("div", { class: "pair" }, ...this.cards.map((c) => c.root));
    this.root.append(
      h("h2", { class: "hidden", text: "Draw" }),
      h("div", { class: "columns" }, input, h("div", { class: "thinks" }, this.problem, this.pairs, legend("0 %", "100 %", "Each column is a step from noise to the answer, each row a class. Click a column to go there."))),
    );
  }

  card(r) {
    const method = h("h3", {});
    const answer = h("p", { class: "answer" });
    const sure = h("p", { class: "sure" });
    const map = new HeatMap({ title: "Probability of each class at each step", pick: (k) => this.seek(k) });
    const root = h("article", { class: "card", "data-run": r }, h("header", {}, h("div", {}, method, sure), answer), map.root);
    return { root, method, answer, sure, map };
  }

  get small() {
    return this.model?.image?.side === 8 && this.model?.image?.channels === 1;
  }

  get input() {
    const levels = this.small && this.sketch.digit;
    return { d: levels ? packDigits(levels) : null };
  }

  open(params) {
    this.restore(params);
    this.modelChanged();
    const levels = unpackDigits(params.d);
    if (levels) this.sketch.show({ levels });
    else if (!this.sketch.empty) this.restart();
    else this.begin();
  }

  modelChanged() {
    this.root.querySelector(".sees-what").textContent = this.small
      ? "8×8 pixels, the ink counted in blocks, as tall as the frame: as its training data were made."
      : `The middle of the picture, at ${this.model?.image?.side ?? "?"} pixels a side.`;
    this.hint.textContent = this.small ? "Draw a digit" : "Drop a picture, or draw";
    this.loadExamples(0);
  }

  /** Thumbnails of test images. */
  async loadExamples(page) {
    const model = this.model?.name;
    const none = !this.small; // only the embedded digits have some
    this.examples.classList.toggle("none", none);
    this.examples.previousElementSibling.classList.toggle("none", none);
    if (!model || none) return;
    this.page = page;
    this.which.textContent = page ? "Digits it never saw" : "Or a hard one that it never saw";
    const indices = page ? HARD.map((_, i) => (page - 1) * HARD.length + i) : HARD;
    const slots = indices.map((i) => h("button", { type: "button", class: "example", "aria-label": `Example ${i}`, disabled: true }));
    this.examples.replaceChildren(...slots);
    const load = async (slot, i) => {
      const picture = await bitmap(`/v1/examples/${encodeURIComponent(model)}?index=${indices[i]}`);
      const canvas = h("canvas", { width: picture.width, height: picture.height });
      canvas.getContext("2d").drawImage(picture, 0, 0);
      slot.replaceChildren(canvas);
      slot.disabled = false;
      slot.addEventListener("click", () => this.use(picture));
    };
    await Promise.allSettled(slots.map(load));
  }

  /** A file that was dropped, pasted or chosen. */
  async take(file) {
    const picture = await readPicture(file);
    if (picture) this.use(picture.bitmap, picture.base64);
  }

  use(picture, base64) {
    if (this.small) {
      const { values, width, height } = grey(picture);
      const levels = fromGrey(values, width, height);
      if (levels) this.sketch.show({ levels });
      else this.complain({ message: "This picture is of one shade: there is no ink to read." });
    } else {
      this.file = base64;
      this.sketch.show({ picture });
    }
  }

  drawn() {
    this.hint.hidden = !this.sketch.empty;
    if (!this.sketch.picture) this.file = null;
    this.paintSeen();
    this.restart();
  }

  paintSeen() {
    if (this.small) return void digitCanvas(this.sketch.digit ?? new Array(64).fill(0), this.seen);
    const side = this.model?.image?.side ?? 8;
    this.seen.width = this.seen.height = side;
    const source = this.sketch.picture ?? this.sketch.canvas;
    if (source.width) cover(this.seen.getContext("2d"), source, side);
  }

  ask() {
    if (this.sketch.empty) return null;
    if (this.small) return { image: digitCanvas(this.sketch.digit).toDataURL("image/png").split(",")[1] };
    return { image: this.file ?? this.seen.toDataURL("image/png").split(",")[1] };
  }

  began() {
    const models = [this.model, this.twin];
    this.cards.forEach((card, r) => {
      card.root.hidden = !models[r];
      card.method.textContent = title(models[r]);
      card.map.root.classList.toggle("blank", !this.runs[r]);
      if (!this.runs[r]) {
        card.answer.textContent = "";
        card.sure.textContent = this.model ? "waits for a drawing" : "";
      }
      // A masked classifier has nothing to iterate.
      if (models[r]) card.map.reset(models[r].classes ?? [], this.runs[r]?.start?.steps ?? (models[r].method === "mdd" ? 1 : this.settings.steps));
      card.drawn = 0;
    });
    this.pairs.classList.toggle("alone", !this.twin);
    this.pairs.classList.toggle("uneven", this.model?.method === "tdd"); // the twin looks once and needs less room
    this.show(0);
  }

  stepped(r, run) {
    const card = this.cards[r];
    if (run.total && card.map.steps !== run.total) card.map.reset(card.map.rows, run.total);
    while (card.drawn < run.steps.length) {
      const step = run.steps[card.drawn];
      if (step) card.map.column(card.drawn, step.classes ?? []);
      card.drawn += 1;
    }
  }

  show(k) {
    this.runs.forEach((run, r) => {
      const { map, answer, sure } = this.cards[r];
      const step = run.at(k);
      map.show(step ? step.step : 0);
      if (!step) return;
      const token = step.tokens[0];
      answer.textContent = token.text ?? "";
      answer.style.setProperty("--sure", Math.max(0.35, token.p).toFixed(2));
      const when = run.total === 1 ? ", at one look" : step.step < run.total ? ` at step ${step.step}` : "";
      sure.textContent = `${percent(token.p)} sure${when}`;
    });
  }

  finished(r, run) {
    if (r) return;
    const { name, p } = run.done.answer.classes[0];
    this.app.say(`${this.model.name} says ${name}, ${percent(p)} sure.`);
  }

  pictures() {
    return this.cards.filter((c, r) => this.runs[r]).map((c, r) => ({ name: `draw-${r ? "mdd" : "tdd"}`, title: c.method.textContent, svg: c.map.svg }));
  }
}

/** What a card of a model is called. */
export function title(model) {
  if (!model) return "";
  return model.method === "mdd" ? "Masked twin (MDD)" : "Tweedie (TDD)";
}
