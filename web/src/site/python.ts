/**
 * Python in the page: loaded when the first question is asked, run in a Web Worker, and a second one kept ready.
 *
 * A worker has no network (the page's policy allows no connection) and nothing of the page. Code that does not end is ended
 * with its worker, and the one that was ready takes its place.
 */

import { signal } from "@preact/signals";
import type { Piece } from "../document";
import { load as loadPiece } from "./pieces";

/** What Python is doing while the reader waits for it to start: words, and the part that is done. Null: it is there. */
export const starting = signal<{ says: string; part: number } | null>(null);

export interface Found {
  answer?: unknown;
  files?: Record<string, string>;
  error?: { message: string; line?: number | null };
}

interface Job {
  question: string;
  /** Milliseconds for the reader's code; on a slow machine it gets more. */
  limit: number;
  /** Asked of an interpreter that has run nobody's code. */
  fresh: boolean;
  /** A later question of this kind makes this one worthless. */
  kind: string;
  done: (found: Found) => void;
}

const LIMIT = 5_000; // milliseconds
const PATIENT = 600_000; // for allfold's own part, which ends
const SLOW = 8; // times as long as the questions that a worker starts with
/** A worthless question is ended early if another worker is ready. */
const WORTHLESS = 700;

let pieces: Record<string, Piece> = {};
let loaded: Promise<Loaded> | null = null;
let current: Python | null = null;
let spare: Python | null = null;
let waiting: Job[] = [];
let running: { job: Job; since: number } | null = null;

export function findPython(where: Record<string, Piece>): void {
  pieces = where;
}

/** The answer of allfold in Python, as its server would give it. */
export function ask(
  path: string,
  body: unknown,
  given: { files?: Record<string, string>; kind?: string; fresh?: boolean; limit?: number } = {},
): Promise<Found> {
  const question = JSON.stringify({ path, body: body ?? null, files: given.files ?? null });
  const kind = given.kind ?? "";
  return new Promise((done) => {
    const job: Job = { question, kind, done, fresh: given.fresh ?? false, limit: given.limit ?? LIMIT };
    const old = kind ? waiting.filter((one) => one.kind === kind) : [];
    waiting = waiting.filter((one) => !old.includes(one));
    for (const one of old) one.done({ error: { message: "another question came after this one" } });
    // What the reader has just typed comes before what is computed beside it.
    if (kind === "edit") waiting.unshift(job);
    else waiting.push(job);
    if (kind && running?.job.kind === kind && spare?.isReady && performance.now() - running.since > WORTHLESS)
      current?.end("another question came after this one");
    void next();
  });
}

async function next(): Promise<void> {
  if (running || !waiting.length) return;
  const job = waiting.shift()!;
  running = { job, since: performance.now() };
  let found: Found;
  try {
    if (job.fresh && current?.hasRun) replace();
    current ??= spare ?? new Python();
    if (spare === current) spare = null;
    const python = current;
    found = await python.ask(job);
    if (python.isOver) replace();
  } catch (error) {
    found = { error: { message: error instanceof Error ? error.message : String(error) } };
    current = null;
  }
  running = null;
  job.done(found);
  // Only now: the first answer has the whole machine for itself.
  if (current && !spare && found.answer !== undefined) spare = new Python();
  void next();
}

function replace(): void {
  current?.end("");
  current = spare;
  spare = null;
}

/** One worker. */
class Python {
  isReady = false;
  isOver = false;
  hasRun = false;
  private worker: Worker | null = null;
  private slowness = 0;
  private readonly ready: Promise<void>;
  private stop: (found: Found) => void = () => undefined;
  private heard: (message: Message) => void = () => undefined;

  constructor() {
    this.ready = this.start();
    this.ready.catch(() => (this.isOver = true)); // whoever asks is told
  }

  private async start(): Promise<void> {
    const { script, ...files } = await load();
    if (this.isOver) return;
    const worker = (this.worker = new Worker(script));
    await new Promise<void>((ready, failed) => {
      worker.onerror = (event) => failed(new Error(`Python cannot start: ${event.message}`));
      worker.onmessage = ({ data }: MessageEvent<Message>) => {
        if (data.step) tell(`starting ${data.step}`, STARTED[data.step] ?? 0.9);
        if (data.failed) failed(new Error(`Python cannot start: ${data.failed}`));
        if (data.ready !== undefined) {
          this.slowness = data.ready;
          ready();
        } else this.heard(data);
      };
      worker.postMessage(files);
    });
    this.isReady = true;
    if (current === this) starting.value = null;
  }

  async ask(job: Job): Promise<Found> {
    await this.ready;
    this.hasRun = true;
    starting.value = null;
    return new Promise((done) => {
      const limit = Math.max(job.limit, SLOW * this.slowness);
      const ends = (milliseconds: number): number =>
        window.setTimeout(
          () => this.end(`the code was stopped after ${Math.round(milliseconds / 1000)} s; does every loop end?`),
          milliseconds,
        );
      let timer = ends(limit);
      this.stop = (found) => {
        clearTimeout(timer);
        done(found);
      };
      this.heard = (message) => {
        if (message.ran) {
          clearTimeout(timer);
          timer = ends(PATIENT);
        } else if (message.broken !== undefined) this.end(`Python failed: ${message.broken}`);
        else if (message.found !== undefined) this.stop(JSON.parse(message.found) as Found);
      };
      this.worker!.postMessage({ question: job.question });
    });
  }

  end(why: string): void {
    this.isOver = true;
    this.worker?.terminate();
    this.stop({ error: { message: why } });
  }
}

interface Message {
  step?: string;
  failed?: string;
  /** Milliseconds of its first questions. */
  ready?: number;
  ran?: boolean;
  found?: string;
  broken?: string;
}

// Loading -------------------------------------------------------------------------------------------------------------

interface Loaded {
  script: string;
  files: Record<string, Uint8Array>;
  packs: [string, Uint8Array][];
  module: WebAssembly.Module;
}

const LOADED = 0.5; // of the way until the first answer
const STARTED: Record<string, number> = { Python: 0.55, NumPy: 0.7, allfold: 0.8 };

function tell(says: string, part: number): void {
  if (!current?.isReady) starting.value = { says, part };
}

function load(): Promise<Loaded> {
  loaded ??= loadAll();
  loaded.catch(() => (loaded = null)); // the next edit tries again
  return loaded;
}

async function loadAll(): Promise<Loaded> {
  const total = Object.values(pieces).reduce((sum, one) => sum + one.bytes, 0);
  const megabytes = (total / 1e6).toFixed(1);
  let done = 0;
  tell(`loading Python, ${megabytes} MB`, 0.02);
  const unpacked: Record<string, Uint8Array> = {};
  await Promise.all(
    Object.entries(pieces).map(async ([name, piece]) => {
      unpacked[name] = await loadPiece(name, piece);
      done += piece.bytes;
      tell(`loading Python, ${(done / 1e6).toFixed(1)} of ${megabytes} MB`, (LOADED * done) / total);
    }),
  );
  const take = (name: string): Uint8Array => unpacked[name];
  return {
    script: URL.createObjectURL(new Blob([take("start.js") as BlobPart], { type: "text/javascript" })),
    module: await WebAssembly.compile(take("pyodide.asm.wasm") as BufferSource),
    files: {
      "pyodide.asm.wasm": new Uint8Array(), // it gets the compiled module
      "pyodide-lock.json": take("pyodide-lock.json"),
      "python_stdlib.zip": take("python_stdlib.zip"),
    },
    packs: [
      ["NumPy", take("numpy.pack")],
      ["allfold", take("allfold.pack")],
    ],
  };
}
