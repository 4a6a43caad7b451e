// What the last minutes were like, as far as this page has seen them.

const POINTS = 180;
const series = new Map<string, number[][]>();
const seen = new Map<string, number>();

/** Adds a point, unless the same look was added already; all points, the times first. */
export function history(name: string, takenMs: number, values: (number | null)[]): number[][] {
  const known = series.get(name) ?? [[], ...values.map(() => [])];
  if (seen.get(name) === takenMs) return known;
  seen.set(name, takenMs);
  const next = known.map((points, index) => {
    const value = index === 0 ? takenMs / 1000 : values[index - 1];
    return [...points, value as number].slice(-POINTS);
  });
  series.set(name, next);
  return next;
}
