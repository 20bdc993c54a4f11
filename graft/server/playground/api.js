// Requests to this server, with the API key if there is one. The key is never part of a URL.

const KEY = "graft-key";

export class Trouble extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function reached(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached. Is it still running?");
  }
  if (!answer.ok) throw new Trouble(await reason(answer), answer.status);
  return answer;
}

async function reason(answer) {
  try {
    return sentence((await answer.json()).error.message);
  } catch {
    return `The server answered with status ${answer.status}.`;
  }
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;

export async function serverInfo() {
  return (await reached("/server_info", { headers: headers() })).json();
}

// The text of a file, and the first character of each page if it has pages.
export async function documentText(file) {
  const title = encodeURIComponent(file.name);
  const answer = await reached(`/v1/documents/text?title=${title}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream", ...headers() },
    body: file,
  });
  return answer.json();
}

// The chunks of a streamed chat; a Trouble if the stream ends early.
// `onProgress(text)`: of the prefill.
export async function* streamChat(body, signal, onProgress) {
  const answer = await reached("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(answer.body.getReader(), onProgress)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Trouble(sentence(chunk.error.message));
    yield chunk;
  }
  throw new Trouble("The connection ended in the middle of the answer; the server may have stopped.");
}

async function* events(reader, onComment) {
  const decoder = new TextDecoder();
  let rest = "";
  while (true) {
    const { done, value } = await read(reader);
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield line.slice(6);
      else if (line.startsWith(": ")) onComment(line.slice(2));
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { done: true };
  }
}
