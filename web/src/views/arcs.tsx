/** The moves of a step as arcs between the cells of the grid, and the paths by which a cell's content came. */

import type { JSX } from "preact";
import { tenth } from "../numbers";
import { fraction } from "../player";
import { glows } from "../picture";
import type { Move, Replay } from "../replay";
import type { Tree } from "../trees";
import { sentence } from "../words";
import { Around, type Grid } from "./grid";

const SINGLE = 200; // up to this many moves, each is an element of its own that lights up
const MOST = 1500;

export function arcsFit(moves: number): boolean {
  return moves <= MOST;
}

/** The moves of a step: on their way, or in a still drawn completely. */
export function Arcs(props: {
  moves: Move[];
  grid: Grid;
  moving: boolean;
  /** The number that a move carries, where numbers are shown. */
  carries: ((move: Move) => string | null) | null;
}): JSX.Element | null {
  const { moves, grid } = props;
  const under = props.moving ? fraction.value : 0;
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
        <Arc key={move.number} grid={grid} move={move} under={under} carries={props.carries?.(move) ?? null} />
      ))}
    </g>
  );
}

function Arc(props: { grid: Grid; move: Move; under: number; carries: string | null }): JSX.Element {
  const { grid, move, under, carries } = props;
  const { path, points } = curve(grid, move);
  const kind = move.reduces ? "reduce" : "copy";
  const eased = under < 0.5 ? 2 * under * under : 1 - (2 - 2 * under) ** 2 / 2;
  const [x, y] = pointAt(points, eased);
  const [endX, endY] = points[3];
  const back = endX < points[2][0] ? 1 : -1; // the head points in the direction of the incoming arc
  const head = Math.min(5, Math.max(3, grid.gap * 0.3));
  return (
    <g {...glows({ chunk: move.chunk, ranks: [move.source, move.destination] })}>
      <title>{sentence(move)}</title>
      <path class={`arc ${kind}${under > 0 ? " coming" : ""}${move.chunk === move.into ? "" : " across"}`} d={path} />
      {under > 0 && carries !== null ? (
        <Tile x={x} y={y} text={`${move.reduces ? "+" : ""}${carries}`} kind={kind} />
      ) : under > 0 ? (
        <circle class={`traveller ${kind}`} cx={x} cy={y} r={Math.max(3, Math.min(5.5, grid.gap * 0.3))} />
      ) : (
        <path class={`head ${kind}`} d={`M${endX} ${endY}l${back * head * 1.5} ${-head}v${2 * head}z`} />
      )}
    </g>
  );
}

/** A number on its way. */
function Tile(props: { x: number; y: number; text: string; kind: string }): JSX.Element {
  const { x, y, kind } = props;
  const text = props.text.length > 8 ? `${props.text.slice(0, 7)}…` : props.text;
  const wide = 10 + 7.5 * text.length;
  return (
    <g class={`traveller tile-of ${kind}`} transform={`translate(${tenth(x)} ${tenth(y)})`}>
      <rect x={-wide / 2} y={-10} width={wide} height={20} rx={5} />
      <text class="inside" font-size={12}>
        {text}
      </text>
    </g>
  );
}

type Point = [number, number];

function curve(
  grid: Grid,
  move: Pick<Move, "chunk" | "into" | "source" | "destination">,
): { path: string; points: [Point, Point, Point, Point] } {
  const sourceX = grid.x(move.chunk);
  const intoX = grid.x(move.into);
  const sourceY = grid.y(move.source) + grid.cellY / 2;
  const intoY = grid.y(move.destination) + grid.cellY / 2;
  let points: [Point, Point, Point, Point];
  if (move.chunk === move.into && move.source !== move.destination) {
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

function pointAt(points: [Point, Point, Point, Point], t: number): Point {
  const weights = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3];
  return [0, 1].map((axis) => points.reduce((sum, point, i) => sum + weights[i] * point[axis], 0)) as Point;
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
