/** Where entries come from: embedded in the page, or computed by the studio when they are asked for. */

import { computed, effect, signal } from "@preact/signals";
import { carriesNumbers, EXAMPLE, readNumbers, type Numbers } from "./amounts";
import type { Case, Entry, MeasuredPoint, PageData, PageState } from "./document";
import { drafted } from "./draft";
import { every, unique } from "./numbers";
import { remembered } from "./remembered";
import { askPage, openSite } from "./site/answers";
import { Replay } from "./replay";
import { go, notice, state } from "./state";
import { treesOf } from "./trees";
import { bytes, messageOf, plural } from "./words";

let page: PageData;
const entries = new Map<string, Entry>();

/** Counts arrivals of entries, so that components that asked for one look again. */
const arrivals = signal(0);
const waiting = new Set<string>();
const failures = new Map<string, string>();

/** A schedule made from edited code; it stays until something else is chosen. */
export const edited = signal<Entry | null>(null);
/** Whether what is shown is not what the edited code makes: it is being proved, or it does not run. */
export const outdated = signal<"being proved" | "does not run" | null>(null);
const table = signal<Case[]>([]);
export const measured = signal<MeasuredPoint[]>([]);

export const data = (): PageData => page;
/** Whether everything can be computed: by the studio's server, or by the page itself. */
export const inStudio = (): boolean => page.mode !== "file";
/** Whether the page computes by itself: then nothing can be measured. */
export const inBrowser = (): boolean => page.mode === "site";

export function open(document: PageData): void {
  page = document;
  table.value = document.table ?? [];
  measured.value = document.measured ?? [];
  if (document.site) openSite(document.site);
  for (const entry of document.entries) entries.set(entry.key, entry);
  state.value = { ...state.value, ...document.state };
}

function keyOf(one: PageState, algorithm = one.algorithm): string {
  return [one.collective, algorithm, one.ranks, String(one.root), one.topology, one.size].join("/"); // as Python's `key_of`
}

export const replayOf = remembered((entry: Entry) => new Replay(entry));

const readFor = remembered((replay: Replay, typed: string): { numbers: Numbers; wrong: string | null } => {
  const [op, values] = typed.split("\n");
  try {
    return { numbers: readNumbers(values, op, replay), wrong: null };
  } catch (error) {
    return { numbers: EXAMPLE, wrong: messageOf(error) };
  }
});

/** The numbers that cells show: those that were typed, or what is wrong with them and the schedule's or the page's own. */
export function numbersFor(replay: Replay): { numbers: Numbers; wrong: string | null } {
  const typed = state.value;
  const [values, op] = typed.values === null ? [replay.values, "sum"] : [typed.values, typed.op];
  return values === null || !carriesNumbers(replay)
    ? { numbers: EXAMPLE, wrong: null }
    : readFor(replay, `${op}\n${values.replace(/\s+/g, " ")}`);
}

export const treesOfEntry = remembered((entry: Entry) => treesOf(replayOf(entry)));

/** The links between two ranks, as indices into `links`; null if routes are not known. */
export const routesOf = remembered((entry: Entry) => {
  if (!entry.pairs) return null;
  const { source, destination, links } = entry.pairs;
  const routes = new Map(source.map((from, i) => [`${from} ${destination[i]}`, links[i]]));
  return (from: number, to: number): number[] => routes.get(`${from} ${to}`) ?? [];
});

interface Found {
  entry: Entry | null;
  waiting: boolean;
  error: string | null;
}

/** The entry of the state, or of a rival in it. Reading it inside a component subscribes to its arrival. */
export function find(one: PageState, algorithm = one.algorithm): Found {
  void arrivals.value;
  const key = keyOf(one, algorithm);
  const entry = entries.get(key) ?? (page.mode === "file" ? nearest(one, algorithm) : null);
  if (!entry && inStudio() && !failures.has(key)) void ask(key, one, algorithm);
  return { entry, waiting: waiting.has(key), error: failures.get(key) ?? null };
}

/** What is compared with what is shown: another entry, or the recording of the same. */
export interface Opponent extends Found {
  /** How it differs from what is shown, as `tree`, `ring on dgx1`, `measured`. */
  name: string;
  measured: boolean;
}

/** `tree`, or `tree/1048576/hosts` with a size and a topology of its own. */
export function asAgainst(one: Pick<PageState, "algorithm" | "size" | "topology">, state: PageState): string {
  const own = one.size !== state.size || one.topology !== state.topology;
  return own ? `${one.algorithm}/${one.size}/${one.topology}` : one.algorithm;
}

