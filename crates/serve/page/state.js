// The address of what is on the screen: #/tab?name=value&…; pure functions, and the one place that writes the address bar.

export const TABS = ["draw", "scenes", "text", "runs", "method"];

/** "#/draw?seed=3" → {tab: "draw", params: {seed: "3"}}; anything else is the first tab. */
export function parseAddress(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const tab = TABS.includes(path) ? path : TABS[0];
  return { tab, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** The other way; what is empty or undefined is left out. */
export function formatAddress(tab, params) {
  const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== ""));
  const text = query.toString();
  return `#/${tab}${text ? `?${text}` : ""}`;
}

/** A whole number of an address within bounds, or `otherwise`. */
export function number(text, low, high, otherwise) {
  const x = Number(text);
  return text === undefined || text === "" || !Number.isFinite(x) || x < low || x > high ? otherwise : x;
}

/** 64 grey levels of 0 … 16 as 64 characters 0 … g, and back; null where it is not such a text. */
export const packDigits = (levels) => [...levels].map((v) => Number(v).toString(17)).join("");
export const unpackDigits = (text) => (/^[0-9a-g]{64}$/.test(text ?? "") ? [...text].map((c) => parseInt(c, 17)) : null);

/** Writes the address without a new entry in the history. */
export function remember(tab, params) {
  const address = formatAddress(tab, params);
  if (address !== location.hash) history.replaceState(null, "", address);
}
