/** What Python puts into the page: one JSON document. `src/allfold/view/page.py` writes it. */

export type Clock = "steps" | "modelled" | "measured";

export interface PageState {
  collective: string;
  algorithm: string;
  ranks: number;
  root: number | null;
  topology: string;
  size: number;
  /** Steps that are done: 0 is before the first one. */
  step: number;
  /** The name of a view: see `views/table.ts`. */
  view: string;
  clock: Clock;
  /** Who races against the algorithm; null if the page chooses, by what they take. */
  rivals: string[] | null;
  /** The numbers that the reader typed, one row per rank, and how they are combined; null for the page's own. */
  values: string | null;
  op: string;
  /** What it is compared with: an algorithm, perhaps with a topology and a size, or "measured"; null if with nothing. */
  against: string | null;
  /** What is lit: the limiting cut, or the k-th tree, counted from 1. */
  follow: "cut" | number | null;
}

/** [reduces, chunk, source, destination, into, site] */
export type MoveRow = [number, number, number, number, number, number];

export interface ScheduleJson {
  collective: string;
  algorithm: string;
  ranks: number;
  root: number | null;
  chunks: number;
  scratch: number;
  sites: string[];
  steps: MoveRow[][];
}

export interface Proof {
  ok: boolean;
  message: string;
  rank?: number | null;
  chunk?: number | null;
  step?: number | null;
  site?: string | null;
  facts: string[];
}

interface Bounds {
  rounds: number;
  messages: number;
  bytes: number;
  busiest_port_bytes: number;
}

interface Counts extends Bounds {
  steps: number;
  busiest_port_messages: number;
}

/** Columns with one entry per message; seconds since the beginning. */
interface TimelineJson {
  duration: number;
  /** The first move that a message carries, and how many. */
  move: number[];
  moves: number[];
  segment: number[];
  ready: number[];
  start: number[];
  sent: number[];
  arrived: number[];
  landed: number[];
  end: number[];
  critical: number[];
  /** The seconds of the critical path, by what it spends them on. */
  parts?: Record<string, number>;
  idle: number[];
}

/** Where a link is in its network (Python's `Link.place`). Its keys say what kind of link it is and how it is drawn. */
export type Place =
  | { rank: number; way: "out" | "in" } // a port
  | { host: number } // a bus
  | { host: number; card: number; leaf?: number; way: "out" | "in" } // a network card, and the leaf it connects to
  | { leaf: number; uplink: number; way: "up" | "down" }
  | { node: number; dimension: number; down: number } // a cable of a torus or a mesh
  | { group: number; router: number; to: number } // a cable between two routers of a group
  | { group: number; cable: number } // a cable to another group
  | { from: number; to: number } // a cable from one rank to another
  | { rank: number; switch: number; way: "out" | "in" }; // a cable between a rank and a switch of its host

export interface LinkJson {
  name: string;
  kind: string;
  /** Absent if unknown: for links that were written by hand. */
  place?: Place;
  bytes: number;
  /** The seconds that its bytes take in total. */
  seconds: number;
  latency: number;
  /** Bytes per second, or "inf". */
  bandwidth: number | "inf";
}

/** Where ranks sit, and the latency and bandwidth between two of them. */
export interface TopologyJson {
  name: string;
  ranks: number;
  host: number[];
  overhead: number;
  reduction: number | "inf";
  latency: number;
  bandwidth: number | "inf";
  source: string;
  parameters?: Record<string, unknown>;
}

/** Ranks that can send no more to the rest (or receive from it) than some links let through: Python's `TightestCut`. */
export interface Cut {
  ranks: number[];
  links: string[];
  bandwidth: number;
  /** What must cross it, as a multiple of the buffer. */
  share: number;
  receives: boolean;
  sentence: string;
  seconds: number;
}

/** Bytes between pairs of ranks, and the links that they take, as indices into `links`. */
interface PairsJson {
  source: number[];
  destination: number[];
  bytes: number[];
  links: number[][];
}

export interface TraceEvent {
  call?: number;
  rank: number;
  step: number;
  segment: number;
  instruction: number;
  what: string;
  memory?: string;
  peers: number[];
  bytes: number;
  start: number;
  waited: number;
  worked: number;
}

