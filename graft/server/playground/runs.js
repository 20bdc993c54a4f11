// A run: adjacent tokens of an answer that were copied from adjacent tokens.

export function runAround(entries, place) {
  if (!entries[place]?.copied_from) return null;
  let [first, last] = [place, place];
  while (follows(entries[first - 1], entries[first])) first -= 1;
  while (follows(entries[last], entries[last + 1])) last += 1;
  return { first, last };
}

function follows(before, after) {
  const [one, next] = [before?.copied_from, after?.copied_from];
  return Boolean(one && next && one.kind === next.kind && one.index === next.index && one.token + 1 === next.token);
}
