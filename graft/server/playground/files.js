// Reads files as text in the browser.

import { Trouble } from "./api.js";
import { htmlText } from "./html_text.js";

export async function readFile(file, maxBytes) {
  if (file.size > maxBytes) {
    throw new Trouble(`${file.name} has ${megabytes(file.size)}; up to ${megabytes(maxBytes)} can be sent.`);
  }
  const bytes = await bytesOf(file);
  if (startsWith(bytes, "%PDF")) {
    throw new Trouble(
      `${file.name} is a PDF, which this page cannot read; save it as text first, or use graft run --doc.`,
    );
  }
  const text = decode(file.name, bytes);
  const isHtml = /\.x?html?$/i.test(file.name) || file.type === "text/html";
  const readable = isHtml ? htmlText(text) : text;
  if (!readable.trim()) throw new Trouble(`${file.name} holds no text.`);
  return readable;
}

async function bytesOf(file) {
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Trouble(`${file.name} cannot be read; drop files, not folders.`);
  }
}

function decode(name, bytes) {
  const wide = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()];
  try {
    const text = new TextDecoder(wide ?? "utf-8", { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new TypeError();
    return text.replace(/\r\n?/g, "\n");
  } catch {
    throw new Trouble(`${name} is not UTF-8 text; text, Markdown, HTML and JSON can be read.`);
  }
}

const startsWith = (bytes, text) => [...text].every((letter, i) => bytes[i] === letter.charCodeAt(0));

export const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1).replace(/\.0$/, "")} MB`;
