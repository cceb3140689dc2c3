// Pictures from outside: dropped, pasted or chosen.

import { h, note } from "./dom.js";

const LARGEST = 16 * 2 ** 20;

/** A file as {bitmap, base64}, or null after saying what is wrong. */
export async function readPicture(file) {
  if (file.size > LARGEST) {
    note(`${file.name} has ${Math.ceil(file.size / 2 ** 20)} MiB; the limit is 16.`, "error");
    return null;
  }
  try {
    const [bitmap, base64] = await Promise.all([createImageBitmap(file), asBase64(file)]);
    return { bitmap, base64, name: file.name };
  } catch {
    note(`${file.name || "This"} is not a picture that the browser can read.`, "error");
    return null;
  }
}

async function asBase64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}

/** Grey values of a picture, at most 256 points a side. */
export function grey(bitmap) {
  const scale = Math.min(1, 256 / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((v) => Math.max(1, Math.round(v * scale)));
  const c = new OffscreenCanvas(width, height).getContext("2d");
  c.fillStyle = "#fff"; // what shines through is paper
  c.fillRect(0, 0, width, height);
  c.drawImage(bitmap, 0, 0, width, height);
  const { data } = c.getImageData(0, 0, width, height);
  const values = new Uint8Array(width * height);
  for (let i = 0; i < values.length; i++) values[i] = Math.round(0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]);
  return { values, width, height };
}

/** Lets files be dropped on `zone`, and gives a button that chooses one. */
export function fileInput(zone, take, text = "Choose a picture …") {
  const input = h("input", { type: "file", accept: "image/*", class: "hidden", tabindex: -1, "aria-hidden": "true", onchange: () => {
    if (input.files[0]) take(input.files[0]);
    input.value = "";
  } });
  let within = 0;
  const mark = (by) => {
    within = Math.max(0, by ? within + by : 0);
    zone.classList.toggle("over", within > 0);
  };
  zone.addEventListener("dragenter", () => mark(1));
  zone.addEventListener("dragleave", () => mark(-1));
  zone.addEventListener("dragover", (e) => e.preventDefault());
  zone.addEventListener("drop", (e) => {
    e.preventDefault();
    mark(0);
    const file = e.dataTransfer.files[0];
    if (file) take(file);
  });
  return h("span", { class: "file" }, input, h("button", { type: "button", text, onclick: () => input.click() }));
}
