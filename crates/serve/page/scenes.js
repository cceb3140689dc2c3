// Scenes: shapes or a picture, and the sentence about them that settles step by step. A word can be pinned or changed at any step; the
// rest goes on from there.

import { bitmap, request } from "./api.js";
import { Board } from "./board.js";
import { h, note, s, throttle } from "./dom.js";
import { title } from "./draw.js";
import { fileInput, readPicture } from "./files.js";
import { HeatMap, legend } from "./heatmap.js";
import { LiveRun } from "./live.js";
import { LiveTab } from "./livetab.js";
import { COLORS, INKS, MOST, SHAPES, SIZES, added, kin, outline, packScene, randomScene, unpackScene, unusual } from "./scene.js";
import { cover } from "./sketch.js";
import { Rivals, Words, face, lengthOf, openWord } from "./words.js";

const START = "lrc9,10;sbs22,24"; // on a diagonal: something to think about
const EXAMPLES = 6;
const RESUMABLE = ["argmax", "multinomial"];

export class Scenes extends LiveTab {
  constructor(root, app) {
    super("scenes", "caption", root, app);
    this.path = "/v1/caption";
    this.pace = 45;
    this.pins = new Map(); // place → word
    this.picture = null; // a file in place of the shapes
    this.pointed = null; // {run, place} under the pointer
    this.preview = throttle(() => this.loadSeen(), 60);
    this.build();
    this.board.set(unpackScene(START));
    this.board.choose(0);
  }

  build() {
    this.board = new Board({ changed: () => this.arranged(), selected: () => this.choices() });
    this.photo = h("canvas", { class: "photo", width: 320, height: 320, hidden: true, role: "img", "aria-label": "The picture that is described" });
    this.seen = h("canvas", { class: "seen", width: 32, height: 32, role: "img", "aria-label": "The picture that the model sees" });
    this.odd = h("span", { class: "odd" });
    this.tools = h("div", { class: "shape-tools", role: "group", "aria-label": "The chosen shape" });
    this.examples = h("div", { class: "examples pictures", role: "group", "aria-label": "Pictures to start from" });
    this.add = h("button", { type: "button", text: "Add a shape", onclick: () => this.addShape() });
    this.back = h("button", { type: "button", text: "Back to shapes", hidden: true, onclick: () => this.usePicture(null) });
    const stage = h("div", { class: "board scene-board" }, this.board.svg, this.photo);
    const surprise = h("button", { type: "button", text: "Surprise me", onclick: () => this.place(randomScene()) });
    const input = h("div", { class: "input" },
      h("div", { class: "stage" }, stage, h("div", { class: "sees" }, this.seen, h("p", {}, h("strong", { text: "What the model sees" }), this.odd))), this.tools,
      h("div", { class: "row" }, this.add, surprise, fileInput(stage, (file) => this.take(file), "Picture …"), this.back),
      h("div", { class: "head" }, h("h3", { text: "Or a scene it never saw" })),
      this.examples,
    );
    this.cards = [0, 1].map((r) => this.card(r));
    this.rivals = new Rivals("Point at a word to see its rivals; click to pin or change it");
    this.freed = h("button", { type: "button", class: "quiet", hidden: true, text: "Free all pins", onclick: () => this.freeAll() });
    this.pairs = h("div", { class: "pair" }, ...this.cards.map((c) => c.maps));
    this.root.append(
      h("h2", { class: "hidden", text: "Scenes" }),
      h("div", { class: "columns" }, input, h("div", { class: "thinks" }, this.problem,
        h("div", { class: "sentences" }, ...this.cards.map((c) => c.root)),
        h("div", { class: "under" }, this.rivals.root, h("div", { class: "aside" }, h("p", { text: "Stop at a step, click a word and make it another: the rest goes on from there." }), this.freed)), this.pairs, legend("0 %", "100 % sure", "Each row is a place in the sentence: how sure the model is of the word that it has there, step by step."))),
    );
  }

  card(r) {
    const method = h("h3", {});
    const point = (place) => {
      this.pointed = { r, place };
      this.showRivals();
    };
    const words = new Words({ spaced: true, label: "The sentence, word by word", point, open: (place, node) => this.openWord(r, place, node) });
    const map = new HeatMap({ title: "How sure the model is of each word at each step", label: 76, compete: false, pick: (k) => this.seek(k) });
    const mapTitle = h("h3", {});
    return { root: h("article", { class: "sentence", "data-run": r }, method, words.root), method, words, map, mapTitle, maps: h("article", { class: "card" }, h("header", {}, mapTitle), map.root) };
  }

  get input() {
    const pins = Object.fromEntries(this.pins);
    return { scene: this.picture ? null : packScene(this.board.objects), pin: this.pins.size ? JSON.stringify(pins) : null };
  }

