// Runs a question: one request with drafting and, to compare, one without.

import { Trouble, streamChat } from "./api.js";
import { Numbers } from "./numbers.js";
import { requestBody } from "./settings.js";

// `answers` are the drafted and perhaps the plain one; resolves to their comparison.
export async function answerAll(prompt, settings, answers, signal, onProgress) {
  const ask = (answer, i) => write(answer, requestBody(prompt, settings, { drafted: i === 0 }), signal, onProgress);
  if (settings.compare === "beside") await allOf(answers.map(ask));
  else for (const [i, answer] of answers.entries()) await ask(answer, i);
  return answers.length === 2 ? verdict(...answers) : "";
}

// Waits for all, then throws the first error.
async function allOf(promises) {
  const failed = (await Promise.allSettled(promises)).find((each) => each.status === "rejected");
  if (failed) throw failed.reason;
}

async function write(answer, body, signal, onProgress) {
  const numbers = new Numbers();
  const served = {};
  answer.begin(numbers);
  const watch = setInterval(() => answer.remindOf(numbers.waitedSeconds), 1000);
  try {
    const chunks = streamChat(body, signal, (text) => answer.say(`${text} …`));
    for await (const chunk of chunks) take(answer, chunk, served, onProgress);
    answer.say(served.finish === "length" ? "stopped at max tokens" : "complete");
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (!stopped && !(error instanceof Trouble)) throw error;
    answer.say(stopped ? "stopped" : "failed", { trouble: !stopped });
    throw error;
  } finally {
    clearInterval(watch);
    numbers.end(served);
    answer.draw();
    onProgress(answer, served);
  }
}

function take(answer, chunk, served, onProgress) {
  if (chunk.usage) Object.assign(served, { usage: chunk.usage, metrics: chunk.metrics });
  const [choice] = chunk.choices;
  if (!choice) return;
  served.finish = choice.finish_reason ?? served.finish;
  answer.cite(choice.delta.annotations ?? []);
  for (const entry of choice.trace ?? []) answer.add(entry);
  if (choice.trace) onProgress(answer, served);
  else if (choice.delta.content) answer.addPlainText(choice.delta.content);
}

function verdict(drafted, plain) {
  const faster = ratio(drafted.numbers.perSecond, plain.numbers.perSecond);
  const sooner = ratio(plain.numbers.totalSeconds, drafted.numbers.totalSeconds);
  const speeds = [faster && `${faster} x in decoding`, sooner && `${sooner} x end to end`];
  return [sameness(drafted, plain), ...speeds.filter(Boolean)].join(" · ");
}

function sameness(drafted, plain) {
  if (drafted.whole === plain.whole) return `The same text, ${drafted.numbers.tokens} tokens`;
  const place = drafted.entries.findIndex((entry, i) => entry.token !== plain.entries[i]?.token);
  return `The texts differ from token ${place + 1} on`;
}

const ratio = (one, other) => (one && other ? (one / other).toFixed(2) : null);
