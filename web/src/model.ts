/** The α-β-γ model: the time of an algorithm at any size, from the counts of its schedule. Pure. */

import type { TableRow } from "./document";

export interface Figures {
  /** Seconds a message takes besides its bytes (α). */
  latency: number;
  /** Bytes per second through a port (1/β) and through a rank's arithmetic (1/γ). */
  bandwidth: number;
  reduction: number;
}

/** T = rounds · α + bytes of the busiest port · β + bytes that the busiest rank combines · γ. */
export function timeOf(row: TableRow, size: number, figures: Figures): number {
  return (
    row.rounds * figures.latency +
    (row.busiest_port_bytes * size) / figures.bandwidth +
    (row.reduced_bytes * size) / figures.reduction
  );
}

/** The fastest row; at a tie, the earlier one. */
export function winner(rows: TableRow[], size: number, figures: Figures): TableRow | null {
  let best: TableRow | null = null;
  let least = Infinity;
  for (const row of rows) {
    const time = timeOf(row, size, figures);
    if (time < least * (1 - 1e-12)) [best, least] = [row, time];
  }
  return best;
}

export interface Reign {
  algorithm: string;
  from: number;
  to: number;
}

/** Who wins from which size to which, along sizes in ascending order. */
export function reigns(rows: TableRow[], sizes: number[], figures: Figures): Reign[] {
  const found: Reign[] = [];
  for (const size of sizes) {
    const best = winner(rows, size, figures);
    if (!best) continue;
    const last = found[found.length - 1];
    if (last && last.algorithm === best.algorithm) last.to = size;
    else {
      if (last) last.to = size;
      found.push({ algorithm: best.algorithm, from: size, to: size });
    }
  }
  return found;
}