  open(params) {
    this.restore(params);
    const objects = unpackScene(params.scene);
    if (objects) this.board.set(objects);
    this.pins = readPins(params.pin);
    this.choices();
    this.loadExamples();
    this.preview();
    this.begin();
  }

  modelChanged() {
    this.pins.clear();
    this.loadExamples();
  }

  /** Shapes were moved, added or changed. */
  arranged() {
    this.picture = null;
    this.choices();
    this.preview();
    this.restart();
    this.app.changed(this);
  }

  place(objects) {
    this.usePicture(null, false);
    this.pins.clear();
    this.board.set(objects);
    this.board.choose(0);
    this.arranged();
  }

  addShape() {
    if (this.board.objects.length >= MOST) return note("The model knows scenes of up to three shapes.");
    const objects = [...this.board.objects, added(this.board.objects)];
    this.pins.clear();
    this.board.set(objects);
    this.board.choose(objects.length - 1);
    this.arranged();
  }

  change(key, value) {
    const i = this.board.chosen;
    this.board.set(this.board.objects.map((o, k) => (k === i ? { ...o, [key]: value } : o)));
    this.arranged();
  }

  /** Buttons of the chosen shape. */
  choices() {
    const { objects, chosen } = this.board;
    const object = objects[chosen];
    this.add.disabled = objects.length >= MOST;
    this.odd.textContent = unusual(objects) ?? "32×32 pixels, drawn by the program as its training data were.";
    this.tools.classList.toggle("none", !object);
    if (!object) return;
    const icon = (shape, ink, r) => s("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, s("path", { d: outline(shape, r), fill: ink }));
    const button = (key, value, face) => h("button", { type: "button", class: "choice", "aria-pressed": String(object[key] === value), "aria-label": value, title: value, "data-value": value, onclick: () => this.change(key, value) }, face);
    const groups = [
      SHAPES.map((v) => button("shape", v, icon(v, "currentColor", 5.5))),
      COLORS.map((v) => button("color", v, icon("circle", INKS[v], 5.5))),
      SIZES.map((v) => button("size", v, icon("circle", "currentColor", v === "large" ? 5.5 : 3.2))),
      [h("button", { type: "button", class: "choice", "aria-label": "Take this shape away", title: "Take it away (Delete)", disabled: objects.length < 2, onclick: () => this.board.remove(chosen) }, s("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, s("path", { class: "stroke", d: "M-4 -4L4 4M4 -4L-4 4" })))],
    ];
    const focus = document.activeElement?.dataset?.value;
    this.tools.replaceChildren(...groups.map((g) => h("div", { class: "group" }, ...g)));
    if (focus) this.tools.querySelector(`[data-value="${focus}"]`)?.focus();
  }

  async loadSeen() {
    const c = this.seen.getContext("2d");
    if (this.picture) return cover(c, this.picture.bitmap, 32);
    try {
      c.drawImage(await bitmap(`/v1/scene.png?objects=${encodeURIComponent(JSON.stringify(this.board.objects))}`), 0, 0, 32, 32);
    } catch {
      c.clearRect(0, 0, 32, 32);
    }
  }

  async loadExamples() {
    const model = this.model?.name;
    const { side, channels } = this.model?.image ?? {};
    this.examples.previousElementSibling.classList.toggle("none", side !== 32 || channels !== 3);
    if (side !== 32 || channels !== 3) this.examples.replaceChildren(); // only the embedded scenes have some
    if (!model || side !== 32 || channels !== 3 || this.examplesOf === model) return;
    this.examplesOf = model;
    const blobs = await Promise.allSettled(Array.from({ length: EXAMPLES }, async (_, i) => (await request(`/v1/examples/${encodeURIComponent(model)}?index=${i}`)).blob()));
    const buttons = await Promise.all(blobs.filter((b) => b.status === "fulfilled").map(async ({ value }, i) => {
      const canvas = h("canvas", { width: 32, height: 32 });
      cover(canvas.getContext("2d"), await createImageBitmap(value), 32);
      return h("button", { type: "button", class: "example", "aria-label": `Picture ${i + 1}`, onclick: () => this.take(value) }, canvas);
    }));
    this.examples.replaceChildren(...buttons);
  }

  async take(file) {
    const picture = await readPicture(file);
    if (picture) this.usePicture(picture);
  }

  usePicture(picture, ask = true) {
    this.picture = picture;
    this.photo.hidden = this.back.hidden = !picture;
    this.tools.classList.toggle("none", Boolean(picture));
    this.pins.clear();
    if (picture) cover(this.photo.getContext("2d"), picture.bitmap, 320);
    if (ask) {
      this.preview();
      this.choices();
      this.restart();
      this.app.changed(this);
    }
  }

  ask() {
    const what = this.picture ? { image: this.picture.base64 } : { scene: { objects: this.board.objects } };
    return { ...what, ...(this.pins.size && { pin: Object.fromEntries(this.pins) }) };
  }

  began() {
    const models = [this.model, this.twin];
    this.cards.forEach((card, r) => {
      card.root.hidden = card.maps.hidden = !models[r];
      card.method.textContent = title(models[r]);
      card.mapTitle.textContent = `${models[r]?.method === "mdd" ? "MDD" : "TDD"}, word by step`;
      card.drawn = 0;
    });
    this.pairs.classList.toggle("alone", !this.twin);
    this.freed.hidden = !this.pins.size;
    this.runs.forEach((run, r) => run.steps.length && this.stepped(r, run));
  }

  stepped(r, run) {
    const { map } = this.cards[r];
    // As many rows as the longest sentence on the way, and one for its end.
    const count = Math.max(...run.steps.filter(Boolean).map(({ tokens }) => Math.min(tokens.length, lengthOf(tokens) + 1)));
    if (!run.total || !(count > 0)) return;
    if (map.steps !== run.total || map.rows.length !== count) {
      map.reset(new Array(count).fill(""), run.total);
      this.cards[r].drawn = 0;
    } else if (this.cards[r].drawn === 0) map.reset(map.rows, run.total);
    while (this.cards[r].drawn < run.steps.length) {
      const i = this.cards[r].drawn++;
      const values = run.steps[i]?.tokens.slice(0, count).map((t) => (t.id === null ? t.rivals?.[0]?.[1] ?? 0 : t.p));
      if (values) map.column(i, values);
    }
  }

  show(k) {
    this.runs.forEach((run, r) => {
      const step = run.at(k);
      if (!step) return;
      const { words, map } = this.cards[r];
      words.show(step.tokens);
      map.relabel(step.tokens.slice(0, map.rows.length).map((t) => (face(t).kind === "masked" ? "…" : face(t).kind === "mark" ? "end" : face(t).text.trim())));
      map.show(step.step);
    });
    this.showRivals();
  }

  showRivals() {
    const token = this.pointed && this.runs[this.pointed.r]?.at(this.position)?.tokens[this.pointed.place];
    this.rivals.show(token ?? null, token ? ` at step ${this.position}` : "");
  }

  openWord(r, place, node) {
    const token = this.runs[r]?.at(this.position)?.tokens[place];
    if (!token) return;
    openWord(node, token, { kin: kin(token.text?.trim() ?? ""), pinned: this.pins.has(String(place)), pin: (word) => this.pin(place, word.trim()), free: () => this.pin(place, null) });
  }

  /** Fixes a word (or frees it) from the shown step on. */
  async pin(place, word) {
    if (word === null) this.pins.delete(String(place));
    else this.pins.set(String(place), word);
    this.freed.hidden = !this.pins.size;
    const alive = this.runs.some((run) => !run.over) && this.following;
    if (alive && (await Promise.all(this.runs.map((run) => run.pin({ [place]: word })))).every(Boolean)) return this.app.changed(this);
    this.resume(this.position);
  }

  freeAll() {
    this.pins.clear();
    this.begin();
  }

  /** Goes on from step k with the pins as they are now; from the start where there is nothing left to do. */
  resume(k) {
    const models = [this.model, this.twin].filter(Boolean);
    const possible = k > 0 && this.runs.every((run, r) => k < run.total && run.steps[k - 1] && RESUMABLE.includes(models[r].sample?.sampler ?? "argmax"));
    if (!possible) return this.begin();
    const runs = models.map((model, r) => {
      const { path, body } = this.request(model);
      const step = this.runs[r].steps[k - 1];
      const tokens = step.tokens.map((t) => t.id ?? model.vocab);
      // Words that are settled stay so, but for those that the pins change.
      const committed = step.tokens.map((t) => t.committed && !t.fixed);
      const before = this.runs[r].steps.slice(0, k);
      return new LiveRun(path, { ...body, resume: { step: k, tokens, committed } }, { before, changed: (run) => this.moved(run) });
    });
    this.stop();
    this.follow(runs);
    this.position = k;
  }

  /** A run that cannot go on from where it was starts anew with the pins. */
  complain(error) {
    if (error.status === 422 && this.runs.some((run) => run.body.resume)) this.begin();
    else super.complain(error);
  }

  finished(r, run) {
    if (!r) this.app.say(`${this.model.name} says: ${run.done.text}`);
  }

  pictures() {
    const maps = this.cards.filter((_, r) => this.runs[r]).map((c, r) => ({ name: `words-${r ? "mdd" : "tdd"}`, title: c.mapTitle.textContent, svg: c.map.svg }));
    return this.picture ? maps : [...maps, { name: "scene", title: "Scene", svg: this.board.svg }];
  }
}

/** Pins of an address: {"3":"blue"}. */
function readPins(text) {
  try {
    return new Map(Object.entries(JSON.parse(text ?? "{}")).filter(([k, v]) => /^\d+$/.test(k) && typeof v === "string"));
  } catch {
    return new Map();
  }
}
