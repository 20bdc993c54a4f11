// The hovered or focused token: its tooltip and its passage in the document.

import { Tip } from "./tip.js";

export class Looking {
  constructor(viewer, documents) {
    this.viewer = viewer;
    this.documents = documents;
    this.tip = new Tip();
    this.tip.onHide = () => this.#leave();
    this.answer = this.token = null;
    this.listeners = {
      onLook: (answer, place) => this.#look(answer, place),
      onLeave: () => this.tip.hideSoon(),
      onCite: (citation) => this.#cite(this.#known(this.prompt.cited(citation))),
      isKnown: (citation) => this.prompt.cited(citation) !== null,
    };
    addEventListener("keydown", (event) => event.key === "Escape" && this.tip.hide());
    addEventListener("scroll", () => this.token && this.tip.placeAt(this.token), { passive: true });
  }

  begin(prompt) {
    this.tip.hide();
    this.prompt = prompt;
  }

  #look(answer, place) {
    this.#leave();
    this.answer = answer;
    this.token = answer.tokens[place];
    this.token.setAttribute("aria-describedby", "tip");
    const passage = this.#known(this.prompt.passage(answer.entries[place].copied_from));
    const run = answer.markRun(place);
    if (passage) this.viewer.mark(passage.document, this.#stretch(answer, run, passage), passage);
    else this.viewer.clear();
    this.tip.show(this.token, answer.entries[place], passage);
  }

  #cite(passage) {
    this.#leave();
    if (passage) this.viewer.mark(passage.document, passage, passage);
  }

  // Null for a document that was removed.
  #known(passage) {
    return passage && this.documents.all.includes(passage.document) ? passage : null;
  }

  // The characters of a whole run.
  #stretch(answer, run, passage) {
    const first = this.prompt.passage(answer.entries[run.first].copied_from);
    const last = this.prompt.passage(answer.entries[run.last].copied_from);
    return {
      start: first?.document === passage.document ? first.start : passage.start,
      end: last?.document === passage.document ? last.end : passage.end,
    };
  }

  #leave() {
    this.token?.removeAttribute("aria-describedby");
    this.answer?.unmark();
    this.viewer.clear();
    this.answer = this.token = null;
  }
}
