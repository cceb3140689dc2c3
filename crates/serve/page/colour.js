// The figures' colours (crates/figures/src/palette.rs): one sequential scale, the same in both themes, and the colours of series.

const VIRIDIS = [
  [68, 1, 84], [72, 24, 106], [71, 45, 123], [66, 64, 134], [59, 82, 139], [51, 99, 141], [44, 114, 142], [38, 130, 142], [33, 145, 140],
  [31, 160, 136], [40, 174, 128], [63, 188, 115], [94, 201, 98], [132, 212, 75], [173, 220, 48], [216, 226, 25], [253, 231, 37],
];

/** The colour of a value from 0 to 1, as [r, g, b]. */
export function viridis(t) {
  const place = Math.min(1, Math.max(0, Number.isFinite(t) ? t : 0)) * (VIRIDIS.length - 1);
  const i = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const f = place - i;
  return VIRIDIS[i].map((v, c) => Math.round(v * (1 - f) + VIRIDIS[i + 1][c] * f));
}

export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

/** Black or white, whichever reads better on `rgb`: where the WCAG contrast with both is the same. */
export function ink(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

/** Classes that style.css colours by theme; the dashes repeat the colours in grey. */
export const SERIES = 6;
export const series = (i) => `series-${i % SERIES}`;

/** The scale as a legend. */
export function gradient(s, id) {
  const stops = VIRIDIS.map((rgb, i) => s("stop", { offset: i / (VIRIDIS.length - 1), "stop-color": css(rgb) }));
  return s("linearGradient", { id }, ...stops);
}
