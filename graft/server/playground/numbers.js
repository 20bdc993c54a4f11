// Times of an answer, measured by this page; the final counts are the server's.

export class Numbers {
  constructor() {
    this.began = performance.now();
    this.first = this.last = null;
    this.tokens = 0;
    this.steps = 0;
    this.served = null;
  }

  add(entry) {
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens += 1;
    this.steps = entry.step;
  }

  end(served) {
    this.served = served;
    if (served?.usage) this.tokens = served.usage.completion_tokens;
  }

  get waitedSeconds() {
    return (performance.now() - (this.last ?? this.began)) / 1000;
  }

  get firstSeconds() {
    return this.first === null ? null : (this.first - this.began) / 1000;
  }

  get decodeSeconds() {
    return this.first === null ? null : (this.last - this.first) / 1000;
  }

  get totalSeconds() {
    return this.last === null ? null : (this.last - this.began) / 1000;
  }

  get perSecond() {
    return this.decodeSeconds ? (this.tokens - 1) / this.decodeSeconds : null;
  }

  get perStep() {
    const counted = this.served?.metrics?.speculative_decoding?.mean_acceptance_length;
    return counted ?? (this.steps ? (this.tokens - 1) / this.steps : null);
  }
}

const shown = (number, digits, unit = "") => (number === null ? "–" : `${number.toFixed(digits)}${unit}`);

export function showNumbers(numbers, pane) {
  const texts = {
    speed: shown(numbers.perSecond, 1),
    first: shown(numbers.firstSeconds, 2, " s"),
    step: shown(numbers.perStep, 2),
    tokens: String(numbers.tokens),
    total: shown(numbers.totalSeconds, 2, " s"),
  };
  for (const [name, text] of Object.entries(texts)) {
    pane.querySelector(`[data-number="${name}"]`).textContent = text;
  }
}
