// The comparison of two answers.

export function verdict(drafted, plain) {
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
