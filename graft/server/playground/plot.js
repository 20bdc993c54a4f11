// Accepted draft tokens per step, as bars and as a table.

import { byId, element } from "./page.js";
import { classOf, inWords } from "./sources.js";

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, LEFT, BOTTOM, TOP] = [150, 28, 22, 8];
const WIDEST = 28; // pixels of a bar

// For each step the sources of its accepted tokens, and the number of draft tokens once known.
export function stepsOf(entries, drafted = null) {
  const steps = [];
  for (const entry of entries) {
    if (entry.step === 0) continue; // the prefill has no draft
    const step = (steps[entry.step - 1] ??= { accepted: [], drafted: drafted?.[entry.step - 1] ?? null });
    if (entry.source) step.accepted.push(entry.source);
  }
  return Array.from(steps, (step) => step ?? { accepted: [], drafted: null });
}

export function showPlot(steps) {
  byId("plot-section").hidden = steps.length === 0;
  if (!steps.length) return;
  byId("plot").replaceChildren(drawing(steps, byId("plot").clientWidth || 600));
  byId("steps").tBodies[0].replaceChildren(...steps.map(row));
}

function row(step, i) {
  const by = [...new Set(step.accepted)].map(inWords).join(", ");
  const cells = [i + 1, step.drafted ?? "–", step.accepted.length, by || "–"];
  return element("tr", {}, ...cells.map((cell) => element("td", { textContent: String(cell) })));
}

function drawing(steps, width) {
  const max = Math.max(1, ...steps.map((step) => step.accepted.length));
  const mean = steps.reduce((sum, step) => sum + step.accepted.length, 0) / steps.length;
  const wide = Math.min(WIDEST, (width - LEFT) / steps.length);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / max);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  svg.setAttribute(
    "aria-label",
    `${steps.length} steps, ${mean.toFixed(2)} accepted draft tokens per step on average, maximum ${max}`,
  );
  const end = LEFT + wide * steps.length;
  svg.append(
    ...steps.flatMap((step, i) => bars(step, i, { x: LEFT + i * wide, wide, y })),
    shape("line", { class: "axis", x1: LEFT, x2: end, y1: y(0), y2: y(0) }),
    shape("line", { class: "mean", x1: LEFT, x2: end, y1: y(mean), y2: y(mean) }),
    label(String(max), LEFT - 6, y(max) + 8, "end"),
    label("0", LEFT - 6, y(0) + 3, "end"),
    label("step 1", LEFT, HEIGHT - 4, "start"),
  );
  if (end - LEFT > 180) svg.append(label(String(steps.length), end, HEIGHT - 4, "end"));
  if (end - LEFT > 320) svg.append(label(`– – mean ${mean.toFixed(2)}`, (LEFT + end) / 2, HEIGHT - 4, "middle"));
  return svg;
}

function bars(step, i, { x, wide, y }) {
  return step.accepted.map((source, place) => {
    const gap = wide > 3 ? 1 : 0;
    const bar = shape("rect", {
      class: `bar ${classOf(source)}`,
      x,
      y: y(place + 1),
      width: Math.max(wide - gap, 0.5),
      height: y(place) - y(place + 1) - gap,
    });
    const of = step.drafted === null ? "" : ` of ${step.drafted}`;
    const title = shape("title");
    title.textContent = `step ${i + 1}: ${step.accepted.length}${of} draft tokens accepted`;
    bar.append(title);
    return bar;
  });
}

function shape(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function label(text, x, y, anchor) {
  const made = shape("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}
