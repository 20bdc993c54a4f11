// One answer, token by token. One token is in the tab order; left and right move by tokens, up and
// down by copied runs.

import { CodePoints } from "./code_points.js";
import { byId, element } from "./page.js";
import { showNumbers } from "./numbers.js";
import { classOf } from "./sources.js";

const QUOTED = 60; // characters of a cited span that are shown
const STALL_SECONDS = 10; // without a token until a message says so

export class Answer {
  // `onLook(answer, place)`: a token is hovered or focused; `onLeave()`: no longer.
  // `onCite(citation)`: a source is chosen; `isKnown(citation)`: whether it can be shown.
  constructor(title, { onLook, onLeave, onCite, isKnown }) {
    this.element = byId("pane").content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").textContent = title;
    this.text = this.element.querySelector(".text");
    this.text.setAttribute("aria-label", `${title}: answer; arrow keys go from token to token`);
    this.state = this.element.querySelector(".state");
    this.entries = [];
    this.tokens = []; // elements; none for a token without text
    this.drawing = false;
    this.source = (citation, text) => (isKnown(citation) ? button(text, () => onCite(citation)) : text);
    this.#listen(onLook, onLeave);
  }

  begin(numbers) {
    this.numbers = numbers;
    this.say("prefilling the prompt …");
  }

  add(entry) {
    this.say("generating …");
    this.entries.push(entry);
    this.tokens.push(entry.text ? this.#token(entry) : null);
    this.numbers.add(entry);
    this.draw();
  }

  // Text without a trace, such as tool calls.
  addPlainText(text) {
    this.text.append(text);
  }

  // Lists the documents that the answer repeats.
  cite(annotations) {
    const points = new CodePoints(this.whole);
    const items = annotations.map(({ url_citation: citation }) => {
      const span = points.slice(citation.start_index, citation.end_index);
      return element("li", {}, this.source(citation, inWords(citation, span)));
    });
    this.element.querySelector(".cited ul").append(...items);
    this.element.querySelector(".cited").hidden = !this.element.querySelector(".cited li");
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      showNumbers(this.numbers, this.element);
    });
  }

  // Says how long there was no token.
  remindOf(seconds) {
    const stalled = this.entries.length && seconds >= STALL_SECONDS; // the server reports the prefill
    if (stalled) this.say(`generating … no token for ${Math.round(seconds)} s`);
  }

  say(text, { trouble = false } = {}) {
    this.state.textContent = text;
    this.state.classList.toggle("trouble", trouble);
  }

  get whole() {
    return this.entries.map((entry) => entry.text).join("");
  }

  // Marks the tokens of a run, and the tokens of this answer that it was copied from.
  markRun(place) {
    this.unmark();
    const run = runAround(this.entries, place);
    if (!run) return null;
    for (let i = run.first; i <= run.last; i++) {
      this.tokens[i]?.classList.add("in-run");
      const from = this.entries[i].copied_from;
      if (from.kind === "output") this.tokens[from.token]?.classList.add("copied-from");
    }
    return run;
  }

  unmark() {
    for (const each of this.text.querySelectorAll(".in-run, .copied-from")) {
      each.classList.remove("in-run", "copied-from");
    }
  }

  #token(entry) {
    const made = element("span", { className: "token", textContent: entry.text, tabIndex: -1 });
    if (entry.source) made.classList.add("drafted", classOf(entry.source));
    if (!this.text.querySelector(".token")) made.tabIndex = 0;
    made.dataset.place = this.entries.length - 1;
    this.text.append(made);
    return made;
  }

  #listen(onLook, onLeave) {
    const look = (event) => {
      const token = event.target.closest?.(".token");
      if (token) onLook(this, Number(token.dataset.place));
    };
    this.text.addEventListener("pointerover", look);
    this.text.addEventListener("pointerleave", onLeave);
    this.text.addEventListener("focusin", (event) => {
      this.#makeCurrent(event.target);
      look(event);
    });
    this.text.addEventListener("focusout", onLeave);
    this.text.addEventListener("keydown", (event) => this.#move(event));
  }

  #makeCurrent(token) {
    if (!token.matches(".token")) return;
    for (const each of this.text.querySelectorAll('.token[tabindex="0"]')) each.tabIndex = -1;
    token.tabIndex = 0;
  }

  #move(event) {
    const place = Number(event.target.dataset?.place);
    const target = Number.isNaN(place) ? null : this.#targets(place)[event.key]?.();
    if (!target) return;
    event.preventDefault();
    target.focus({ preventScroll: false });
  }

  #targets(place) {
    const run = runAround(this.entries, place) ?? { first: place, last: place };
    return {
      ArrowRight: () => this.#visible(place + 1, 1),
      ArrowLeft: () => this.#visible(place - 1, -1),
      ArrowDown: () => this.#visible(this.#copied(run.last + 1, 1), 1),
      ArrowUp: () => this.#visible(this.#copied(run.first - 1, -1), -1),
      Home: () => this.#visible(0, 1),
      End: () => this.#visible(this.tokens.length - 1, -1),
    };
  }

  // The nearest copied token from a place on.
  #copied(place, direction) {
    while (this.entries[place] && !this.entries[place].copied_from) place += direction;
    return place;
  }

  #visible(place, direction) {
    while (place >= 0 && place < this.tokens.length && !this.tokens[place]) place += direction;
    return this.tokens[place];
  }
}

function button(text, onClick) {
  const made = element("button", { type: "button", className: "name", textContent: text });
  made.addEventListener("click", onClick);
  return made;
}

function inWords({ title, pages }, span) {
  const [first, last] = pages ?? [];
  const where = !pages ? "" : first === last ? `, page ${first}` : `, pages ${first} to ${last}`;
  const quote = span.length > QUOTED ? `${span.slice(0, QUOTED)} …` : span;
  return `${title}${where}: “${quote}”`;
}

// A run: adjacent tokens of an answer that were copied from adjacent tokens.
function runAround(entries, place) {
  if (!entries[place]?.copied_from) return null;
  let [first, last] = [place, place];
  while (follows(entries[first - 1], entries[first])) first -= 1;
  while (follows(entries[last], entries[last + 1])) last += 1;
  return { first, last };
}

function follows(before, after) {
  const [one, next] = [before?.copied_from, after?.copied_from];
  return Boolean(one && next && one.kind === next.kind && one.index === next.index && one.token + 1 === next.token);
}
