// Connects the parts of the page.

import { Answer } from "./answer.js";
import { Trouble, hasKey, serverInfo } from "./api.js";
import { answerAll } from "./asking.js";
import { Documents } from "./documents.js";
import { askForKey } from "./key.js";
import { Looking } from "./looking.js";
import { byId, count } from "./page.js";
import { showPlot, stepsOf } from "./plot.js";
import { Prompt } from "./prompt.js";
import { offerMethods, readSettings } from "./settings.js";
import { showLegend } from "./sources.js";
import { startTheme } from "./theme.js";
import { Viewer } from "./viewer.js";

const viewer = new Viewer();
const documents = new Documents((document) => viewer.show(document));
const looking = new Looking(viewer, documents);
let running = null; // an AbortController while requests run
let redraw = () => {};

async function connect() {
  try {
    const info = await serverInfo();
    byId("model").textContent = `${info.model} · context ${count(info.max_model_len, "token")} · Graft ${info.version}`;
    documents.limit(info);
    offerMethods(info);
    byId("trouble").textContent = "";
  } catch (error) {
    await handle(error, connect);
  }
}

// Asks for a missing key and retries; shows other errors.
async function handle(error, again) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Trouble)) throw error;
  const refused = error.status === 401;
  const why = refused && !hasKey() ? "" : error.message; // no complaint before a key was entered
  byId("trouble").textContent = why;
  if (refused && (await askForKey(why))) await again();
}

function freshAnswers(settings) {
  const titles = [`Drafted: ${byId("method").selectedOptions[0]?.textContent ?? "default"}`];
  if (settings.compare !== "no") titles.push("Plain: one token per step");
  const answers = titles.map((title) => new Answer(title, looking.listeners));
  byId("panes").replaceChildren(...answers.map((answer) => answer.element));
  return answers;
}

async function ask() {
  if (running) return;
  const settings = readSettings();
  const prompt = new Prompt(byId("question").value.trim(), [...documents.all]);
  const answers = freshAnswers(settings);
  begin(prompt, answers);
  try {
    const said = await answerAll(prompt, settings, answers, running.signal, progress(answers[0]));
    byId("verdict").textContent = said;
    byId("status").textContent = summary(answers[0]);
  } catch (error) {
    end();
    byId("status").textContent = error.name === "AbortError" ? "Stopped." : "";
    await handle(error, () => connect().then(ask));
  } finally {
    end();
  }
}

function begin(prompt, answers) {
  running = new AbortController();
  looking.begin(prompt);
  byId("go").disabled = true;
  byId("stop").disabled = false;
  byId("trouble").textContent = byId("verdict").textContent = "";
  byId("status").textContent = "Running; all numbers are measured now.";
  showLegend([]);
  showPlot([]);
  redraw = () => {};
  answers[0].element.scrollIntoView?.({ block: "nearest" });
}

function end() {
  running = null;
  byId("go").disabled = false;
  byId("stop").disabled = true;
}

// Draws legend and plot of the drafted answer, at most once per frame.
function progress(drafted) {
  let waiting = false;
  return (answer, served) => {
    if (answer !== drafted || waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      redraw = () => showPlot(stepsOf(drafted.entries, served.metrics?.speculative_decoding.per_step_drafted));
      redraw();
      showLegend(drafted.entries);
    });
  };
}

function summary({ numbers, entries }) {
  const accepted = entries.filter((entry) => entry.source).length;
  const speed = numbers.perSecond === null ? "" : ` at ${numbers.perSecond.toFixed(1)} tokens/s`;
  return `Answered: ${count(numbers.tokens, "token")}${speed}, ${accepted} of them accepted draft tokens.`;
}

async function useExample() {
  const answer = await fetch("/playground/example.md");
  await documents.addFiles([new File([await answer.blob()], "workshop.md")]);
  byId("question").value ||= "List all machines with their room and the person responsible.";
  byId("question").focus();
}

function start() {
  startTheme();
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("example").addEventListener("click", useExample);
  byId("key-button").addEventListener("click", async () => (await askForKey()) && connect());
  addEventListener("resize", () => redraw());
  connect();
}

start();
