// The text of an HTML page, a line for each block. Scripts do not run and nothing is loaded.

const BLOCKS = new Set(
  ("ADDRESS ARTICLE ASIDE BLOCKQUOTE BR DD DIV DL DT FIGCAPTION FIGURE FOOTER FORM H1 H2 H3 H4 H5 H6 " +
    "HEADER HR LI MAIN NAV OL P PRE SECTION TABLE TR UL").split(" "),
);
const SILENT = "script, style, template, noscript, svg, head";

export function htmlText(source) {
  const page = new DOMParser().parseFromString(source, "text/html");
  for (const each of page.querySelectorAll(SILENT)) each.remove();
  const lines = textOf(page.body).split("\n").map((line) => line.replace(/\s+/g, " ").trim());
  return lines.join("\n").replace(/\n{3,}/g, "\n\n").trim();
}

function textOf(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\s+/g, " ");
  const inside = Array.from(node.childNodes, textOf).join("");
  if (node.nodeName === "TD" || node.nodeName === "TH") return `${inside} `;
  return BLOCKS.has(node.nodeName) ? `\n${inside}\n` : inside;
}
