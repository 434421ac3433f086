/** The views of the page in the order of their tabs. Tabs, keys, help, the address and Python's list are made from it. */

import * as views from "./index";
import type { View } from "./view";

export const VIEWS: readonly View[] = Object.values(views).sort((one, other) => (one.key < other.key ? -1 : 1));

/** The view that is shown: its name was checked where it came from, in the address or by Python. */
export function viewOf(name: string): View {
  return viewNamed(name)!;
}

/** The view with this name, if there is one. */
export function viewNamed(name: string | null): View | undefined {
  return VIEWS.find((one) => one.name === name);
}
