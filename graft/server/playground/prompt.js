// A question, the documents to answer from, and texts that are only drafted from.

export class Prompt {
  constructor(question, documents) {
    this.question = question;
    this.documents = documents.filter((each) => each.read);
    this.draftTexts = documents.filter((each) => !each.read);
  }

  // The same of an annotation.
  cited({ url }) {
    const [, index, start, end] = url.match(/^document:(\d+)#char=(\d+),(\d+)$/).map(Number);
    return this.passage({ kind: "document", index, start, end });
  }

  // The document and characters of a trace's `copied_from`; null if it is in no document.
  passage(from) {
    const texts = { document: this.documents, draft_text: this.draftTexts }[from?.kind];
    const document = texts?.[from.index]; // none for a document of the server's corpus
    return document ? { document, start: from.start, end: from.end } : null;
  }
}
