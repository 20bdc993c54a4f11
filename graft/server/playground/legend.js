// Tokens of the drafted answer by source.

import { byId, element } from "./page.js";
import { classOf, countSources, inWords } from "./sources.js";

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
