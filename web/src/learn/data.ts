/** What Python says about the lessons: `src/allfold/studio/lessons.py` writes it. */

import type { Entry, Flat } from "../document";

interface Head {
  number: number;
  name: string;
  title: string;
  minutes: number;
  about: string;
}

export interface Listed extends Head {
  started: boolean;
  passed: boolean;
  solved: number;
  exercises: number;
  predicted: number;
  predictions: number;
}

export interface LessonList {
  folder: string;
  current: string | null;
  lessons: Listed[];
}

export type Block =
  | { kind: "prose"; html: string }
  | { kind: "code"; language: string; text: string }
  | { kind: "table"; rows: string[][] }
  | { kind: "figure"; entry: Entry };

export interface Exercise {
  function: string;
  task: string;
  /** Of an algorithm; other functions have no picture. */
  collective: string | null;
  /** The check runs it between ranks, which a browser cannot do. */
  between_ranks: boolean;
}

/** A picture that the reader changes: `src/allfold/studio/explore.py` writes it. By `algorithm/ranks` its schedules. */
export interface Explorable {
  collective: string;
  algorithms: string[];
  ranks: number[];
  at: number;
  size: number;
  latency: number;
  bandwidth: number;
  say: string;
  entries: Record<string, Entry>;
  flats: Record<string, Flat>;
}

export interface Lesson extends Head {
  words: { word: string; meaning: string; lesson: number }[];
  blocks: Block[];
  predictions: { name: string; question: string }[];
  exercises: Exercise[];
  explore: Explorable;
  next: Head | null;
}

export interface Predicted {
  name: string;
  question: string;
  given: string | null;
  right: boolean;
  /** Absent until the learner has committed to a number. */
  answer?: string | null;
  because?: string;
}

/** What the learner has of a lesson. */
export interface Work {
  started: boolean;
  file: string;
  stamp: string;
  progress: { predicted: Record<string, boolean>; solved: string[]; wrong: Record<string, string>; passed: boolean };
  hints: { function: string; say: string }[];
  after: Block[] | null;
  text?: string;
  version?: string;
  predictions?: Predicted[];
}

export interface Verdict {
  file: string;
  error: string | null;
  line: number | null;
  predictions: Predicted[];
  exercises: {
    function: string;
    passed: boolean;
    message: string;
    line: number | null;
    ranks: number | null;
    root: number | null;
    run: [string, string[][]] | null;
    /** What a right algorithm makes, beside built-in ones. */
    race: Explorable | null;
  }[];
  printed: string;
  passed: boolean;
}

export interface Done {
  work: Work;
  conflict?: boolean;
  says?: string | null;
  solution?: string;
  verdict?: Verdict;
}

/** A number as people write it: `14`, `1.75`, `7/4`, `1,024`. Null if it is none. */
export function numberIn(text: string): number | null {
  const plain = text.trim().replace("−", "-");
  const [above, below, ...more] = plain.split("/").map((part) => part.trim());
  if (more.length) return null;
  if (below !== undefined) {
    const [a, b] = [numberIn(above), numberIn(below)];
    return a === null || !b ? null : a / b;
  }
  // A comma is only taken for what it surely is: 1,75 might mean 1.75.
  const grouped = /^-?\d{1,3}(,\d{3})+(\.\d+)?$/.test(plain) ? plain.replace(/,/g, "") : plain;
  return /^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(grouped) && isFinite(Number(grouped)) ? Number(grouped) : null;
}

/** Where the code begins, behind the predictions: the page has a form for these. */
export function codeBegins(text: string): number {
  const head = text.match(/^[\s\S]*?^PREDICTIONS = \{[\s\S]*?^\}\n+/m);
  return head ? head[0].length : 0;
}
