// The tooltip of a token: its source, its probability and the passage it was copied from.

import { byId, element } from "./page.js";
import { inWords } from "./sources.js";

const GAP = 6; // pixels between token and box
const SURROUNDINGS = 40; // characters before and after a copied token

export class Tip {
  constructor() {
    this.box = byId("tip");
    this.hiding = null;
    this.onHide = () => {};
    this.box.addEventListener("pointerenter", () => clearTimeout(this.hiding));
    this.box.addEventListener("pointerleave", () => this.hideSoon());
  }

  // `passage`: where the token was copied from, if that is in a document.
  show(token, entry, passage) {
    clearTimeout(this.hiding);
    this.box.replaceChildren(...lines(entry, passage));
    this.box.hidden = false;
    this.placeAt(token);
  }

  placeAt(token) {
    const [at, size] = [token.getBoundingClientRect(), this.box.getBoundingClientRect()];
    const below = at.bottom + GAP + size.height < innerHeight;
    const left = Math.min(at.left, innerWidth - size.width - GAP);
    this.box.style.left = `${Math.max(GAP, left)}px`;
    this.box.style.top = `${below ? at.bottom + GAP : at.top - size.height - GAP}px`;
  }

  // With time to move the pointer into the box.
  hideSoon() {
    clearTimeout(this.hiding);
    this.hiding = setTimeout(() => this.hide(), 150);
  }

  hide() {
    clearTimeout(this.hiding);
    this.box.hidden = true;
    this.onHide();
  }
}

function lines(entry, passage) {
  const made = [element("div", { className: "who", textContent: `“${entry.text}” ${who(entry, passage)}` })];
  if (entry.probability !== null) {
    made.push(element("div", { textContent: `probability ${percent(entry.probability)} · step ${entry.step}` }));
  }
  if (passage) made.push(element("div", { className: "passage", textContent: surroundings(passage) }));
  return made;
}

function who({ source }, passage) {
  if (!passage) return inWords(source);
  const more = { prompt: ", in the prompt", both: ", and drafted by another drafter" }[source] ?? "";
  return `copied from ${passage.document.name}${more}`;
}

function surroundings({ document, start, end }) {
  const [first, last] = [Math.max(0, start - SURROUNDINGS), Math.min(document.points.length, end + SURROUNDINGS)];
  const text = document.points.slice(first, last).replace(/\s+/g, " ");
  return `${first ? "… " : ""}${text}${last < document.points.length ? " …" : ""}`;
}

export function percent(share) {
  if (share > 0.999) return "over 99.9 %";
  return share < 0.001 ? "under 0.1 %" : `${(100 * share).toFixed(1)} %`;
}
