// The sources of tokens: descriptions, classes of answer.css, and the legend.

import { byId, element } from "./page.js";

const SOURCES = {
  prompt: ["prompt", "copied from the prompt"],
  document: ["document", "copied from a document"],
  prediction: ["prediction", "copied from the prediction"],
  output: ["output", "copied from the answer itself"],
  store: ["other", "copied from a datastore"],
  pool: ["other", "copied from an earlier answer"],
  model: ["model", "drafted by the draft model"],
  head: ["head", "drafted by the draft head"],
  "short context": ["view", "drafted from a short context"],
  window: ["view", "drafted from a window of the cache"],
  SnapKV: ["view", "drafted from a part of the cache"],
  "retrieved KV": ["view", "drafted from retrieved parts of the cache"],
  both: ["both", "drafted by several drafters"],
};

export const classOf = (source) => `source-${SOURCES[source]?.[0] ?? "other"}`;

export const inWords = (source) =>
  source ? (SOURCES[source]?.[1] ?? `drafted by ${source}`) : "target";

// Tokens by source, most frequent first; null is the target.
function countSources(entries) {
  const counts = new Map();
  for (const { source } of entries) counts.set(source, (counts.get(source) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

export function showLegend(entries) {
  byId("legend-section").hidden = entries.length === 0;
  const rows = countSources(entries).map(([source, number]) => {
    const sample = element("span", { className: "sample", textContent: inWords(source) });
    if (source) sample.classList.add("drafted", classOf(source));
    const share = Math.round((100 * number) / entries.length);
    const tokens = element("span", { className: "count", textContent: ` ${number} (${share} %)` });
    return element("li", {}, sample, tokens);
  });
  byId("legend").replaceChildren(...rows);
}
