// A button that opens a short list of things to do.

import { h } from "./dom.js";

let opened = null;

function close(focus = false) {
  if (!opened) return;
  opened.list.remove();
  opened.button.setAttribute("aria-expanded", "false");
  if (focus) opened.button.focus();
  opened = null;
}

addEventListener("pointerdown", (e) => {
  if (opened && !opened.list.contains(e.target) && !opened.button.contains(e.target)) close();
});
addEventListener("keydown", (e) => {
  if (!opened) return;
  const items = [...opened.list.querySelectorAll("button, input")];
  const move = { ArrowDown: 1, ArrowUp: -1 }[e.key];
  if (e.key === "Escape") close(true);
  else if (move) items.at((items.indexOf(document.activeElement) + move) % items.length)?.focus();
  else return;
  e.preventDefault();
  e.stopPropagation();
}, true);

/** Opens `content` (elements) beside `button`; one list at a time. Clicks on buttons within close it. */
export function openList(button, label, content) {
  const again = opened?.button === button;
  close();
  if (again) return;
  const list = h("div", { class: "list", role: "menu", "aria-label": label }, ...content);
  document.body.append(list);
  place(list, button.getBoundingClientRect());
  list.addEventListener("click", (e) => e.target.closest("button") && close());
  button.setAttribute("aria-expanded", "true");
  opened = { list, button };
  list.querySelector("button, input")?.focus();
}

export const closeList = () => close();

/** Below the button where there is room, else above it; always within the window. */
function place(list, at) {
  const { offsetWidth: width, offsetHeight: height } = list;
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  const below = at.bottom + 6 + height <= innerHeight;
  list.style.setProperty("left", `${left}px`);
  list.style.setProperty("top", `${Math.max(8, below ? at.bottom + 6 : at.top - height - 6)}px`);
}

/** A button with a list of [text, action], made anew each time it opens. */
export function menu(text, label, items) {
  const button = h("button", { type: "button", class: "opens", "aria-haspopup": "menu", "aria-expanded": "false", title: label, text });
  button.addEventListener("click", () => {
    const buttons = items().map(([name, action]) => h("button", { type: "button", role: "menuitem", text: name, onclick: action }));
    openList(button, label, buttons);
  });
  return button;
}
