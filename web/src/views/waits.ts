/** Why a simulated message went when it did: what it waited for, what waited for it, and how much later it could have been. Pure. */

import { remembered } from "../remembered";
import { replayOf } from "../source";
import type { Entry } from "../document";
import { seconds } from "../words";
import type { Happening, Transfer } from "./transfers";

type Reason = "data" | "port" | "receiver" | "room" | "work";

/** What a message waited for last before it left, or before it was combined. */
interface Link {
  /** The message that ended the wait, as an index into the messages. */
  of: number;
  reason: Reason;
}

/** The same, and when it was over. */
interface Held extends Link {
  at: number;
}

interface Wait {
  /** The seconds that it waited for its data, then for ports or for its turn. */
  data: number;
  port: number;
  before: Link | null;
  /** The message that had to wait for this one, soonest of all. */
  after: number | null;
  /** How much later it could end, with everything else in its order, before all ends later. */
  slack: number;
}

const CLOSE = 1e-9; // of the duration: moments that are the same

/** By message, in the order of the simulation's columns. */
export function waitsOf(what: Happening, width: number): Wait[] {
  const { transfers, duration } = what;
  const eps = duration * CLOSE;
  const order = transfers.map((_, i) => i).sort((a, b) => transfers[a].start - transfers[b].start || a - b);
  /** What must be over before each message leaves (`out`), and before it lands. */
  const leaves: Held[][] = transfers.map(() => []);
  const lands: Held[][] = transfers.map(() => []);
  // Data: who last wrote into a cell, and who has read it since, step by step.
  const written = new Map<number, number[]>();
  const read = new Map<number, number[]>();
  const bySteps = transfers.map((_, i) => i).sort((a, b) => transfers[a].step - transfers[b].step || a - b);
  for (let first = 0; first < bySteps.length; ) {
    let last = first;
    while (last < bySteps.length && transfers[bySteps[last]].step === transfers[bySteps[first]].step) last++;
    const group = bySteps.slice(first, last);
    for (const i of group) {
      for (const cell of cellsOf(transfers[i], width, "source"))
        for (const one of written.get(cell) ?? []) leaves[i].push({ of: one, at: transfers[one].end, reason: "data" });
      for (const cell of cellsOf(transfers[i], width, "destination")) {
        for (const one of written.get(cell) ?? []) lands[i].push({ of: one, at: transfers[one].end, reason: "room" });
        for (const one of read.get(cell) ?? [])
          if (one !== i) lands[i].push({ of: one, at: transfers[one].sent, reason: "room" });
      }
    }
    for (const i of group)
      for (const cell of cellsOf(transfers[i], width, "source")) read.set(cell, [...(read.get(cell) ?? []), i]);
    const fresh = new Map<number, number[]>();
    for (const i of group)
      for (const cell of cellsOf(transfers[i], width, "destination")) fresh.set(cell, [...(fresh.get(cell) ?? []), i]);
    for (const [cell, writers] of fresh) {
      const added = writers.every((i) => transfers[i].reduces);
      // What is added to a cell leaves those who wrote before in it; a copy replaces them.
      written.set(cell, added ? [...(written.get(cell) ?? []), ...writers] : writers);
      read.set(cell, []);
    }
    first = last;
  }
  // Ports and arithmetic: one message after the other.
  const [out, into, combining] = [new Map<number, number>(), new Map<number, number>(), new Map<number, number>()];
  for (const i of order) {
    const one = transfers[i];
    if (one.source === one.destination) continue;
    const [before, there] = [out.get(one.source), into.get(one.destination)];
    if (before !== undefined) leaves[i].push({ of: before, at: transfers[before].sent, reason: "port" });
    if (there !== undefined) leaves[i].push({ of: there, at: transfers[there].sent, reason: "receiver" });
    out.set(one.source, i);
    into.set(one.destination, i);
  }
  for (const i of transfers.map((_, i) => i).sort((a, b) => transfers[a].landed - transfers[b].landed || a - b)) {
    const one = transfers[i];
    const before = combining.get(one.destination);
    if (before !== undefined) lands[i].push({ of: before, at: transfers[before].end, reason: "work" });
    if (one.end > one.landed) combining.set(one.destination, i);
  }
  const lastOf = (links: Held[], upto: number): Held | null =>
    links
      .filter((one) => one.at <= upto + eps)
      .reduce<Held | null>((best, one) => (best && best.at >= one.at ? best : one), null);
  const slack = transfers.map((one) => duration - one.end);
  const after: (number | null)[] = transfers.map(() => null);
  const soonest = transfers.map(() => Infinity);
  const found: Wait[] = new Array<Wait>(transfers.length);
  // From the end: those that wait are known before those that they wait for.
  const late = transfers
    .map((_, i) => i)
    .sort((a, b) => transfers[b].end - transfers[a].end || transfers[b].start - transfers[a].start || b - a);
  for (const i of late) {
    const one = transfers[i];
    const [free, landing] = [lastOf(leaves[i], one.start), lastOf(lands[i], one.landed)];
    const holds = (links: Held[], until: number): void => {
      for (const link of links) {
        if (link.at > until + eps) continue;
        const gap = Math.max(0, until - link.at);
        slack[link.of] = Math.min(slack[link.of], slack[i] + gap);
        if (gap < soonest[link.of]) [soonest[link.of], after[link.of]] = [gap, i];
      }
    };
    holds(leaves[i], free?.at ?? 0);
    holds(lands[i], one.landed);
    const data =
      lastOf(
        leaves[i].filter((link) => link.reason === "data"),
        one.start,
      )?.at ?? 0;
    // It may be held up at its destination, too: there it counts only if it did wait.
    const heldThere = landing !== null && one.landed > one.arrived + eps && landing.at >= one.landed - eps;
    const before = heldThere ? landing : free;
    found[i] = {
      data,
      port: Math.max(0, (free?.at ?? 0) - data) + (heldThere ? one.landed - one.arrived : 0),
      before: before && { of: before.of, reason: before.reason },
      after: null,
      slack: 0,
    };
  }
  found.forEach((one, i) => {
    one.slack = Math.max(0, slack[i] < eps ? 0 : slack[i]);
    one.after = after[i];
  });
  return found;
}

