// Light or dark: the system's choice, or the stored one.

import { byId } from "./page.js";

const KEY = "graft-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const chosen = () => localStorage.getItem(KEY);
const isDark = () => (chosen() ? chosen() === "dark" : system.matches);

function apply() {
  const always = isDark() ? "all" : "not all";
  byId("dark").media = chosen() ? always : system.media;
  byId("theme").setAttribute("aria-pressed", String(isDark()));
}

export function startTheme() {
  byId("theme").addEventListener("click", () => {
    localStorage.setItem(KEY, isDark() ? "light" : "dark");
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
