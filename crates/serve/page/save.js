// Pictures as files. An SVG of the page gets its colours from the style sheet, so a saved one has them written into it; a PNG is drawn
// from that by hand, because an image of an SVG is one that the page's CSP refuses.

import { s } from "./dom.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "fill-opacity", "font-size", "font-weight", "font-family", "display"];

/** A copy that looks the same without the style sheet, on the page's paper. */
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  inline(svg, copy);
  const { width, height } = size(svg);
  const pad = 16;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `${-pad} ${-pad} ${width + 2 * pad} ${height + 2 * pad}`);
  copy.setAttribute("width", width + 2 * pad);
  copy.setAttribute("height", height + 2 * pad);
  copy.removeAttribute("class");
  const paper = getComputedStyle(document.querySelector(".top")).backgroundColor;
  copy.prepend(s("rect", { x: -pad, y: -pad, width: width + 2 * pad, height: height + 2 * pad, fill: paper }));
  return copy;
}

function size(svg) {
  const box = svg.viewBox.baseVal;
  return { width: box.width, height: box.height };
}

function inline(from, to) {
  const style = getComputedStyle(from);
  for (const name of STYLES) {
    const value = style.getPropertyValue(name);
    if (value && !(name === "opacity" && value === "1")) to.setAttribute(name, value);
  }
  to.removeAttribute("class");
  [...from.children].forEach((child, i) => inline(child, to.children[i]));
}

export function saveSvg(svg, name) {
  const text = new XMLSerializer().serializeToString(standalone(svg));
  download(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
}

export async function savePng(svg, name, scale = 2) {
  const copy = standalone(svg);
  const [x, y, width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
  const canvas = new OffscreenCanvas(Math.ceil(width * scale), Math.ceil(height * scale));
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.translate(-x, -y);
  paint(context, copy);
  download(await canvas.convertToBlob({ type: "image/png" }), `${name}.png`);
}

const number = (node, name) => parseFloat(node.getAttribute(name)) || 0;

/** Draws the few kinds of elements that the page's pictures are made of. */
function paint(c, node) {
  if (node.getAttribute("display") === "none") return;
  c.save();
  c.globalAlpha *= node.hasAttribute("opacity") ? number(node, "opacity") : 1;
  const moved = /translate\(([-\d.]+)[ ,]+([-\d.]+)\)/.exec(node.getAttribute("transform") ?? "");
  if (moved) c.translate(Number(moved[1]), Number(moved[2]));
  if (node.tagName === "text") write(c, node);
  else outline(c, node);
  for (const child of node.children) paint(c, child);
  c.restore();
}

function outline(c, node) {
  const path = new Path2D(node.tagName === "path" ? node.getAttribute("d") : undefined);
  if (node.tagName === "rect") path.roundRect(number(node, "x"), number(node, "y"), number(node, "width"), number(node, "height"), number(node, "rx"));
  else if (node.tagName === "circle") path.arc(number(node, "cx"), number(node, "cy"), number(node, "r"), 0, 2 * Math.PI);
  else if (node.tagName === "line") {
    path.moveTo(number(node, "x1"), number(node, "y1"));
    path.lineTo(number(node, "x2"), number(node, "y2"));
  } else if (node.tagName !== "path") return;
  const [fill, stroke] = [node.getAttribute("fill"), node.getAttribute("stroke")];
  if (fill && fill !== "none" && node.tagName !== "line") {
    c.fillStyle = fill;
    c.fill(path);
  }
  if (stroke && stroke !== "none") {
    c.strokeStyle = stroke;
    c.lineWidth = number(node, "stroke-width") || 1;
    c.lineJoin = c.lineCap = "round";
    c.setLineDash((node.getAttribute("stroke-dasharray") ?? "").split(/[ ,]+/).map(parseFloat).filter(Number.isFinite));
    c.stroke(path);
  }
}

function write(c, node) {
  c.fillStyle = node.getAttribute("fill");
  c.font = `${node.getAttribute("font-weight")} ${node.getAttribute("font-size")} ${node.getAttribute("font-family")}`;
  c.textAlign = { middle: "center", end: "right" }[node.getAttribute("text-anchor")] ?? "left";
  c.textBaseline = node.getAttribute("dominant-baseline") === "central" ? "middle" : "alphabetic";
  c.fillText(node.textContent, number(node, "x"), number(node, "y"));
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
