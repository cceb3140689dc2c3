// The checks of modules.rs: gives a list of what is wrong.
(async () => {
  const wrong = [];
  const is = (what, a, b) => JSON.stringify(a) === JSON.stringify(b) || wrong.push(`${what}: ${JSON.stringify(a)}, not ${JSON.stringify(b)}`);
  const near = (what, a, b, by) => Math.abs(a - b) <= by || wrong.push(`${what}: ${a}, not ${b}`);

  const { EventParser } = await import("/static/sse.js");
  const text = "id: 0\nevent: start\ndata: {\"a\":1}\n\n: ping\n\nid: 1\r\nevent: step\r\ndata: 1\r\ndata: 2\r\n\r\ndata:x\n\nevent: none\n\n";
  const expected = [{ id: "0", event: "start", data: "{\"a\":1}" }, { id: "1", event: "step", data: "1\n2" }, { id: null, event: "message", data: "x" }];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let i = 0; i < text.length; i += size) found.push(...parser.push(text.slice(i, i + size)));
    is(`events in pieces of ${size}`, found, expected);
  }

  const { parseAddress, formatAddress, packDigits, unpackDigits, number } = await import("/static/state.js");
  is("address", parseAddress("#/text?text=a%26b&seed=3"), { tab: "text", params: { text: "a&b", seed: "3" } });
  is("unknown tab", parseAddress("#/none").tab, "draw");
  is("there and back", parseAddress(formatAddress("scenes", { scene: "lrc8,16;x", empty: "", none: null })), { tab: "scenes", params: { scene: "lrc8,16;x" } });
  const levels = Array.from({ length: 64 }, (_, i) => i % 17);
  is("levels", unpackDigits(packDigits(levels)), levels);
  is("no levels", [unpackDigits("12"), unpackDigits(undefined), unpackDigits("h".repeat(64))], [null, null, null]);
  is("numbers", [number("5", 1, 10, 0), number("50", 1, 10, 0), number("x", 1, 10, 0), number(undefined, 1, 10, 7)], [5, 0, 0, 7]);

  const { packScene, unpackScene, randomScene, added, unusual } = await import("/static/scene.js");
  for (let i = 0; i < 50; i++) {
    const scene = randomScene();
    is("scene", unpackScene(packScene(scene)), scene);
    is("usual", unusual(scene), null);
    if (scene.length < 3) is("room for another", unusual([...scene, added(scene)].slice(0, 3)) === null || scene.length === 1, true);
  }
  is("no scene", [unpackScene("zzz"), unpackScene(""), unpackScene("lrc1,1;lrc1,1;lrc1,1;lrc1,1")], [null, null, null]);

  const { fromStrokes, fromGrey } = await import("/static/digits.js");
  const one = fromStrokes([[[0.5, 0.2], [0.5, 0.8]]]);
  is("a stroke is as tall as the frame", [one.slice(0, 8).some((v) => v > 8), one.slice(56).some((v) => v > 8)], [true, true]);
  is("and centred", [one[3 * 8 + 3] > 4, one[3 * 8 + 3], one[3 * 8 + 2]], [true, one[3 * 8 + 4], one[3 * 8 + 5]]);
  is("wherever it is drawn", fromStrokes([[[0.1, 0.1], [0.1, 0.4]]]), one);
  is("no ink", [fromStrokes([]), fromGrey(new Uint8Array(400).fill(200), 20, 20)], [null, null]);
  const dark = Uint8Array.from({ length: 1600 }, (_, i) => (i % 40 > 16 && i % 40 < 23 && i > 200 && i < 1400 ? 30 : 220));
  is("dark ink is light ink", fromGrey(dark, 40, 40), fromGrey(dark.map((v) => 255 - v), 40, 40));

  const { alphaBars, posterior, noisy, normals, survival, SCHEDULES, T } = await import("/static/process.js");
  for (const name of SCHEDULES) {
    const bars = alphaBars(name, 10);
    is(`${name} falls`, bars.every((v, t) => t === 0 || v < bars[t - 1]), true);
    is(`${name} ends`, [bars.length, bars[0], bars[T] < 0.01], [T + 1, 1, true]);
  }
  near("cosine", alphaBars("cosine", 10)[500], 0.49384, 1e-4);
  near("survival without signal", survival(0, 10), 0.1, 1e-4);
  const p = posterior(noisy(3, normals(10, 1), 0.9), 0.9);
  near("sums to one", p.reduce((a, b) => a + b), 1, 1e-12);
  near("Bayes", Math.log(p[3] / p[5]), (Math.sqrt(0.9) / 0.1) * (noisy(3, normals(10, 1), 0.9)[3] - noisy(3, normals(10, 1), 0.9)[5]), 1e-9);

  const { asCurl, asPython } = await import("/static/share.js");
  is("quotes", asCurl("http://h", { path: "/v1/x", body: { t: "it's" } }).includes(`'{"t":"it'\\''s","stream":true}'`), true);
  is("Python", asPython("http://h", { path: "/v1/x", body: { t: "\"a\"" } }).includes(String.raw`json.loads("{\"t\":\"\\\"a\\\"\"}")`), true);

  const { roundTicks, reach, thin, curves } = await import("/static/chart.js");
  is("ticks", roundTicks(0, 1, 4), [0, 0.5, 1]);
  is("one value", reach([5]).every(Number.isFinite), true);
  is("thin", [thin([1, 2, 3], 10), thin(Array.from({ length: 1000 }, (_, i) => i), 10).at(-1)], [[1, 2, 3], 999]);
  is("curves", curves([{ event: "step", step: 1, loss: 2, epoch: 0.1, note: "x" }, { step: 2, loss: null }]), { loss: [[1, 2]] });

  const { lines } = await import("/static/strip.js");
  is("lines", lines([..."ab\ncde"].map((text) => ({ text })), 2).map((l) => l.length), [2, 1, 2, 1]);
  return wrong;
})()