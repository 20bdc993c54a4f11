// The server counts Unicode code points, JavaScript counts halves of some of them.

const PAIRS = /[\ud800-\udbff][\udc00-\udfff]/g;

export class CodePoints {
  constructor(text) {
    this.text = text;
    // By code points: where the characters stand that JavaScript counts twice.
    this.double = Array.from(text.matchAll(PAIRS), (pair, before) => pair.index - before);
    this.length = text.length - this.double.length;
  }

  // The text between two places.
  slice(start, end) {
    return this.text.slice(this.#index(start), this.#index(end));
  }

  #index(place) {
    let [low, high] = [0, this.double.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.double[middle] < place) low = middle + 1;
      else high = middle;
    }
    return place + low;
  }
}
