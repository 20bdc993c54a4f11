// Who guesses tokens: names for people, and classes of answer.css.

const SOURCES = {
  prompt: ["prompt", "copied from the prompt"],
  document: ["document", "copied from a document"],
  prediction: ["prediction", "copied from the prediction"],
  output: ["output", "copied from the answer itself"],
  store: ["other", "found in a datastore"],
  model: ["model", "guessed by the draft model"],
  head: ["head", "guessed by the draft head"],
  "short context": ["view", "guessed from a short context"],
  window: ["view", "guessed from a window of the cache"],
  SnapKV: ["view", "guessed from a part of the cache"],
  "retrieved KV": ["view", "guessed from retrieved parts of the cache"],
  both: ["both", "guessed by several drafters"],
};

export const classOf = (source) => `source-${SOURCES[source]?.[0] ?? "other"}`;

export const inWords = (source) =>
  source ? (SOURCES[source]?.[1] ?? `guessed by ${source}`) : "written by the model itself";

// How many tokens each source guessed, the most first; null is the model itself.
export function countSources(entries) {
  const counts = new Map();
  for (const { source } of entries) counts.set(source, (counts.get(source) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}
