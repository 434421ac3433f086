/** The moves of a step as arcs between the cells of the grid, and the paths by which a cell's content came. */

import type { JSX } from "preact";
import type { ReadonlySignal } from "@preact/signals";
import type { Numbers } from "../amounts";
import { tenth } from "../numbers";
import { glows } from "../picture";
import type { Move, Replay } from "../replay";
import type { Tree } from "../trees";
import { sentence } from "../words";
import { Around, type Grid } from "./grid";
import { flightAt, pointOn, Travel, type Curve } from "./travel";

const SINGLE = 200; // up to this many moves, each is an element of its own that lights up
const MOST = 1500;

export function arcsFit(moves: number): boolean {
  return moves <= MOST;
}

/** The moves of a step: on their way, or in a still drawn completely. */
export function Arcs(props: {
  moves: Move[];
  replay: Replay;
  grid: Grid;
  /** How far the step is, while it is under way. */
  clock: ReadonlySignal<number> | null;
  /** Where cells show numbers: these travel. */
  numbers: Numbers | null;
}): JSX.Element | null {
  const { moves, replay, grid, clock, numbers } = props;
  if (!moves.length || !arcsFit(moves.length)) return null;
  if (moves.length > SINGLE || grid.pitchX < 12) {
    const path = (reduces: boolean): string =>
      moves
        .filter((move) => move.reduces === reduces)
        .map((move) => curve(grid, move).path)
        .join("");
    return (
      <g class="arcs many">
        <path class="arc reduce" d={path(true)} />
        <path class="arc copy" d={path(false)} />
      </g>
    );
  }
  return (
    <g class="arcs">
      {moves.map((move) => (
        <Arc key={move.number} grid={grid} move={move} coming={clock !== null} />
      ))}
      {clock &&
        (numbers ? (
          <Travel {...{ moves, replay, numbers, grid, clock }} curveOf={(move) => curve(grid, move).points} />
        ) : (
          <Dots moves={moves} grid={grid} clock={clock} />
        ))}
    </g>
  );
}

function Arc(props: { grid: Grid; move: Move; coming: boolean }): JSX.Element {
  const { grid, move, coming } = props;
  const { path, points } = curve(grid, move);
  const kind = move.reduces ? "reduce" : "copy";
  const [endX, endY] = points[3];
  const back = endX < points[2][0] ? 1 : -1; // the head points in the direction of the incoming arc
  const head = Math.min(5, Math.max(3, grid.gap * 0.3));
  return (
    <g {...glows({ chunk: move.chunk, ranks: [move.source, move.destination] })}>
      <title>{sentence(move)}</title>
      <path class={`arc ${kind}${coming ? " coming" : ""}${move.chunk === move.into ? "" : " across"}`} d={path} />
      {!coming && <path class={`head ${kind}`} d={`M${endX} ${endY}l${back * head * 1.5} ${-head}v${2 * head}z`} />}
    </g>
  );
}

/** Where cells have no numbers, a dot travels for each move: two paths for all of them. */
function Dots(props: { moves: Move[]; grid: Grid; clock: ReadonlySignal<number> }): JSX.Element {
  const { moves, grid, clock } = props;
  const { way } = flightAt(clock.value);
  const radius = Math.max(3, Math.min(5.5, grid.gap * 0.3));
  const dots = (reduces: boolean): string =>
    moves
      .filter((move) => move.reduces === reduces)
      .map((move) => {
        const [x, y] = pointOn(curve(grid, move).points, way);
        return `M${tenth(x - radius)} ${tenth(y)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0z`;
      })
      .join("");
  return (
    <>
      <path class="traveller reduce" d={dots(true)} />
      <path class="traveller copy" d={dots(false)} />
    </>
  );
}

function curve(
  grid: Grid,
  move: Pick<Move, "chunk" | "into" | "source" | "destination">,
): { path: string; points: Curve } {
  const sourceX = grid.x(move.chunk);
  const intoX = grid.x(move.into);
  const sourceY = grid.y(move.source) + grid.cellY / 2;
  const intoY = grid.y(move.destination) + grid.cellY / 2;
  let points: Curve;
  if (move.chunk === move.into && move.source === move.destination) {
    // To itself: a loop beside the cell, so that it strikes out no number.
    const [edge, high, reach] = [sourceX + grid.cellX, grid.cellY * 0.2, Math.min(24, grid.gap)];
    points = [
      [edge, sourceY - high],
      [edge + reach, sourceY - 2 * high],
      [edge + reach, sourceY + 2 * high],
      [edge + 1, sourceY + high],
    ];
  } else if (move.chunk === move.into) {
    // Within a column: out at the right edge and back in, wider the farther it goes; a single column has all the room.
    const edge = sourceX + grid.cellX;
    const far = Math.abs(intoY - sourceY);
    const bow = grid.lone
      ? Math.min(24 + far * 0.55, (grid.width - edge - 8) * 1.3)
      : Math.min(grid.gap * 1.1, 8 + far * 0.4);
    points = [
      [edge, sourceY],
      [edge + bow, sourceY],
      [edge + bow, intoY],
      [edge + 1, intoY],
    ];
  } else {
    // To another column: out at the side towards it, in at the facing side.
    const right = intoX > sourceX;
    const way = right ? 1 : -1;
    const [start, end] = right ? [sourceX + grid.cellX, intoX] : [sourceX, intoX + grid.cellX];
    const reach = way * ((Math.abs(intoX - sourceX) - grid.cellX) / 2 + 6);
    points = [
      [start, sourceY],
      [start + reach, sourceY],
      [end - reach, intoY],
      [end - way, intoY],
    ];
  }
  const [from, one, two, to] = points.map((point) => point.map(tenth).join(" "));
  return { path: `M${from}C${one} ${two} ${to}`, points };
}

/** How the content of one cell came together: every move that carried a part of it. */
export function Paths(props: {
  replay: Replay;
  grid: Grid;
  done: number;
  of: { rank: number; chunk: number };
}): JSX.Element | null {
  const { replay, grid, done, of } = props;
  if (of.rank >= replay.ranks || of.chunk >= replay.width) return null;
  const moves = new Map<number, Move>();
  for (const { path } of replay.provenance(done, of.rank, of.chunk))
    for (const move of path) moves.set(move.number, move);
  return (
    <g class="paths">
      {[...moves.values()].map((move) => (
        <path key={move.number} class="came" d={curve(grid, move).path} />
      ))}
      <Around grid={grid} at={of} class="asked" />
    </g>
  );
}

/** The branches of a tree, in the first of its columns. */
export function TreePaths(props: { replay: Replay; grid: Grid; tree: Tree }): JSX.Element {
  const { replay, grid, tree } = props;
  const chunk = tree.chunks[0];
  const lines = tree.branches.filter((one) => one.source < replay.ranks && one.destination < replay.ranks);
  return (
    <g class="paths">
      {lines.map((one, i) => (
        <path
          key={i}
          class={`came ${one.reduces ? "reduce" : "copy"}`}
          d={curve(grid, { ...one, chunk, into: chunk }).path}
        />
      ))}
      {tree.root !== null && <Around grid={grid} at={{ rank: tree.root, chunk }} class="asked" />}
    </g>
  );
}
