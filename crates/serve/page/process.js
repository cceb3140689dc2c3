// The forward process for a handful of classes, computed here: schedules as in crates/tweedie/src/schedule.rs, noise, Bayes' rule. Pure.

export const T = 1000;
export const SCHEDULES = ["linear", "cosine", "sigmoid", "vocab-aware"];
const MAX_BETA = 0.999; // no single step destroys more of the signal

function fromBetas(beta) {
  const bars = [1];
  for (let i = 0; i < T; i++) bars.push(bars[i] * (1 - Math.min(MAX_BETA, Math.max(0, beta(i)))));
  return bars;
}

const fromCurve = (f) => fromBetas((i) => 1 - f((i + 1) / T) / f(i / T));
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** ᾱ at t = 0 … T. */
export function alphaBars(name, classes) {
  if (name === "linear") return fromBetas((i) => 1e-4 + (i / (T - 1)) * (0.02 - 1e-4));
  if (name === "sigmoid") return fromCurve((u) => (sigmoid(3 - 6 * u) - sigmoid(-3)) / (sigmoid(3) - sigmoid(-3)));
  if (name === "vocab-aware") return vocabAware(classes);
  return fromCurve((u) => Math.cos((((u + 0.008) / 1.008) * Math.PI) / 2) ** 2);
}

/** Φ, to seven digits (Abramowitz and Stegun 26.2.17). */
function cdf(x) {
  const k = 1 / (1 + 0.2316419 * Math.abs(x));
  const tail = (Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI)) * k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))));
  return x >= 0 ? 1 - tail : tail;
}

/** P(argmax y_t = token) for K classes where the signal stands μ standard deviations high. */
export function survival(mu, classes) {
  let sum = 0;
  const step = 0.05;
  for (let d = -7; d <= 7; d += step) sum += Math.exp((-d * d) / 2) * cdf(mu + d) ** (classes - 1);
  return (sum * step) / Math.sqrt(2 * Math.PI);
}

/** The schedule with which the chance to survive falls linearly. */
function vocabAware(classes) {
  const grid = Array.from({ length: 500 }, (_, i) => survival(i * 0.02, classes));
  const bars = [1];
  for (let t = 1; t <= T; t++) {
    const target = (1 + (classes - 1) * (1 - t / T)) / classes;
    const above = Math.min(grid.length - 1, Math.max(1, grid.findIndex((p) => p >= target)));
    const [a, b] = [grid[above - 1], grid[above]];
    const mu = 0.02 * (above - 1 + Math.min(1, Math.max(0, (target - a) / (b - a || 1))));
    bars.push(Math.max(1e-9, (mu * mu) / (1 + mu * mu)));
  }
  return bars;
}

/** Numbers of N(0, 1), the same for a seed: mulberry32 and Box–Muller. */
export function normals(count, seed) {
  let state = (seed + 1) * 0x9e3779b9;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let v = Math.imul(state ^ (state >>> 15), 1 | state);
    v = (v + Math.imul(v ^ (v >>> 7), 61 | v)) ^ v;
    return ((v ^ (v >>> 14)) >>> 0) / 2 ** 32;
  };
  return Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
}

/** y_t = √ᾱ·e_token + √(1 − ᾱ)·ε. */
export const noisy = (token, noise, bar) => noise.map((e, k) => (k === token ? Math.sqrt(bar) : 0) + Math.sqrt(1 - bar) * e);

/** p(k | y_t) ∝ exp(κ·y_t[k]), κ = √ᾱ / (1 − ᾱ), for equal priors. Without noise the largest entry is certain. */
export function posterior(y, bar) {
  const kappa = Math.sqrt(bar) / Math.max(1 - bar, 1e-12);
  const top = Math.max(...y);
  const weights = y.map((v) => Math.exp(kappa * (v - top)));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((w) => w / sum);
}
