/**
 * What the studio's server answers, on a page without one: Python in the page computes it; the texts of lessons are in the
 * page, and what a learner writes is kept by the browser.
 */

import type { CourseData, SiteData } from "../document";
import { load } from "./pieces";
import { ask, findPython, type Found } from "./python";

let site: SiteData;
let arriving: Promise<CourseData> | null = null;

export function openSite(data: SiteData): void {
  site = data;
  findPython(site.pieces);
}

/** The lessons; loaded when somebody opens them. */
function course(): Promise<CourseData> {
  arriving ??= load("course", site.course).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)) as CourseData);
  arriving.catch(() => (arriving = null));
  return arriving;
}

const CHECK_LIMIT = 80_000; // milliseconds, as in the studio
const EXPORT_LIMIT = 60_000; // allfold's own code, which ends

/** The answer to one of the studio's addresses, or `{ error: … }`. */
export async function askPage(address: string, body?: unknown): Promise<unknown> {
  const [path, query] = address.split("?");
  const name = new URLSearchParams(query).get("name") ?? "";
  if (path === "/api/lessons") return list(await course());
  if (path === "/api/lesson") return (await course()).lessons[name] ?? refusal(`there is no lesson ${name}`);
  if (path === "/api/work") return workOn(await course(), name);
  if (path === "/api/learn") return act(await course(), body as Act);
  const kind = path === "/api/edit" ? "edit" : path === "/api/prove" ? "prove" : "";
  const limit = path === "/api/prove" ? 4 * 5_000 : path === "/api/msccl" ? EXPORT_LIMIT : undefined;
  return unwrapped(await ask(address, body, { kind, limit }));
}

const refusal = (message: string): unknown => ({ error: { message } });
const unwrapped = (found: Found): unknown => (found.error ? { error: found.error } : found.answer);

// The course ----------------------------------------------------------------------------------------------------------

interface Act {
  lesson: string;
  do: string;
  text?: string;
  version?: string;
}

/** As Python writes it (`Lessons.work`), as far as it is needed here. */
interface Work {
  started: boolean;
  file: string;
  stamp: string;
  progress: { predicted: Record<string, boolean>; solved: string[]; passed: boolean };
  after: unknown;
  text?: string;
  version?: string;
}

/** What this browser keeps: the learner's files as Python writes them, and what was last said of each lesson. */
interface Kept {
  files: Record<string, string>;
  works: Record<string, Work>;
}

const PLACE = "allfold-course";
const WHERE = "this browser";
let memory: Kept = { files: {}, works: {} };

function kept(): Kept {
  try {
    const text = localStorage.getItem(PLACE);
    if (text) memory = JSON.parse(text) as Kept;
  } catch {
    // A browser may refuse to keep anything: then it is kept until the page is closed.
  }
  return memory;
}

function keep(now: Kept): void {
  memory = now;
  try {
    localStorage.setItem(PLACE, JSON.stringify(now));
  } catch {
    // As above.
  }
}

const initial = (known: CourseData, name: string): Work => known.untouched[name] as Work;

function list(known: CourseData): unknown {
  const { works } = kept();
  const lessons = Object.entries(known.lessons).map(([name, one]) => {
    const lesson = one as { exercises: unknown[]; predictions: unknown[] };
    const { started, progress } = works[name] ?? initial(known, name);
    return {
      ...lesson,
      started,
      passed: progress.passed,
      solved: progress.solved.length,
      exercises: lesson.exercises.length,
      predicted: Object.values(progress.predicted).filter(Boolean).length,
      predictions: lesson.predictions.length,
      name,
    };
  });
  const now = lessons.find((one) => one.started && !one.passed) ?? lessons.find((one) => !one.passed);
  return { folder: WHERE, current: now?.name ?? null, lessons };
}

function workOn(known: CourseData, name: string): unknown {
  if (!known.lessons[name]) return refusal(`there is no lesson ${name}`);
  return kept().works[name] ?? initial(known, name);
}

/** Remember what is now said of a lesson. The text that is read afterwards is the page's own. */
function remember(known: CourseData, name: string, work: Work, files: Record<string, string>): Work {
  const now = kept();
  const after = work.after === null ? null : known.after[name];
  const said = { ...work, file: `${name}.py`, after, stamp: String(Date.now()) };
  keep({ files: { ...now.files, ...files }, works: { ...now.works, [name]: said } });
  return said;
}

async function act(known: CourseData, asked: Act): Promise<unknown> {
  const name = asked.lesson;
  const file = known.files[name];
  if (!file) return refusal(`there is no lesson ${name}`);
  const { files, works } = kept();
  const work = works[name];
  if (asked.do === "start") {
    const begun = known.started[name] as Work;
    return { work: remember(known, name, work?.started ? work : begun, work?.started ? {} : { [file]: begun.text! }) };
  }
  if (asked.do === "save") {
    if (!work || work.version !== asked.version) return { conflict: true, work: work ?? initial(known, name) };
    const saved = { ...work, text: asked.text, version: `${Date.now()} ${asked.text!.length}` };
    return { work: remember(known, name, saved, { [file]: asked.text! }) };
  }
  const given: Record<string, string> = { [file]: files[file] };
  if (files["progress.json"]) given["progress.json"] = files["progress.json"];
  const limit = asked.do === "check" ? CHECK_LIMIT : undefined;
  const found = await ask("/api/learn", asked, { files: given, fresh: asked.do === "check", limit });
  if (found.error) return { error: found.error };
  const answer = found.answer as { work: Work };
  const now = { ...answer.work, version: `${Date.now()}` };
  return { ...answer, work: remember(known, name, now, found.files ?? {}) };
}