/** The state of what is compared; null if it is a recording, or nothing. */
export function againstState(one: PageState): PageState | null {
  if (one.against === null || one.against === "measured") return null;
  const [algorithm, size, ...topology] = one.against.split("/");
  const bytes = Number(size);
  return {
    ...one,
    algorithm,
    size: size !== undefined && Number.isSafeInteger(bytes) && bytes >= 0 ? bytes : one.size,
    topology: topology.length ? topology.join("/") : one.topology,
  };
}

/** Null if nothing is compared. What is compared but not there is said in `error`. */
export const opponent = computed<Opponent | null>(() => {
  const one = state.value;
  const { entry } = current.value;
  if (one.against === null || !entry) return null;
  if (one.against === "measured") {
    const error = entry.recording?.events.length ? null : "There is no recording of this schedule.";
    return { entry: error ? null : entry, waiting: false, error, name: "measured", measured: true };
  }
  const other = againstState(one)!;
  const same = other.algorithm === one.algorithm && !edited.value;
  const found = find(other);
  const name =
    edited.value && other.algorithm === one.algorithm
      ? `${other.algorithm} before the edit`
      : [
          other.algorithm,
          ...(other.topology !== one.topology ? [`on ${other.topology.split(":")[0]}`] : []),
          ...(other.size !== one.size ? [`with ${bytes(other.size)}`] : []),
        ].join(" ");
  const nothing = same && other.topology === one.topology && other.size === one.size;
  const error = nothing
    ? `${name} would be compared with itself.`
    : !found.entry && !found.waiting
      ? (found.error ?? `This file does not hold ${name}.`)
      : found.error;
  return { ...found, entry: nothing ? null : found.entry, error, name, measured: false };
});

let shown: Entry | null = null;

/** What the page shows. While the next entry is being computed, the last one stays, so that nothing jumps. */
export const current = computed<Found>(() => {
  if (edited.value) {
    shown = edited.value;
    return { entry: edited.value, waiting: false, error: null };
  }
  // The draft is about to be proved: what the built-in algorithm makes is of no interest.
  if (inBrowser() && drafted.value) return { entry: shown ?? page.entries[0], waiting: false, error: null };
  const found = find(state.value);
  if (found.entry) shown = found.entry;
  return found.entry ? found : { ...found, entry: found.error ? null : shown };
});

/** In a file only what is embedded can be shown: the entry that differs least from what was asked for. */
function nearest(one: PageState, algorithm: string): Entry | null {
  let best: Entry | null = null;
  let bestScore = -1;
  for (const entry of entries.values()) {
    const { schedule } = entry;
    const [topology, size] = tail(entry);
    if (schedule.collective !== one.collective || schedule.algorithm !== algorithm) continue;
    const score =
      (schedule.ranks === one.ranks ? 8 : 0) +
      (topology === one.topology ? 4 : 0) +
      (Number(size) === one.size ? 2 : 0) +
      (schedule.root === one.root ? 1 : 0);
    if (score > bestScore) [best, bestScore] = [entry, score];
  }
  return best;
}

function tail(entry: Entry): [string, string] {
  const parts = entry.key.split("/");
  return [parts.slice(4, -1).join("/"), parts[parts.length - 1]];
}

/** Whether a file holds just this, with the rest of the state as it is. */
function holds(algorithm: string, ranks: number, size: number): boolean {
  return entries.has(keyOf({ ...state.value, ranks, size }, algorithm));
}

/** Who wins where, by number of ranks. */
export function casesOf(collective: string, topology: string): Case[] {
  const here = table.value.filter((one) => one.collective === collective && one.topology === topology);
  return here.sort((a, b) => a.ranks - b.ranks);
}

/** What can be chosen: everything in the studio, what is embedded in a file. */
export function choices(
  one: PageState,
): Record<"collectives" | "algorithms" | "topologies", string[]> & Record<"ranks" | "sizes" | "roots", number[]> {
  if (inStudio()) {
    return {
      collectives: unique(page.catalogue.map((row) => row.collective)),
      algorithms: page.catalogue.filter((row) => row.collective === one.collective).map((row) => row.algorithm),
      topologies: page.topologies.map((row) => row.name),
      ranks: [],
      sizes: SIZES,
      roots: rooted(one.collective) ? every(one.ranks) : [],
    };
  }
  const all = [...entries.values()];
  const here = all.filter((entry) => entry.schedule.collective === one.collective);
  const mine = here.filter((entry) => entry.schedule.algorithm === one.algorithm);
  const same = mine.filter((entry) => entry.schedule.ranks === one.ranks);
  return {
    collectives: unique(all.map((entry) => entry.schedule.collective)),
    algorithms: unique(here.map((entry) => entry.schedule.algorithm)),
    ranks: unique(mine.map((entry) => entry.schedule.ranks)).sort((a, b) => a - b),
    topologies: unique(same.map((entry) => tail(entry)[0])),
    sizes: unique(same.map((entry) => Number(tail(entry)[1]))).sort((a, b) => a - b),
    roots: unique(same.map((entry) => entry.schedule.root).filter((root): root is number => root !== null)),
  };
}

