// The dialog for the API key.

import { setKey } from "./api.js";
import { byId } from "./page.js";

// Resolves to whether a key was entered.
export function askForKey(why = "") {
  const dialog = byId("key-dialog");
  byId("key-trouble").textContent = why;
  byId("key").value = "";
  byId("key-button").hidden = false;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "use" && byId("key").value.trim();
        if (given) setKey(given);
        byId("key").value = "";
        resolve(Boolean(given));
      },
      { once: true },
    );
  });
}
