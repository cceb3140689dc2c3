// Words (or characters) of one step, by certainty: lightness and the weight of the underline say the same, so that it reads in grey.

import { css, viridis } from "./colour.js";
import { h, percent } from "./dom.js";
import { closeList, openList } from "./menu.js";

/** A token's text: tokenizers show the end of a line as two characters. */
export const plain = (text) => ({ "\\n": "\n", "\\t": "\t" })[text] ?? text;

/** What stands for a token on the screen; the marks of the tokenizer are not words. */
export function face(token) {
  if (token.id === null || token.text === null) return { text: "", kind: "masked" };
  const text = plain(token.text);
  if (text === "" || /^[<[].*[>\]]$/.test(text)) return { text: "·", kind: "mark" };
  return { text, kind: "word" };
}

/** The last place that is not a mark, plus one; what is hidden counts as what it is likely to be. */
export function lengthOf(tokens) {
  const likely = (t) => (t.id === null ? { id: 0, text: t.rivals?.[0]?.[2] ?? "" } : t);
  return tokens.findLastIndex((t) => face(likely(t)).kind !== "mark") + 1;
}

export class Words {
  /** `spaced`: words with blanks between them, else characters; `point(place)`: under the pointer; `open(place, element)`: clicked. */
  constructor({ spaced, point, open, label }) {
    Object.assign(this, { spaced, point, open });
    this.nodes = [];
    this.root = h("div", { class: spaced ? "words" : "words characters", role: "group", "aria-label": label });
    const place = (e) => this.nodes.indexOf(e.target.closest(".word"));
    for (const kind of ["pointerover", "focusin"]) this.root.addEventListener(kind, (e) => place(e) >= 0 && this.point(place(e)));
    this.root.addEventListener("click", (e) => place(e) >= 0 && this.open(place(e), this.nodes[place(e)]));
  }

  show(tokens) {
    while (this.nodes.length > tokens.length) this.nodes.pop().remove();
    while (this.nodes.length < tokens.length) {
      // A button never breaks over lines, which characters must.
      const node = this.spaced ? h("button", { type: "button", "aria-haspopup": "menu" }) : h("span");
      this.nodes.push(node);
      this.root.append(node);
    }
    const end = lengthOf(tokens);
    tokens.forEach((token, i) => this.paint(this.nodes[i], token, i > end));
    // Room that was needed once stays, so that what is below does not jump.
    const tall = this.root.offsetHeight;
    if (this.spaced && tall > (this.tall ?? 0)) this.root.style.setProperty("min-height", `${(this.tall = tall)}px`);
  }

  paint(node, token, beyond) {
    const { text, kind } = face(token);
    const shown = this.spaced ? text.trim() : text;
    const name = text === "\n" ? "new line" : text === " " ? "blank" : text;
    if (node.textContent !== shown) node.textContent = shown;
    node.className = `word ${kind}${token.fixed ? " fixed" : ""}${beyond ? " beyond" : ""}${text === "\n" ? " newline" : ""}`;
    node.style.setProperty("--p", (token.p ?? 0).toFixed(3));
    node.style.setProperty("--hue", css(viridis(token.p ?? 0)));
    if (this.spaced) node.setAttribute("aria-label", kind === "masked" ? "still hidden" : `${name}, ${token.fixed ? "pinned" : percent(token.p)}`);
  }
}

/** The rivals of one token, as a list with bars. */
export class Rivals {
  constructor(empty) {
    this.empty = empty;
    this.title = h("h3", {});
    this.list = h("ol", {});
    this.root = h("div", { class: "rivals", "aria-live": "off" }, this.title, this.list);
    this.show(null);
  }

  show(token, where = "") {
    this.root.classList.toggle("idle", !token);
    if (!token) {
      this.title.textContent = this.empty;
      return this.list.replaceChildren();
    }
    const { text, kind } = face(token);
    this.title.textContent = kind === "masked" ? `Hidden so far${where}` : `“${visible(text)}”${where}${token.fixed ? ", pinned" : ""}`;
    const items = (token.rivals ?? []).slice(0, 5).map(([, p, word]) => {
      const bar = h("span", { class: "meter" });
      bar.style.setProperty("--p", p.toFixed(3));
      bar.style.setProperty("--hue", css(viridis(p)));
      return h("li", {}, h("span", { class: "name", text: visible(word ?? "") }), bar, h("span", { class: "p", text: percent(p) }));
    });
    this.list.replaceChildren(...items);
  }
}

/** Blanks and marks that can be seen. */
export function visible(text) {
  return { " ": "␣", "\n": "↵", "": "end", "<eos>": "end", "<pad>": "nothing" }[plain(text)] ?? text.trim();
}

/** The menu of a word: keep it, take a rival, one of its kin or any other, free it. `pin(word)`, `free()`. */
export function openWord(button, token, { pin, free, pinned, kin = [] }) {
  const { text } = face(token);
  const item = (name, action, detail) => h("button", { type: "button", role: "menuitem", onclick: action }, h("span", { text: name }), detail && h("span", { class: "p", text: detail }));
  const rivals = (token.rivals ?? []).filter(([, p, word]) => p >= 0.005 && word !== token.text && face({ id: 0, text: word }).kind === "word").slice(0, 5);
  const others = kin.filter((word) => word !== text && !rivals.some((r) => r[2] === word));
  const own = h("input", { type: "text", "aria-label": "Any other word", placeholder: "any other word", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { onsubmit: (e) => {
    e.preventDefault();
    if (!own.value) return;
    closeList();
    pin(own.value);
  } }, own, h("button", { type: "submit", text: "Pin" }));
  openList(button, `What to do with ${text}`, [
    face(token).kind === "word" && !pinned && item(`Pin “${visible(text)}”`, () => pin(token.text)),
    pinned && item("Free it", free),
    h("p", { class: "part", text: "Change it to" }),
    ...rivals.map(([, p, word]) => item(visible(word), () => pin(word), percent(p))),
    ...others.map((word) => item(word, () => pin(word))),
    form,
  ].filter(Boolean));
}