export interface CodeFile {
  file: string;
  first: number;
  text: string;
}

/** A part of an algorithm, with a sentence for each of its steps; `first` is an index. */
export interface Phase {
  name: string;
  first: number;
  steps: number;
  sentences: string[];
}

/** What Python says of the collective: `Collective.facts` in `src/allfold/collectives.py`. */
export interface CollectiveFacts {
  reduces: boolean;
  sliced: boolean;
  exchanges: boolean;
  idempotent: boolean;
  carries_data: boolean;
  brings_slice: boolean;
  root_brings: boolean;
  /** By rank, who contributes to its result: the first rank and the one after the last; null: everybody does. */
  contributors: [number, number][] | null;
}

export interface Entry {
  key: string;
  schedule: ScheduleJson;
  promise: CollectiveFacts;
  starts: number[][];
  ends: number[][];
  /** The numbers that its ranks bring, as `1 2; 3 4`, one row per rank; without them, the page's own example. */
  values?: string | null;
  sources: { site: string; file: string; line: number }[];
  code: CodeFile | null;
  /** Other files that made moves, and the generator's line in `code` at each step. */
  also?: CodeFile[];
  lines?: number[];
  proof: Proof;
  phases: Phase[];
  counts: Counts;
  bounds: Bounds;
  topology?: TopologyJson | null;
  modelled?: { seconds: number; segments: number; parts: Record<string, number>; least: number } | null;
  timeline?: TimelineJson | null;
  links?: LinkJson[] | null;
  pairs?: PairsJson | null;
  cut?: Cut | null;
  bottleneck?: { link: string; sentence: string } | null;
  recording?: { events: TraceEvent[] } | null;
  /** In files: the schedule as MSCCL XML, or why there is none. The studio writes it when it is asked for. */
  msccl?: { text?: string; error?: string };
}

/** An algorithm on a network of ports only, as shares of the buffer: see `src/allfold/view/wins.py`. */
export interface Flat {
  /** Kinds of steps: how many, messages, bytes, combined, combined locally. */
  steps: number[][];
  /** Messages and bytes of ports over all steps. */
  ports: number[][];
  combined: number;
  largest: number;
}

/** Who wins for one number of ranks: what `allfold plan` says, by size, and what the "what if" needs. */
export interface Case {
  collective: string;
  topology: string;
  ranks: number;
  sizes: number[];
  /** Empty without a topology, like `times`. */
  winners: string[];
  algorithms: { name: string; times: number[]; flat: Flat }[];
}

export interface MeasuredPoint {
  collective: string;
  algorithm: string;
  ranks: number;
  size: number;
  seconds: number;
  memory: string;
}

interface TopologyChoice {
  name: string;
  summary: string;
  topology: TopologyJson;
}

/** The proof of a schedule for one number of ranks, or what is wrong with the first root that is. */
export interface Verdict extends Proof {
  ranks: number;
  root: number | null;
}

/** A script that holds a part of Python: its file, and how many bytes it loads. */
export interface Piece {
  file: string;
  bytes: number;
}

export interface SiteData {
  /** By the names that the worker knows them by. */
  pieces: Record<string, Piece>;
  /** Other pages of the site, by what their links say. */
  links: Record<string, string>;
  /** The code that the page begins with, and its proofs. */
  first?: Entry;
  verdicts?: Verdict[];
  /** The script with the lessons. */
  course: Piece;
}

/** The lessons as every learner finds them; `src/allfold/studio/lessons.py` makes the parts. */
export interface CourseData {
  lessons: Record<string, unknown>;
  after: Record<string, unknown>;
  untouched: Record<string, unknown>;
  started: Record<string, unknown>;
  /** The path of a learner's file in their folder. */
  files: Record<string, string>;
}

export interface PageData {
  format: "allfold-page";
  version: 1;
  mode: "file" | "studio" | "site";
  studio?: { token: string };
  /** Where the page's own Python is, and the course: `docs/site.py` writes it. */
  site?: SiteData;
  state: PageState;
  catalogue: { collective: string; algorithm: string; summary: string; rooted: boolean }[];
  entries: Entry[];
  table: Case[];
  topologies: TopologyChoice[];
  measured?: MeasuredPoint[];
}
