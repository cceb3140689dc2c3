// Drawings and pictures as the embedded digits are: 32×32 points of ink or paper, as tall as the frame and centred across, counted in
// blocks of 4×4: 8×8 levels of 0 … 16. Pure functions.

const FRAME = 32;
const WIDEST = 26; // the outer columns of the data are all but empty
const INK = 312; // of 1,024 points: each of the ten digits has ink on 30 % of its frame, a one by broader strokes than an eight
const LARGEST = 72; // a dot is not blown up to fill the frame
const [FINEST, BROADEST] = [3, 11]; // pens

/** Counts of ink in blocks of 4×4 points. */
export function count(inked) {
  const levels = new Array(64).fill(0);
  for (let y = 0; y < FRAME; y++) for (let x = 0; x < FRAME; x++) if (inked(x, y)) levels[(y >> 2) * 8 + (x >> 2)] += 1;
  return levels;
}

function bounds(points) {
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

/** How to put a box into the frame: as tall as it, squeezed where that makes it too wide. */
function fit({ left, right, top, bottom }, margin, largest) {
  const down = Math.min((FRAME - margin) / Math.max(bottom - top, 1e-6), largest);
  const across = Math.min(down, (WIDEST - margin) / Math.max(right - left, 1e-6));
  const [x, y] = [(left + right) / 2, (top + bottom) / 2];
  return { across, down, x, y };
}

/** Strokes, lists of [x, y] within the unit square, as 64 levels; null where there is no ink. */
export function fromStrokes(strokes) {
  const points = strokes.flat();
  if (!points.length) return null;
  const box = bounds(points);
  return inked((pen) => {
    const { across, down, x, y } = fit(box, pen, LARGEST);
    const segments = strokes.flatMap((stroke) => {
      const placed = stroke.map((p) => [(p[0] - x) * across + FRAME / 2, (p[1] - y) * down + FRAME / 2]);
      return placed.map((p, i) => [placed[Math.max(i - 1, 0)], p]);
    });
    return (px, py) => segments.some(([a, b]) => near(px + 0.5, py + 0.5, a, b, pen / 2));
  });
}

/** The levels by the pen that gives the ink of the data; `draw(pen)` says of each point whether there is ink. */
function inked(draw) {
  let [low, high] = [FINEST, BROADEST];
  let levels = null;
  for (let i = 0; i < 5; i++) {
    const pen = (low + high) / 2;
    levels = count(draw(pen));
    if (levels.reduce((a, b) => a + b) < INK) low = pen;
    else high = pen;
  }
  return levels;
}

/** Whether a point lies within a stroke from a to b. */
function near(x, y, [ax, ay], [bx, by], reach) {
  const [dx, dy] = [bx - ax, by - ay];
  const along = Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - ax - along * dx, y - ay - along * dy) <= reach;
}

/** A grey picture (0 … 255, row by row) as 64 levels. What differs from the paper at its border is ink, light or dark. */
export function fromGrey(grey, width, height) {
  if (width === 8 && height === 8) return Array.from(grey, (v) => Math.round((v * 16) / 255));
  const ink = contrast(grey, width, height);
  const strong = [];
  for (let i = 0; i < ink.length; i++) if (ink[i] > 0.5) strong.push([i % width, Math.floor(i / width)]);
  if (!strong.length) return null;
  const box = { left: width, right: 0, top: height, bottom: 0 };
  for (const [x, y] of strong) {
    Object.assign(box, { left: Math.min(box.left, x), right: Math.max(box.right, x + 1), top: Math.min(box.top, y), bottom: Math.max(box.bottom, y + 1) });
  }
  return inked((pen) => {
    // Strokes of a photograph have a breadth already: only what they lack is added around them.
    const add = Math.max(0, pen - FINEST) / 2;
    const { across, down, x, y } = fit(box, 2 * add, Infinity);
    const at = (px, py) => {
      const [sx, sy] = [Math.floor((px - FRAME / 2) / across + x), Math.floor((py - FRAME / 2) / down + y)];
      return sx >= 0 && sy >= 0 && sx < width && sy < height && ink[sy * width + sx] > 0.5;
    };
    const dark = [];
    for (let py = 0.25; py < FRAME; py += 0.5) for (let px = 0.25; px < FRAME; px += 0.5) if (at(px, py)) dark.push([px, py]);
    return (px, py) => dark.some(([x, y]) => Math.hypot(px + 0.5 - x, py + 0.5 - y) <= Math.max(add, 0.36));
  });
}

/** How much each point differs from the border, from 0 to 1, with the noise of the paper taken off. */
function contrast(grey, width, height) {
  const border = [];
  for (let x = 0; x < width; x++) border.push(grey[x], grey[(height - 1) * width + x]);
  for (let y = 0; y < height; y++) border.push(grey[y * width], grey[y * width + width - 1]);
  const paper = border.sort((a, b) => a - b)[border.length >> 1];
  const apart = Array.from(grey, (v) => Math.abs(v - paper));
  const full = [...apart].sort((a, b) => a - b)[Math.floor(apart.length * 0.99)];
  if (full < 16) return apart.map(() => 0);
  return apart.map((v) => Math.min(1, Math.max(0, (v / full - 0.25) / 0.5)));
}
