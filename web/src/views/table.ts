/**
 * The views of the page, in the order of their tabs. Tabs, keys, help and the address are made from this table, so a new
 * view is its component, an entry here, and its name and title in `VIEWS` of `src/allfold/view/page.py` (a test there
 * holds both tables equal).
 */

import type { JSX } from "preact";
import type { Entry, PageData } from "../document";
import { Bytes } from "./bytes";
import { Code } from "./code";
import { Holds } from "./holds";
import { Race } from "./race";
import { Time } from "./time";
import { Wins } from "./wins";

export interface View {
  name: string;
  title: string;
  /** What it shows, for the help. */
  summary: string;
  /** The key that opens it. */
  key: string;
  /** `step` is the step that is told; if `moving`, its moves are on their way. */
  draw: (props: { entry: Entry; step: number; moving?: boolean }) => JSX.Element;
  /** What it draws, all of which Python has to write; the view itself says if something is missing from a document. */
  needs: readonly (keyof Entry | keyof PageData)[];
  /** What the player moves in it: the step, the clock of the race, or nothing. */
  plays: "steps" | "race" | "nothing";
  /** Whether it needs the whole width, so that the facts go below it. */
  broad?: boolean;
}

export const VIEWS = [
  {
    name: "holds",
    title: "Who holds what",
    summary: "every chunk on every rank, and the moves that change it",
    key: "1",
    draw: Holds,
    needs: ["schedule", "starts", "ends", "proof"],
    plays: "steps",
  },
  {
    name: "time",
    title: "Space and time",
    summary: "every message between two ranks, on one of three clocks",
    key: "2",
    draw: Time,
    needs: ["schedule", "timeline"],
    plays: "steps",
  },
  {
    name: "bytes",
    title: "Where the bytes go",
    summary: "the topology, and what crosses each of its links",
    key: "3",
    draw: Bytes,
    needs: ["schedule", "topology", "links", "pairs", "bottleneck", "cut"],
    plays: "steps",
  },
  {
    name: "race",
    title: "Race",
    summary: "algorithms against each other, and the lower bound",
    key: "4",
    draw: Race,
    needs: ["schedule", "starts", "ends", "timeline", "modelled", "counts"],
    plays: "race",
    broad: true,
  },
  {
    name: "wins",
    title: "Who wins where",
    summary: "the fastest algorithm for every size and number of ranks",
    key: "5",
    draw: Wins,
    needs: ["table", "measured"],
    plays: "nothing",
    broad: true,
  },
  {
    name: "code",
    title: "Code and picture",
    summary: "the lines that made the moves of a step",
    key: "6",
    draw: Code,
    needs: ["schedule", "code", "sources", "lines"],
    plays: "steps",
    broad: true,
  },
] as const satisfies readonly View[];

export type ViewName = (typeof VIEWS)[number]["name"];

export function viewOf(name: ViewName): View {
  return VIEWS.find((one) => one.name === name)!;
}

/** The view with this name, if there is one. */
export function viewNamed(name: string | null): ViewName | null {
  return VIEWS.find((one) => one.name === name)?.name ?? null;
}
