// Text: what you give stands still, gaps (underscores) and what follows fill step by step; then each character by its bits.

import { json } from "./api.js";
import { debounce, h, short } from "./dom.js";
import { title } from "./draw.js";
import { legend } from "./heatmap.js";
import { LiveTab } from "./livetab.js";
import { Strip } from "./strip.js";
import { Rivals, Words } from "./words.js";

const START = "ROMEO:\nWhat ______ through yonder ______ breaks?\n";
const IDEAS = [
  ["Balcony", START],
  ["A missing name", "______:\nO Romeo, Romeo! wherefore art thou Romeo?\n"],
  ["Only a beginning", "KING HENRY:\nOnce more"],
  ["Every other word", "To ____ or not to ____, that is the ________."],
];

export class Text extends LiveTab {
  constructor(root, app) {
    super("text", "text", root, app);
    this.path = "/v1/generate";
    this.pace = 20;
    this.pointed = null;
    this.typed = debounce(() => this.begin(), 250);
    this.build();
  }

  build() {
    this.area = h("textarea", { class: "paper", rows: 7, spellcheck: "false", "aria-describedby": "text-help", oninput: () => {
      this.app.changed(this);
      this.typed();
    } });
    this.area.value = START;
    const idea = ([name, text]) => h("button", { type: "button", class: "idea", text: name, onclick: () => this.use(text) });
    this.unfit = h("p", { class: "hint-line" });
    const input = h("div", { class: "input" },
      h("label", { class: "field" }, "Your text", this.area),
      h("p", { id: "text-help", class: "hint-line" }, "Each underscore ", h("code", { text: "_" }), " is one character to fill. Without any, the model goes on from your text."),
      this.unfit,
      h("h3", { text: "To start from" }),
      h("div", { class: "row wrap" }, ...IDEAS.map(idea)),
    );
    this.cards = [0, 1].map((r) => this.card(r));
    this.rivals = new Rivals("Point at a character to see what else it could have been");
    this.strip = new Strip((i, token) => this.pointBits(i, token));
    this.bits = h("p", { class: "bits", role: "status" });
    this.score = h("article", { class: "card score" }, h("header", {}, h("h3", { text: "Surprise, bit by bit" }), this.bits), this.strip.root, legend("0 bits: expected", "8 bits: a surprise", "What each character costs the model, given the others as it uncovers them."));
    this.root.append(
      h("h2", { class: "hidden", text: "Text" }),
      h("div", { class: "columns" }, input, h("div", { class: "thinks" }, this.problem,
        h("div", { class: "pair wide" }, ...this.cards.map((c) => c.root)), h("div", { class: "under" }, this.rivals.root), this.score)),
    );
  }

  card(r) {
    const method = h("h3", {});
    const sure = h("p", { class: "sure" });
    const words = new Words({ spaced: false, label: "The text, character by character", open: () => {}, point: (place) => {
      this.pointed = { r, place };
      this.showRivals();
    } });
    return { root: h("article", { class: "card", "data-run": r }, h("header", {}, method, sure), words.root), method, sure, words };
  }

  get input() {
    return { text: this.area.value === START ? null : this.area.value };
  }

  open(params) {
    this.restore(params);
    if (params.text !== undefined) this.area.value = params.text;
    this.begin();
  }

  use(text) {
    this.area.value = text;
    this.app.changed(this);
    this.begin();
  }

  ask(model) {
    const text = this.area.value;
    const room = model.tokens;
    this.unfit.textContent = text.length > room ? `The model writes ${room} characters at a time; this has ${text.length}.` : "";
    if (text.length > room) return null;
    if (!text) return {};
    return text.includes("_") ? { infill: text } : { prompt: text };
  }

  /** A score of the text before is of no use any more. */
  restarted() {
    this.scoring?.abort();
  }

  began() {
    const models = [this.model, this.twin];
    this.cards.forEach((card, r) => {
      card.root.hidden = !models[r];
      card.method.textContent = title(models[r]);
    });
    this.root.querySelector(".pair").classList.toggle("alone", !this.twin);
  }

  stepped() {}

  show(k) {
    this.runs.forEach((run, r) => {
      const step = run.at(k);
      if (!step) return;
      this.cards[r].words.show(step.tokens);
      const free = step.tokens.filter((t) => !t.fixed);
      const sure = free.filter((t) => t.id !== null && t.p > 0.5).length;
      this.cards[r].sure.textContent = free.length ? `${sure} of ${free.length} more likely than not` : "";
    });
    this.showRivals();
  }

  showRivals() {
    const token = this.pointed && this.runs[this.pointed.r]?.at(this.position)?.tokens[this.pointed.place];
    this.rivals.show(token ?? null, token ? ` at step ${this.position}` : "");
  }

  finished(r, run) {
    if (r) return;
    this.app.say(`${this.model.name} wrote: ${run.done.text}`);
    this.loadBits(run.done.text);
  }

  /** What each character costs, by the model's bound. */
  async loadBits(text) {
    const abort = (this.scoring = new AbortController());
    this.bits.textContent = "being counted …";
    try {
      const score = await json("/v1/score", { method: "POST", body: { model: this.model.name, text, draws: 8 }, signal: abort.signal });
      this.strip.show(score.tokens);
      this.bits.textContent = `${short(score.bits_per_token)} bits for each character, at most`;
    } catch (e) {
      if (e.name !== "AbortError") this.bits.textContent = e.message;
    }
  }

  pointBits(i, token) {
    if (!token) return;
    this.rivals.show({ id: token.id, text: token.text, rivals: [] }, `: ${short(token.bits)} bits, the ${i + 1}. character`);
  }

  pictures() {
    return [{ name: "bits", title: "Bits of each character", svg: this.strip.svg }];
  }
}
