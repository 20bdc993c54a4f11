// The document viewer, which marks the passage that a run was copied from.

import { byId, element } from "./page.js";

export class Viewer {
  constructor() {
    this.document = null;
  }

  show(document) {
    this.document = document;
    byId("viewer").hidden = document === null;
    byId("viewer-title").textContent = document?.name ?? "";
    byId("viewer-text").textContent = document?.text ?? "";
  }

  // Marks the passage and, inside it, the token; both lie in `document`.
  mark(document, run, token) {
    if (document !== this.document) this.show(document);
    const { points } = document;
    const inner = element("span", { className: "token-passage", textContent: points.slice(token.start, token.end) });
    const marked = element("mark", {}, points.slice(run.start, token.start), inner, points.slice(token.end, run.end));
    byId("viewer-text").replaceChildren(points.slice(0, run.start), marked, points.slice(run.end, points.length));
    this.#scrollTo(marked);
  }

  clear() {
    if (byId("viewer-text").querySelector("mark")) byId("viewer-text").textContent = this.document.text;
  }

  #scrollTo(marked) {
    const pane = byId("viewer-text");
    const [outer, inner] = [pane.getBoundingClientRect(), marked.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) {
      pane.scrollTop += inner.top - outer.top - outer.height / 3;
    }
  }
}
