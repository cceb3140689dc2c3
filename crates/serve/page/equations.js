// The paper's equations in MathML, each with a sentence in plain words (docs/concepts/method.md has all of them).
import { h } from "./dom.js";

const MATH = "http://www.w3.org/1998/Math/MathML";

function m(tag, ...children) {
  const node = document.createElementNS(MATH, tag);
  node.append(...children);
  return node;
}

const i = (t) => m("mi", t);
const o = (t) => m("mo", t);
const n = (t) => m("mn", t);
const gap = () => {
  const node = m("mspace");
  node.setAttribute("width", "1.4em");
  return node;
};
const row = (...c) => m("mrow", ...c);
const sub = (a, b) => m("msub", a, b);
const bar = () => sub(m("mover", i("α"), o("¯")), i("t"));
const y = (t) => sub(i("y"), i(t));
const oneMinus = () => row(n("1"), o("−"), bar());
const hot = (k) => sub(i("e"), i(k));
const parens = (...c) => row(o("("), ...c, o(")"));

function block(title, text, ...formula) {
  const math = m("math", row(...formula));
  math.setAttribute("display", "block");
  return h("section", {}, h("h3", { text: title }), math, h("p", { text }));
}

/** Sections to put beside the pictures. */
export function equations() {
  return [
    block("Noise", "The one-hot vector of the token shrinks, Gaussian noise grows. At t = 0 all is signal, at t = T all is noise.",
      y("t"), o("="), m("msqrt", bar()), hot("token"), o("+"), m("msqrt", oneMinus()), i("ε"), gap(), i("ε"), o("∼"), i("N"), parens(n("0"), o(","), i("I"))),
    block("What a noisy vector says", "Bayes’ rule: an entry that stands out is evidence for its word, and the less noise there is, the more it counts. These are the bars on the left.",
      i("p"), parens(i("k"), o("|"), y("t")), o("∝"), sub(i("π"), i("k")), m("msup", i("e"), row(sub(i("κ"), i("t")), sub(i("y"), row(i("t"), o(","), i("k"))))), gap(), sub(i("κ"), i("t")), o("="), m("mfrac", m("msqrt", bar()), oneMinus())),
    block("Tweedie’s formula", "The mean of the clean signal is the noisy vector, moved along the score. The mean of one-hot vectors is a distribution: whoever predicts p knows the score.",
      i("E"), row(o("["), m("msqrt", bar()), y("0"), o("|"), y("t"), o("]")), o("="), y("t"), o("+"), parens(oneMinus()), o("∇"), i("ln"), i("p"), parens(y("t"))),
    block("Training", "So a classifier of noisy vectors is a diffusion model, and learns by plain cross-entropy.",
      i("L"), o("="), sub(i("E"), row(i("t"), o(","), i("ε"))), row(o("["), o("−"), i("ln"), sub(i("p"), i("θ")), parens(i("token"), o("|"), y("t"), o(","), i("t"), o(","), i("c")), o("]"))),
    block("Sampling", "Start from noise. At each step take the likeliest word, and noise it again, a little less. After the last step the word stays.",
      y("s"), o("="), m("msqrt", sub(m("mover", i("α"), o("¯")), i("s"))), hot("k"), o("+"), m("msqrt", row(n("1"), o("−"), sub(m("mover", i("α"), o("¯")), i("s")))), i("ε"), gap(), i("k"), o("="), i("argmax"), i("p")),
    block("Guidance", "What the picture adds to what the model would say anyway, made stronger by w.",
      i("g"), o("="), i("u"), o("+"), i("w"), parens(i("c"), o("−"), i("u"))),
    h("p", { class: "cite" }, "After ", h("cite", { text: "In-Situ Tweedie Discrete Diffusion Models" }), ", Li et al., arXiv:2510.01047. The masked twin (MDD) hides tokens instead of noising them and uncovers them one by one."),
  ];
}