/** The cells that a message reads or writes, by number. */
function cellsOf(one: Transfer, width: number, side: "source" | "destination"): number[] {
  const chunks = side === "source" ? one.reads : one.writes;
  return chunks.map((chunk) => one[side] * width + chunk);
}

/** Of the simulation of an entry; null where there is none. */
export const waitsOfEntry = remembered((entry: Entry, what: Happening) =>
  what.clock === "modelled" ? waitsOf(what, replayOf(entry).width) : null,
);

const REASONS: Record<Reason, (before: Transfer) => string> = {
  data: (before) => `for the data that rank ${before.source} sent in step ${before.step + 1}`,
  port: (before) => `for its own port, which was busy sending to rank ${before.destination}`,
  receiver: (before) => `for rank ${before.destination}, which was receiving from rank ${before.source}`,
  room: (before) =>
    `for its place, which the message from rank ${before.source} to rank ${before.destination} still used`,
  work: (before) => `for rank ${before.destination}, which was still combining what rank ${before.source} sent`,
};

/** `It waited until 31 µs for the data that rank 2 sent in step 1. It could end 4 µs later …` */
export function waitInWords(wait: Wait, transfers: Transfer[]): string {
  const before = wait.before && transfers[wait.before.of];
  const why = before
    ? `It waited ${REASONS[wait.before!.reason](before)}${wait.port > 0 ? ` (${seconds(wait.data)} for data, ${seconds(wait.port)} for others)` : ""}.`
    : "It waited for nothing.";
  const slack =
    wait.slack > 0
      ? `It could end ${seconds(wait.slack)} later without delaying the end.`
      : "It has no slack: if it ends later, everything does.";
  return `${why} ${slack}`;
}
