// Reads files as text: the server knows the formats, and keeps nothing.

import { Trouble, documentText } from "./api.js";

export async function readFile(file, maxBytes) {
  if (file.size > maxBytes) {
    throw new Trouble(`${file.name} has ${megabytes(file.size)}; up to ${megabytes(maxBytes)} can be sent.`);
  }
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Trouble(`${file.name} cannot be read; drop files, not folders.`);
  }
  return documentText(file);
}

export const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1).replace(/\.0$/, "")} MB`;
