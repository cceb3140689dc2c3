// The frame: tabs, models, theme, keys, the address. Tabs know the app by models, changed, say, go and loadModels.

import { json, onUnauthorized, sleep } from "./api.js";
import { Dock } from "./dock.js";
import { $, $$, h, note } from "./dom.js";
import { Draw } from "./draw.js";
import { Method } from "./method.js";
import { Runs } from "./runs.js";
import { Scenes } from "./scenes.js";
import { TABS, formatAddress, parseAddress, remember } from "./state.js";
import { Text } from "./text.js";
import { startTheme } from "./theme.js";

const LIVE = ["draw", "scenes", "text"];
const COMMANDS = { draw: "tweedie train digits", scenes: "tweedie train shapes", text: "tweedie train shakespeare" };

const app = {
  models: [],
  tab: null,

  /** Something of a tab changed: the timeline and the address follow. */
  changed(tab) {
    if (tab !== this.tab) return;
    if (LIVE.includes(tab.name)) dock.refresh();
    clearTimeout(this.writing);
    // Browsers refuse more than some hundred changes of the address in half a minute.
    this.writing = setTimeout(() => this.tab === tab && remember(tab.name, tab.params), 300);
  },

  /** For readers of the screen. */
  say(text) {
    $("#live").textContent = text;
  },

  async loadModels() {
    this.models = (await json("/v1/models")).models;
    this.listModels();
  },

  /** Models of the open tab's task in the picker. */
  listModels() {
    const picker = $("#model");
    const own = this.tab?.models ?? [];
    const group = (label, origin) => {
      const options = own.filter((m) => (m.origin === "embedded") === (origin === "embedded")).map((m) => h("option", { value: m.name, text: m.name }));
      return options.length ? h("optgroup", { label }, ...options) : null;
    };
    picker.replaceChildren(...[group("In the box", "embedded"), group("Runs", "run")].filter(Boolean));
    picker.parentElement.hidden = !own.length;
    picker.value = this.tab?.model?.name ?? "";
    picker.title = this.tab?.model?.about ?? "";
  },

  go(name, params = {}) {
    const address = formatAddress(name, params);
    if (address !== location.hash) history.pushState(null, "", address);
    this.show();
  },

  /** Shows what the address says. */
  show() {
    const { tab, params } = parseAddress(location.hash);
    clearTimeout(this.writing);
    const before = this.tab;
    this.tab = tabs[tab];
    if (before !== this.tab) {
      before?.stop?.();
      before?.close?.();
    }
    document.title = `${tab[0].toUpperCase()}${tab.slice(1)} · tweedie`;
    for (const name of TABS) {
      $(`#panel-${name}`).hidden = name !== tab;
      $(`#tab-${name}`).setAttribute("aria-selected", String(name === tab));
      $(`#tab-${name}`).tabIndex = name === tab ? 0 : -1;
    }
    const missing = LIVE.includes(tab) && !this.tab.models.length;
    this.banner(missing ? ["No model for this tab is loaded. Train one with ", h("code", { text: COMMANDS[tab] }), " and open it in the Runs tab."] : null);
    $(`#panel-${tab}`).classList.toggle("without", missing);
    dock.bind(LIVE.includes(tab) && !missing ? this.tab : null);
    this.tab.open(params);
    this.listModels();
    const strange = params.model && this.tab.models && !this.tab.models.some((m) => m.name === params.model);
    if (strange) note(`No model “${params.model}” is loaded; a run of that name opens in the Runs tab.`, "error");
  },

  banner(content) {
    const box = $("#banner");
    box.hidden = !content;
    box.replaceChildren(...(content ?? []));
  },
};

const dock = new Dock($("#dock"));
const tabs = {
  draw: new Draw($("#panel-draw"), app),
  scenes: new Scenes($("#panel-scenes"), app),
  text: new Text($("#panel-text"), app),
  runs: new Runs($("#panel-runs"), app),
  method: new Method($("#panel-method"), app),
};

/** What a tab was like when it was left is what it is like when one comes back. */
function openTab(name) {
  if (app.tab?.name !== name) app.go(name, tabs[name].params);
}

function typing(target) {
  return target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select, dialog, .list");
}

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || typing(e.target)) return;
  const live = LIVE.includes(app.tab?.name);
  const onRange = e.target.matches?.("input[type=range]");
  const move = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
  if (/^[1-5]$/.test(e.key)) openTab(TABS[Number(e.key) - 1]);
  else if (e.key === "?") $("#help-box").showModal();
  else if (e.target.closest?.("[role=tab]") && move) moveFocus(move);
  else if (live && e.key === " " && !e.target.closest?.("button, summary, a, label")) dock.toggle();
  else if (live && move && !onRange) dock.move(move);
  else if (live && (e.key === "Home" || e.key === "End") && !onRange) dock.seek(e.key === "Home" ? 1 : app.tab.runs[0]?.total ?? 1);
  else if (app.tab?.name === "method" && move && !onRange) app.tab.move(move);
  else return;
  e.preventDefault();
});

function moveFocus(by) {
  const all = $$("[role=tab]");
  const next = all.at((all.indexOf(document.activeElement) + by) % all.length);
  openTab(next.dataset.tab);
  next.focus();
}

addEventListener("paste", (e) => {
  const file = [...(e.clipboardData?.files ?? [])].find((f) => f.type.startsWith("image/"));
  if (file && app.tab?.take) app.tab.take(file);
});
// A file that misses the canvas must not replace the page.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (e) => e.preventDefault());

onUnauthorized(() => {
  const box = $("#key-box");
  if (box.open) return box.answer;
  box.returnValue = "";
  box.showModal();
  box.answer = new Promise((resolve) => box.addEventListener("close", () => resolve(box.returnValue === "ok" ? $("#key").value : null), { once: true }));
  return box.answer;
});

/** Waits for the models: a server that has just been started may still be reading them. */
async function start() {
  startTheme($("#theme"), () => app.tab?.sketch?.paint());
  $$("[role=tab]").forEach((tab) => tab.addEventListener("click", () => openTab(tab.dataset.tab)));
  $("#model").addEventListener("change", (e) => app.tab?.choose?.(e.target.value));
  $("#help").addEventListener("click", () => $("#help-box").showModal());
  for (;;) {
    try {
      await app.loadModels();
      break;
    } catch (e) {
      app.banner([e.status === 503 ? "The models are being loaded …" : e.message]);
      if (e.status === 401) note("Reload the page to give a key.", "error");
      await sleep(1000);
    }
  }
  json("/health").then(({ device }) => ($("#device").textContent = device)).catch(() => {});
  addEventListener("popstate", () => app.show());
  app.show();
}

start();
