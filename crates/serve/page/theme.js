// Light, dark, or as the system has it; the choice is kept.

import { s } from "./dom.js";

const KEY = "tweedie-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const FACES = {
  system: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  light: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 2v2.500M12 19.500V22M2 12h2.500M19.500 12H22M5 5l1.700 1.700M17.300 17.300L19 19M5 19l1.700-1.700M17.300 6.700L19 5",
  dark: "M20 14.500A8.500 8.500 0 0 1 9.500 4A8.500 8.500 0 1 0 20 14.500z",
};

export function startTheme(button, changed) {
  const apply = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const label = theme === "system" ? "Colours: as the system" : `Colours: ${theme}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: theme }, s("path", { d: FACES[theme] })));
    changed();
  };
  let theme = NEXT[localStorage.getItem(KEY)] ? localStorage.getItem(KEY) : "system";
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    localStorage.setItem(KEY, theme);
    apply(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply(theme);
}
