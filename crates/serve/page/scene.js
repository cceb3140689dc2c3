// What a scene is: up to three shapes on 32×32 units. Pure functions; the words and looks are those of the training data
// (crates/tweedie/src/data/sequence/shapes).

export const SIZES = ["small", "large"];
export const COLORS = ["red", "green", "blue", "yellow", "purple", "black"];
export const SHAPES = ["circle", "square", "triangle", "cross"];
export const INKS = { red: "#de2828", green: "#28a03c", blue: "#2d5fe1", yellow: "#f5cd14", purple: "#9b32b9", black: "#1c1c1c" };
export const SIDE = 32;
export const MOST = 3;

const LETTERS = { size: { small: "s", large: "l" }, color: { red: "r", green: "g", blue: "b", yellow: "y", purple: "p", black: "k" }, shape: { circle: "c", square: "s", triangle: "t", cross: "x" } };
const SPOTS = [[16, 16], [8, 16], [24, 16], [16, 8], [16, 24], [8, 8], [24, 24], [24, 8], [8, 24]];

export const radius = ({ size }) => (size === "large" ? 5.9 : 3.7);

/** Half of the width that is kept free of the border. */
const within = (v, object) => Math.min(SIDE - radius(object), Math.max(radius(object), v));

export const moved = (object, x, y) => ({ ...object, x: round(within(x, object)), y: round(within(y, object)) });

const round = (v) => Math.round(v * 10) / 10;

/** The outline of a shape around 0 0, of this radius. */
export function outline(shape, r) {
  const p = (x, y) => `${(x * r).toFixed(3)} ${(y * r).toFixed(3)}`;
  if (shape === "square") return `M${p(-0.88, -0.88)}L${p(0.88, -0.88)}L${p(0.88, 0.88)}L${p(-0.88, 0.88)}Z`;
  if (shape === "triangle") return `M${p(0, -0.95)}L${p(1.008, 0.85)}L${p(-1.008, 0.85)}Z`;
  if (shape === "cross") {
    const [a, b] = [0.34, 1];
    const corners = [[-a, -b], [a, -b], [a, -a], [b, -a], [b, a], [a, a], [a, b], [-a, b], [-a, a], [-b, a], [-b, -a], [-a, -a]];
    return `M${corners.map(([x, y]) => p(x, y)).join("L")}Z`;
  }
  return `M${p(-1, 0)}A${r} ${r} 0 1 1 ${p(1, 0)}A${r} ${r} 0 1 1 ${p(-1, 0)}Z`;
}

/** "lrc8,16;sbs24,16" and back; null where it is no such text. */
export function packScene(objects) {
  return objects.map((o) => `${LETTERS.size[o.size]}${LETTERS.color[o.color]}${LETTERS.shape[o.shape]}${o.x},${o.y}`).join(";");
}

export function unpackScene(text) {
  const named = (kind, letter) => Object.keys(LETTERS[kind]).find((name) => LETTERS[kind][name] === letter);
  const objects = (text ?? "").split(";").map((part) => {
    const match = /^(.)(.)(.)(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)$/.exec(part);
    if (!match) return null;
    const object = { size: named("size", match[1]), color: named("color", match[2]), shape: named("shape", match[3]) };
    return Object.values(object).every(Boolean) ? moved(object, Number(match[4]), Number(match[5])) : null;
  });
  return objects.length <= MOST && objects.every(Boolean) ? objects : null;
}

const pick = (list) => list[Math.floor(Math.random() * list.length)];

function randomObject(taken = []) {
  const free = COLORS.filter((c) => !taken.includes(c));
  return { size: pick(SIZES), color: pick(free.length ? free : COLORS), shape: pick(SHAPES) };
}

/** Where a new shape has the most room. */
export function added(objects) {
  const room = ([x, y]) => Math.min(99, ...objects.map((o) => Math.hypot(o.x - x, o.y - y)));
  const [x, y] = SPOTS.reduce((best, spot) => (room(spot) > room(best) + 0.01 ? spot : best));
  return moved(randomObject(objects.map((o) => o.color)), x, y);
}

/** A scene as the training has them: one anywhere, two in a row or a column, three as one against two. */
export function randomScene() {
  const [low, high] = [8, 24];
  const across = 8 + Math.round(Math.random() * 16);
  const flip = Math.random() < 0.5;
  const spots = pick([
    [pick(SPOTS)],
    [[low, across], [high, across]],
    [[low, across], [high, across]],
    [[low, 16], [high, low], [high, high]],
    [[low, low], [low, high], [high, 16]],
  ]);
  const objects = [];
  for (const [along, aside] of spots) {
    const [x, y] = flip ? [aside, along] : [along, aside];
    objects.push(moved(randomObject(objects.map((o) => o.color)), x, y));
  }
  return objects;
}

/** Why the model may be at a loss, or null: what its training never showed. */
export function unusual(objects) {
  const close = (a, b) => Math.hypot(a.x - b.x, a.y - b.y) < 0.85 * (radius(a) + radius(b));
  const touching = objects.some((a, i) => objects.slice(i + 1).some((b) => close(a, b)));
  if (touching) return "Shapes that overlap were never in its training: see what it makes of them.";
  if (objects.length !== 2) return null;
  const [dx, dy] = [Math.abs(objects[0].x - objects[1].x), Math.abs(objects[0].y - objects[1].y)];
  return Math.min(dx, dy) > 6 ? "It learned “above” and “left of” only: of two shapes on a diagonal it has to choose." : null;
}

/** Words that could stand in place of one of a caption's words. */
export const kin = (word) => [SIZES, COLORS, SHAPES, ["above", "left", "and"]].find((words) => words.includes(word)) ?? [];

export const spoken = (o) => `${o.size} ${o.color} ${o.shape} at ${Math.round(o.x)}, ${Math.round(o.y)}`;
