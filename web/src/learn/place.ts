/** Where the reader is in the course: `#lessons` is the list, `#lesson=ring` one of them. Null: not in the course. */

import { signal } from "@preact/signals";

export const learning = signal<string | null>(null);

/** The lesson that an address names; "" is the list. */
export function lessonFromHash(hash: string): string | null {
  if (hash === "#lessons") return "";
  return new URLSearchParams(hash.replace(/^#/, "")).get("lesson");
}

export const lessonHash = (lesson: string): string =>
  lesson === "" ? "#lessons" : `#${new URLSearchParams({ lesson })}`;
