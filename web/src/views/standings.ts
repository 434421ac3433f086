/** Who stands where: the times of a case by size, as planned on the topology, or what if it were another network. */

import type { Case } from "../document";
import { contendersOf, winnerOf, type Figures } from "../model";

export interface Standings {
  ranks: number;
  sizes: number[];
  names: string[];
  /** By size: seconds by algorithm, and the winner. */
  seconds: Map<string, number>[];
  winners: string[];
}

/** As `allfold plan` says on the topology, or, with figures, on a flat network with these. */
export function standingsOf(one: Case, figures: Figures | null): Standings {
  const names = one.algorithms.map(({ name }) => name);
  if (!figures) {
    const known = one.algorithms.filter(({ times }) => times.length === one.sizes.length);
    return {
      ranks: one.ranks,
      sizes: one.sizes,
      names,
      seconds: one.sizes.map((_, i) => new Map(known.map(({ name, times }) => [name, times[i]]))),
      winners: one.winners,
    };
  }
  const contenders = one.sizes.map((size) => contendersOf(one.algorithms, size, figures));
  return {
    ranks: one.ranks,
    sizes: one.sizes,
    names,
    seconds: contenders.map((all) => new Map(all.map(({ name, seconds }) => [name, seconds]))),
    winners: contenders.map((all) => winnerOf(all)?.name ?? ""),
  };
}

/** How many times slower than the winner, by size. */
export function ratiosOf(standings: Standings, name: string): (number | null)[] {
  return standings.seconds.map((by, i) => {
    const [own, best] = [by.get(name), by.get(standings.winners[i])];
    return own === undefined || !best ? null : Math.max(1, own / best);
  });
}