const SIZES = Array.from({ length: 15 }, (_, i) => 2 ** (2 * i + 2));

export function rooted(collective: string): boolean {
  return page.catalogue.find((row) => row.collective === collective)?.rooted ?? false;
}

/** An address may ask for what is not here: then the state is set to what is shown instead, and a sentence says so. */
export function settle(): string {
  const one = state.value;
  const entry = page.mode === "file" ? (entries.get(keyOf(one)) ?? nearest(one, one.algorithm)) : null;
  if (entry) go(placeOf(entry));
  else if (page.mode === "file" || !known(one)) go({ ...page.state, view: one.view });
  else return "";
  const shown = state.value;
  if (inStudio()) {
    return `${one.collective} has no algorithm ${one.algorithm}. This is ${shown.collective} by ${shown.algorithm}.`;
  }
  if (keyOf(one) === keyOf(shown)) return "";
  return `This file does not hold ${inWords(one, shown)}. It shows ${inWords(shown, one)}. allfold studio has the rest.`;
}

const known = (one: PageState): boolean =>
  page.catalogue.some((row) => row.collective === one.collective && row.algorithm === one.algorithm);

/** What distinguishes a state from another: `tree, 77 ranks`. */
function inWords(one: PageState, other: PageState): string {
  const words: [keyof PageState, string][] = [
    ["collective", one.collective],
    ["algorithm", one.algorithm],
    ["ranks", plural(one.ranks, "rank")],
    ["root", one.root === null ? "no root" : `root ${one.root}`],
    ["topology", one.topology],
    ["size", bytes(one.size)],
  ];
  return words
    .filter(([key]) => one[key] !== other[key])
    .map(([, word]) => word)
    .join(", ");
}

function placeOf(entry: Entry): Pick<PageState, "ranks" | "root" | "topology" | "size"> {
  const [topology, size] = tail(entry);
  return { ranks: entry.schedule.ranks, root: entry.schedule.root, topology, size: Number(size) };
}

/** Choose something; the rest of the state changes to the nearest existing entry. */
export function choose(change: Partial<PageState>): void {
  edited.value = null;
  notice.value = null;
  const wanted = { ...state.value, ...change };
  const algorithms = choices(wanted).algorithms;
  if (!algorithms.includes(wanted.algorithm)) wanted.algorithm = algorithms[0] ?? wanted.algorithm;
  if (inStudio()) {
    wanted.root = rooted(wanted.collective) ? Math.min(wanted.root ?? 0, wanted.ranks - 1) : null;
  } else {
    const entry = entries.get(keyOf(wanted)) ?? nearest(wanted, wanted.algorithm);
    if (entry) Object.assign(wanted, placeOf(entry));
  }
  const same = keyOf(wanted) === keyOf(state.value);
  const rivals = wanted.rivals?.filter((name) => algorithms.includes(name) && name !== wanted.algorithm);
  // A tree has its number within one schedule; another has others.
  const follow = same || wanted.follow === "cut" ? wanted.follow : null;
  const kept = wanted.against === wanted.algorithm ? null : wanted.against;
  const against = kept && !algorithms.includes(kept.split("/")[0]) && kept !== "measured" ? null : kept;
  go({ ...wanted, against, rivals: rivals ?? null, follow, step: change.step ?? (same ? wanted.step : 0) });
}

/** Open the other views there; a file that does not hold it says so, and how to get it. */
export function openAt(algorithm: string, ranks: number, size: number): void {
  const { collective, topology } = state.value;
  if (!inStudio() && !holds(algorithm, ranks, size)) {
    const words = `--collective ${collective} --ranks ${ranks} --size ${bytes(size).replace(" ", "")} --topology ${topology}`;
    notice.value = `This file does not hold ${algorithm} with ${plural(ranks, "rank")} and ${bytes(size)}. allfold studio shows it, or make a file of it: allfold show ${algorithm} ${words} --html ${algorithm}.html`;
    return;
  }
  choose({ algorithm, ranks, size });
  go({ view: "holds" });
}

