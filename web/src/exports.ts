/** What is shown as a file for other programs. Pure. */

import type { Entry } from "./document";
import type { Happening } from "./views/transfers";

/** The schedule as `allfold show FILE.json` and `allfold verify FILE.json` read it. */
export const asJson = (entry: Entry): string => `${JSON.stringify(entry.schedule)}\n`;

/** A line per message; times in seconds, on the clock of steps in steps. */
export function asCsv(what: Happening): string {
  const head = "step,source,destination,chunk,moves,reduces,start,sent,arrived,landed,end,critical";
  const rows = what.transfers.map((one) =>
    [
      one.step + 1,
      one.source,
      one.destination,
      one.chunk < 0 ? "" : one.chunk,
      one.moves,
      Number(one.reduces),
      ...[one.start, one.sent, one.arrived, one.landed, one.end].map((time) => Number(time.toPrecision(9))),
      Number(one.critical),
    ].join(","),
  );
  return `${[head, ...rows].join("\n")}\n`;
}

/** In the format of Chrome's traces, which Perfetto opens: a process per rank, its lanes for sending and combining. */
export function asTrace(what: Happening): string {
  const unit = what.clock === "steps" ? 1e3 : 1e6; // a step is shown as a millisecond
  const events: unknown[] = [];
  for (const rank of new Set(what.transfers.flatMap((one) => [one.source, one.destination])))
    events.push({ ph: "M", name: "process_name", pid: rank, args: { name: `rank ${rank}` } });
  const span = (pid: number, tid: string, name: string, from: number, to: number, args: object): void =>
    void (to > from && events.push({ ph: "X", pid, tid, name, ts: from * unit, dur: (to - from) * unit, args }));
  for (const one of what.transfers) {
    const name = `${one.reduces ? "+" : ""}${one.chunk < 0 ? "" : `${one.chunk}:`}${one.source}→${one.destination}`;
    const args = { step: one.step + 1, moves: one.moves, critical: one.critical };
    span(one.source, "sending", name, one.start, one.sent, args);
    span(one.destination, "receiving", name, one.first, one.arrived, args);
    span(one.destination, "combining", name, one.landed, one.end, args);
  }
  for (const one of what.work)
    span(one.rank, "working", one.what, one.start, one.end, { step: one.step + 1, peers: one.peers });
  return `${JSON.stringify({ displayTimeUnit: "ns", traceEvents: events })}\n`;
}
