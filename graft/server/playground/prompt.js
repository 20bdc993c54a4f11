// The prompt of a question about documents, as `graft run` builds it, and the mapping from its
// characters back to the documents.

import { CodePoints } from "./code_points.js";

export class Prompt {
  constructor(question, documents) {
    this.documents = documents;
    this.parts = [];
    let content = "";
    for (const each of documents.filter((one) => one.read)) {
      const heading = `${content && "\n\n"}Document ${each.name}:\n\n`;
      const start = points(content) + points(heading);
      const words = each.text.trim();
      const before = points(each.text.slice(0, each.text.indexOf(words)));
      content += heading + words;
      this.parts.push({ document: each, start, end: start + points(words), before });
    }
    this.content = content ? `${content}\n\n${question}` : question;
  }

  // The document and characters of a trace's `copied_from`; null if it is in no document.
  passage(from) {
    if (!from || from.start === null) return null;
    if (from.kind === "document") {
      return { document: this.documents[from.index], start: from.start, end: from.end };
    }
    if (from.kind !== "message") return null;
    const part = this.parts.find((one) => one.start <= from.start && from.end <= one.end);
    if (!part) return null;
    const shift = part.before - part.start;
    return { document: part.document, start: from.start + shift, end: from.end + shift };
  }
}

const points = (text) => new CodePoints(text).length;