// The studio ----------------------------------------------------------------------------------------------------------

async function ask(key: string, one: PageState, algorithm: string): Promise<void> {
  if (waiting.has(key)) return;
  waiting.add(key);
  const words = new URLSearchParams({
    collective: one.collective,
    algorithm,
    ranks: String(one.ranks),
    topology: one.topology,
    size: String(one.size),
  });
  if (one.root !== null) words.set("root", String(one.root));
  try {
    entries.set(key, await request<Entry>(`/api/entry?${words}`));
  } catch (error) {
    failures.set(key, messageOf(error));
  }
  waiting.delete(key);
  arrivals.value++;
}

/** The studio's answer, or an error with its sentence, and the line where there is one. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly line: number | null,
  ) {
    super(message);
  }
}

/** What the studio sends: what was asked for, or the error. */
interface Answer {
  error?: { message: string; line?: number | null };
}

export async function request<T>(path: string, body?: unknown): Promise<T> {
  const content = inBrowser() ? await askPage(path, body) : await askStudio(path, body);
  const { error } = content as Answer;
  if (error) throw new Refusal(error.message, error.line ?? null);
  return content as T;
}

async function askStudio(path: string, body?: unknown): Promise<unknown> {
  const headers: Record<string, string> = { "X-Allfold-Token": page.studio?.token ?? "" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch {
    throw new Refusal("the studio does not answer; is `allfold studio` still running?", null);
  }
  const content = (await answer.json().catch(() => null)) as Answer | null;
  if (!content?.error && (!answer.ok || content === null))
    throw new Refusal(`the studio answered with status ${answer.status}`, null);
  return content;
}

/** Prove and draw edited code; what does not run raises a `Refusal`. */
export async function proveEdited(code: string, file: string, still: () => boolean): Promise<void> {
  const { collective, algorithm, ranks, root, topology, size } = state.value;
  const asked = keyOf(state.value);
  const question = { collective, algorithm, ranks, root, code, file, topology, size };
  const entry = await request<Entry>("/api/edit", question);
  if (!still() || keyOf(state.value) !== asked) return; // the user has typed on, or chosen something else
  edited.value = entry;
  outdated.value = null;
  const steps = entry.schedule.steps.length;
  if (!entry.proof.ok)
    go({ step: Math.min((entry.proof.step ?? 0) + 1, steps) }); // where it went wrong
  else if (state.value.step > steps) go({ step: steps });
}

/** Run the current algorithm between real processes, and take the recording. */
export async function measure(): Promise<void> {
  const one = state.value;
  const { collective, algorithm, ranks, root, size, topology } = one;
  const entry = await request<Entry>("/api/measure", { collective, algorithm, ranks, root, size, topology });
  const known = entries.get(keyOf(one));
  entries.set(keyOf(one), known ? { ...known, recording: entry.recording } : entry);
  const events = entry.recording?.events ?? [];
  const begin = Math.min(...events.map((event) => event.start));
  const end = Math.max(...events.map((event) => event.start + event.waited + event.worked));
  const point = { collective, algorithm, ranks, size, seconds: (end - begin) * 1e-9, memory: events[0]?.memory ?? "" };
  if (events.length) measured.value = [...measured.value, point];
  arrivals.value++;
}

/** The schedule as MSCCL XML, as Python writes it: `allfold export --to msccl-xml`. */
export async function asMsccl(entry: Entry): Promise<string> {
  const { text, error } =
    entry.msccl ??
    (inStudio()
      ? await request<{ text: string; error?: string }>("/api/msccl", { schedule: entry.schedule })
      : { error: "A wrong schedule is not exported." });
  if (text === undefined) throw new Error(error);
  return text;
}

const priced = new Set<string>();

/** Cases for numbers of ranks that are not here; each is asked for once. */
export async function extendTable(collective: string, topology: string, ranks: number[]): Promise<void> {
  const words = new URLSearchParams({ collective, topology, ranks: ranks.join(",") });
  if (priced.has(String(words))) return;
  priced.add(String(words));
  const fresh = await request<Case[]>(`/api/table?${words}`);
  table.value = [...table.value, ...fresh];
}

/** Called once: edited code belongs to what was chosen when it was edited. */
export function forgetEditsOnChange(): void {
  let last = "";
  effect(() => {
    const key = keyOf(state.value);
    if (last && key !== last) {
      edited.value = null;
      outdated.value = null;
    }
    last = key;
  });
}
