/** What a view says about itself. Its file exports it as `view`. */

import type { JSX } from "preact";
import type { Entry, PageData } from "../document";

export interface View {
  /** As it stands in addresses, and as Python knows it. */
  name: string;
  title: string;
  /** What it shows, for the help. */
  summary: string;
  /** The key that opens it, `1` to `9`; tabs are in the order of these keys. */
  key: string;
  /** `step` is the step that is told; if `moving`, its moves are on their way. */
  draw: (props: { entry: Entry; step: number; moving?: boolean }) => JSX.Element;
  /** What it draws, all of which Python has to write; the view itself says if something is missing from a document. */
  needs: readonly (keyof Entry | keyof PageData)[];
  /** What the player moves in it: the step, the clock of the race, or nothing. */
  plays: "steps" | "race" | "nothing";
  /** Whether it needs the whole width, so that the facts go below it. */
  broad?: boolean;
  /** Further keys. What has `press` works wherever the focus is; the rest is handled by the view's picture. */
  keys?: readonly { key: string; says: string; press?: (entry: Entry) => void }[];
}
