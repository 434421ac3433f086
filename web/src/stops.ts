/**
 * Elements of a picture that can be clicked, by keyboard: the Tab key stops once in every picture, arrow keys go from one
 * element to the next, Enter and space press it.
 */

/** The attributes of such an element. */
export function stop(onClick: () => void): Record<string, unknown> {
  return { "data-stop": "", role: "button", tabindex: -1, onClick };
}

/** The attributes of an element outside of a picture, where Tab stops at each. */
export function pressable(onClick: () => void): Record<string, unknown> {
  return {
    role: "button",
    tabIndex: 0,
    onClick,
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      onClick();
      event.preventDefault();
      event.stopPropagation();
    },
  };
}

/** One element of a picture is where Tab stops: the last that had the focus, or the first. */
export function keepStop(svg: SVGSVGElement): void {
  if (!svg.querySelector("[data-stop][tabindex='0']")) svg.querySelector("[data-stop]")?.setAttribute("tabindex", "0");
}

/** Where arrow keys go. */
export const WAYS: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

export function onKeyOfStops(event: KeyboardEvent): void {
  const here = (event.target as Element).closest<SVGElement>("[data-stop]");
  if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" || event.key === " ") here.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  else if (WAYS[event.key]) next(here, WAYS[event.key])?.focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Cells have neighbours in four directions; everything else comes in the order in which it is drawn. */
function next(here: SVGElement, [down, right]: [number, number]): SVGElement | null {
  const svg = here.ownerSVGElement!;
  const cell = here.dataset.cell?.split(" ").map(Number);
  const stops = [...svg.querySelectorAll<SVGElement>("[data-stop]")];
  const found = cell
    ? svg.querySelector<SVGElement>(`[data-cell="${cell[0] + down} ${cell[1] + right}"]`)
    : (stops[stops.indexOf(here) + down + right] ?? null);
  if (!found) return null;
  for (const one of stops) if (one.tabIndex === 0) one.setAttribute("tabindex", "-1");
  found.setAttribute("tabindex", "0");
  return found;
}
