/**
 * The learner's desk: what is on disk, what is typed and not saved yet, and what was said about it.
 *
 * The file may change outside, in an editor or by `allfold learn`: the page looks every moment and takes the new text
 * over. If something was typed here meanwhile, the learner chooses which text stays; nothing is overwritten unasked.
 */

import { batch, signal } from "@preact/signals";
import { request } from "../source";
import { messageOf } from "../words";
import type { Done, Verdict, Work } from "./data";

const PAUSE = 500; // milliseconds without a key press before the text is saved
const LOOK = 1500; // milliseconds between two looks at the files

export class Desk {
  readonly work = signal<Work | null>(null);
  /** What is typed and not saved; null if nothing is. */
  readonly draft = signal<string | null>(null);
  /** What the last check found; null once the text is another. */
  readonly verdict = signal<Verdict | null>(null);
  readonly solution = signal<string | null>(null);
  /** A sentence about what just happened. */
  readonly says = signal<string | null>(null);
  readonly trouble = signal<string | null>(null);
  readonly busy = signal<string | null>(null);
  /** Whether the file was changed outside while something was typed here. */
  readonly conflict = signal(false);
  private timer = 0;
  private saving: Promise<boolean> | null = null;
  private looking = 0;
  private acts = 0; // a look that was on its way while something was done has seen an older state

  constructor(readonly lesson: string) {}

  open(): () => void {
    void this.look();
    this.looking = window.setInterval(() => void (document.hidden || this.busy.value || this.look()), LOOK);
    const onHide = (): void => void (document.hidden && this.save());
    document.addEventListener("visibilitychange", onHide);
    return () => {
      clearInterval(this.looking);
      document.removeEventListener("visibilitychange", onHide);
      void this.save(); // another lesson is opened: what was typed stays
    };
  }

  get text(): string {
    return this.draft.value ?? this.work.value?.text ?? "";
  }

  type(text: string): void {
    batch(() => {
      this.draft.value = text;
      this.verdict.value = null;
      this.says.value = null;
    });
    clearTimeout(this.timer);
    if (!this.conflict.value) this.timer = window.setTimeout(() => void this.save(), PAUSE);
  }

  /** Save what was typed; whether the file is now what is shown. One at a time: a second would name a version that the first replaces. */
  save(): Promise<boolean> {
    clearTimeout(this.timer);
    return (this.saving ??= this.saveAll().finally(() => (this.saving = null)));
  }

  private async saveAll(): Promise<boolean> {
    while (this.draft.value !== null) {
      const text = this.draft.value;
      const done = await this.do("save", { text, version: this.work.value?.version });
      if (!done || done.conflict) {
        this.conflict.value = done?.conflict ?? this.conflict.value;
        return false;
      }
      if (this.draft.value === text) this.draft.value = null;
    }
    return true;
  }

  /** After a conflict. */
  keep(mine: boolean): void {
    batch(() => {
      this.conflict.value = false;
      if (mine) void this.save();
      else {
        this.draft.value = null;
        this.verdict.value = null;
      }
    });
  }

  async act(what: string, words: string, given: Record<string, unknown> = {}): Promise<void> {
    if (this.busy.value) return;
    this.busy.value = words;
    try {
      if (what !== "start" && !(await this.save())) return;
      const done = await this.do(what, given);
      if (!done) return;
      batch(() => {
        this.says.value = done.says ?? null;
        if (done.verdict) this.verdict.value = done.verdict;
        if (done.solution !== undefined) this.solution.value = done.solution;
        if (what === "reset") this.verdict.value = null;
      });
    } finally {
      this.busy.value = null;
    }
  }

  private async do(what: string, given: Record<string, unknown>): Promise<Done | null> {
    this.acts++;
    try {
      const done = await request<Done>("/api/learn", { lesson: this.lesson, do: what, ...given });
      this.work.value = done.work;
      this.trouble.value = null;
      return done;
    } catch (error) {
      this.trouble.value = messageOf(error);
      return null;
    }
  }

  private async look(): Promise<void> {
    const [known, acts] = [this.work.value, this.acts];
    const words = new URLSearchParams({ name: this.lesson, stamp: known?.stamp ?? "" });
    try {
      const found = await request<Work | { same: true }>(`/api/work?${words}`);
      if (acts !== this.acts) return;
      if (!known || known.stamp === "") this.trouble.value = null;
      if ("same" in found) return;
      const changed = known?.version !== undefined && known.version !== found.version;
      if (changed && this.draft.value !== null) return; // saving it will show that they differ
      batch(() => {
        this.work.value = found;
        this.trouble.value = null;
        if (!changed) return;
        this.verdict.value = null;
        this.says.value = `${found.file} was changed outside this page. This is the new text.`;
      });
    } catch (error) {
      if (acts === this.acts) this.trouble.value = messageOf(error);
    }
  }
}
