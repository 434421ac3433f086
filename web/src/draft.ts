/** The code that is being edited: it stays while other views are open, until another algorithm is chosen. */

import { computed, signal } from "@preact/signals";
import type { CodeFile } from "./document";
import { state } from "./state";

interface Draft {
  /** Collective and algorithm that it was made from. */
  key: string;
  original: CodeFile;
  text: string;
  /** No built-in algorithm's file: also as it began, only a proof of it shows what it makes. */
  own: boolean;
}

export const draft = signal<Draft | null>(null);

export const draftKey = (): string => `${state.value.collective}/${state.value.algorithm}`;

/** Whether what the page shows is made by the draft, not by the algorithm that is chosen. */
export const drafted = computed(() => {
  const one = draft.value;
  return one !== null && one.key === draftKey() && (one.own || one.text !== one.original.text);
});
