// The list of documents.

import { Trouble } from "./api.js";
import { CodePoints } from "./code_points.js";
import { megabytes, readFile } from "./files.js";
import { byId, count, element } from "./page.js";

export class Documents {
  // `onShow(document or null)` shows a document.
  constructor(onShow) {
    this.all = [];
    this.shown = null;
    this.maxCharacters = Infinity;
    this.maxBytes = Infinity;
    this.onShow = onShow;
    this.#listen();
  }

  limit({ formats, max_document_characters: maxCharacters, max_body_bytes: maxBytes }) {
    this.maxCharacters = maxCharacters;
    this.maxBytes = maxBytes;
    byId("limits").textContent =
      `Formats: ${formats}; scanned pages need OCR first. ${count(maxCharacters, "character")} in total, ` +
      `${megabytes(maxBytes)} with the question. The server does not keep files.`;
  }

  async addFiles(files) {
    const troubles = [];
    for (const file of files) {
      try {
        this.add(file.name, await readFile(file, this.maxBytes));
      } catch (error) {
        if (!(error instanceof Trouble)) throw error;
        troubles.push(error.message);
      }
    }
    byId("document-trouble").textContent = troubles.join(" ");
  }

  add(name, { text, pages }) {
    const points = new CodePoints(text);
    const total = this.all.reduce((sum, each) => sum + each.points.length, points.length);
    if (total > this.maxCharacters) {
      throw new Trouble(
        `With ${name} the documents have ${count(total, "character")}; ` +
          `${count(this.maxCharacters, "character")} can be sent.`,
      );
    }
    this.all.push({ name: this.#freeName(name), text, pages, points, read: true });
    this.show(this.all.at(-1));
  }

  show(document) {
    this.shown = document;
    this.onShow(document);
    this.#draw();
  }

  #freeName(name) {
    const taken = new Set(this.all.map((each) => each.name));
    let free = name;
    for (let number = 2; taken.has(free); number++) free = `${name} (${number})`;
    return free;
  }

  #remove(document) {
    this.all = this.all.filter((each) => each !== document);
    this.show(this.shown === document ? (this.all[0] ?? null) : this.shown);
    byId("choose").focus();
  }

  #draw() {
    byId("documents").replaceChildren(...this.all.map((each) => this.#row(each)));
  }

  #row(document) {
    const name = element("button", { type: "button", className: "name", textContent: document.name });
    name.setAttribute("aria-pressed", String(document === this.shown));
    name.addEventListener("click", () => this.show(document));
    const read = element("input", { type: "checkbox", checked: document.read });
    read.addEventListener("change", () => (document.read = read.checked));
    const label = element("label", { title: "Otherwise the document is only drafted from" }, read, "in the prompt");
    const remove = element("button", { type: "button", className: "remove", textContent: "×" });
    remove.setAttribute("aria-label", `Remove ${document.name}`);
    remove.addEventListener("click", () => this.#remove(document));
    const size = element("span", { className: "hint", textContent: count(document.points.length, "character") });
    return element("li", {}, name, size, label, remove);
  }

  #listen() {
    byId("choose").addEventListener("click", () => byId("files").click());
    byId("files").addEventListener("change", async (event) => {
      await this.addFiles(event.target.files);
      event.target.value = "";
    });
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      byId("drop").classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) byId("drop").classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      byId("drop").classList.remove("over");
      this.addFiles(event.dataTransfer.files);
    });
  }
}
