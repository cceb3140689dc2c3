// Small helpers to make and find elements. Styles go through classes and CSS variables only: the page's CSP refuses style attributes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = value;
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

/** An HTML element: attributes, `on…` listeners, `text`; then children. */
export const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

/** 0.983 → "98 %"; what is all but certain is not called certain. */
export function percent(p) {
  if (!Number.isFinite(p)) return "–";
  if (p >= 0.9995) return "100 %";
  if (p >= 0.995) return ">99 %";
  if (p > 0 && p < 0.005) return "<1 %";
  return `${Math.round(100 * p)} %`;
}

/** A number with three or so significant digits. */
export function short(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.01 || size >= 1e6)) return x.toExponential(2).replace(/\.?0+e/, "e").replace("+", "");
  if (Number.isInteger(x)) return x.toLocaleString("en");
  return String(Number(x.toPrecision(size >= 100 ? 4 : 3)));
}

/** 95 → "1m35s". */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds)}s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}h${String(minutes).padStart(2, "0")}m` : `${minutes}m${String(Math.round(seconds) % 60).padStart(2, "0")}s`;
}

/** Calls `f` once, `ms` after the last of a row of calls. */
export function debounce(f, ms) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...args), ms);
  };
}

/** Calls `f` at most once in `ms`: what changes all the time is followed, not waited for. */
export function throttle(f, ms) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      f();
    }, ms);
  };
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const notes = new Map();

/** A line at the bottom of the window that goes away; the same text is not said twice at once. */
export function note(text, kind = "info") {
  const box = $("#notes");
  if (notes.has(text)) return;
  const line = h("p", { class: `note ${kind}`, text });
  notes.set(text, line);
  box.append(line);
  setTimeout(() => {
    line.remove();
    notes.delete(text);
  }, kind === "error" ? 6000 : 2200);
}
