/** Two texts line by line: what only the first has, what only the second has, what both have. Pure. */

export interface Row {
  /** The numbers of the line in the one text and in the other, from 1; null where it is not there. */
  left: number | null;
  right: number | null;
  text: string;
}

const MOST = 4_000_000; // cells of the table

/** Common lines are kept where the longest common subsequence has them. */
export function diffOf(one: string, other: string): Row[] {
  const [a, b] = [one.split("\n"), other.split("\n")];
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first++;
  let tail = 0;
  while (tail < a.length - first && tail < b.length - first && a[a.length - 1 - tail] === b[b.length - 1 - tail])
    tail++;
  const [m, n] = [a.length - first - tail, b.length - first - tail];
  const rows: Row[] = a.slice(0, first).map((text, i) => ({ left: i + 1, right: i + 1, text }));
  const removed = (i: number): number => rows.push({ left: first + i + 1, right: null, text: a[first + i] });
  const added = (j: number): number => rows.push({ left: null, right: first + j + 1, text: b[first + j] });
  let [i, j] = [0, 0];
  if (m * n <= MOST) {
    // longest[i][j]: the common lines of what follows line i of the one and line j of the other.
    const longest = new Uint32Array((m + 1) * (n + 1));
    for (let x = m - 1; x >= 0; x--)
      for (let y = n - 1; y >= 0; y--)
        longest[x * (n + 1) + y] =
          a[first + x] === b[first + y]
            ? longest[(x + 1) * (n + 1) + y + 1] + 1
            : Math.max(longest[(x + 1) * (n + 1) + y], longest[x * (n + 1) + y + 1]);
    while (i < m && j < n) {
      if (a[first + i] === b[first + j]) rows.push({ left: first + ++i, right: first + ++j, text: a[first + i - 1] });
      else if (longest[(i + 1) * (n + 1) + j] >= longest[i * (n + 1) + j + 1]) removed(i++);
      else added(j++);
    }
  }
  while (i < m) removed(i++);
  while (j < n) added(j++);
  for (let k = tail; k > 0; k--) rows.push({ left: a.length - k + 1, right: b.length - k + 1, text: a[a.length - k] });
  return rows;
}
