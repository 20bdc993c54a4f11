// The settings form, and the request bodies.

import { byId, element } from "./page.js";

export function offerMethods(info) {
  const usual = element("option", { value: "", textContent: `${info.default_method} (default)` });
  const others = info.methods
    .filter((name) => name !== "plain" && name !== info.default_method)
    .map((name) => element("option", { value: name, textContent: name }));
  byId("method").replaceChildren(usual, ...others);
  byId("max-tokens").max = info.max_model_len - 1;
}

export function readSettings() {
  const typed = byId("seed").value;
  return {
    method: byId("method").value || null,
    compare: byId("compare").value,
    temperature: Number(byId("temperature").value),
    maxTokens: Number(byId("max-tokens").value),
    seed: typed === "" ? randomNumber() : Number(typed),
  };
}

// A request with or without drafting. Compared requests do not share the prefix cache.
export function requestBody(prompt, settings, { drafted }) {
  return {
    messages: [{ role: "user", content: prompt.question }],
    documents: titled(prompt.documents),
    draft_texts: titled(prompt.draftTexts),
    temperature: settings.temperature,
    max_tokens: settings.maxTokens,
    seed: settings.seed,
    stream: true,
    stream_options: { include_usage: true },
    speculative: { enabled: drafted, method: drafted ? settings.method : null, trace: true },
    cache_salt: settings.compare === "no" ? null : `playground ${randomNumber()}`,
  };
}

const titled = (documents) => documents.map(({ name, text, pages }) => ({ title: name, text, ...(pages && { pages }) }));
const randomNumber = () => crypto.getRandomValues(new Uint32Array(1))[0];
