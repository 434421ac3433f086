/** Numbers that travel: a tile lifts, moves, merges with the number where it arrives, and rests. */

import type { ComponentChildren, JSX } from "preact";
import type { ReadonlySignal } from "@preact/signals";
import { amountIn, signOf, type Numbers } from "../amounts";
import { clamp, tenth } from "../numbers";
import type { Move, Replay } from "../replay";
import type { Grid } from "./grid";
import { Quilt } from "./quilt";

/** Parts of a step, of which each ends here. */
const [LIFTED, THERE, MERGED] = [0.1, 0.7, 0.88];

/** Where a tile is at a moment of its step. Pure. */
interface Flight {
  /** How far it is above the page, and how far on its way, from 0 to 1. */
  lift: number;
  way: number;
  /** `merging`: what is there and what comes stand side by side; `resting`: they are one. */
  phase: "flying" | "merging" | "resting";
  /** How large the merged number is: it bounces once. */
  size: number;
}

export function flightAt(moment: number): Flight {
  const eased = (t: number): number => (t < 0.5 ? 2 * t * t : 1 - (2 - 2 * t) ** 2 / 2);
  const way = eased(clamp((moment - LIFTED) / (THERE - LIFTED), 0, 1));
  const lift = clamp(Math.min(moment / LIFTED, (THERE - moment) / LIFTED), 0, 1);
  const phase = moment < THERE ? "flying" : moment < MERGED ? "merging" : "resting";
  const after = clamp((moment - MERGED) / (1 - MERGED), 0, 1);
  const size = phase === "resting" ? 1 + 0.22 * Math.sin(Math.PI * Math.min(1, after * 1.6)) * (1 - after) : 1;
  return { lift, way, phase, size };
}

type Point = [number, number];
export type Curve = [Point, Point, Point, Point];

export function pointOn(points: Curve, t: number): Point {
  const weights = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3];
  return [0, 1].map((axis) => points.reduce((sum, point, i) => sum + weights[i] * point[axis], 0)) as Point;
}

/** From the middle of a cell along the curve into the middle of another. */
function placeOf(way: number, from: Point, points: Curve, to: Point): Point {
  const between = (one: Point, other: Point, t: number): Point => [
    one[0] + (other[0] - one[0]) * t,
    one[1] + (other[1] - one[1]) * t,
  ];
  if (way < 0.15) return between(from, points[0], way / 0.15);
  if (way > 0.85) return between(points[3], to, (way - 0.85) / 0.15);
  return pointOn(points, (way - 0.15) / 0.7);
}

/** All that moves in a step where cells show numbers. What a cell holds afterwards appears when its parts have merged. */
export function Travel(props: {
  moves: Move[];
  replay: Replay;
  numbers: Numbers;
  grid: Grid;
  clock: ReadonlySignal<number>;
  curveOf: (move: Move) => Curve;
}): JSX.Element | null {
  const { moves, replay, numbers, grid, curveOf } = props;
  if (!moves.length) return null;
  const flight = flightAt(props.clock.value);
  const before = replay.at(moves[0].step);
  const after = replay.at(moves[0].step + 1);
  const middle = (rank: number, chunk: number): Point => [
    grid.x(chunk) + grid.cellX / 2,
    grid.y(rank) + grid.cellY / 2,
  ];
  const held = (cell: number): string => amountIn(numbers, replay, before, cell) ?? "";
  if (flight.phase === "flying")
    return (
      <g class="travel">
        {moves.map((move) => {
          const cell = move.source * replay.width + move.chunk;
          const [x, y] = placeOf(
            flight.way,
            middle(move.source, move.chunk),
            curveOf(move),
            middle(move.destination, move.into),
          );
          return (
            <Tile
              key={move.number}
              x={x}
              y={y}
              grid={grid}
              lift={flight.lift}
              text={held(cell)}
              ranks={replay.contributors(before, cell)}
              many={replay.ranks}
            />
          );
        })}
      </g>
    );
  const into = new Map<number, Move[]>();
  for (const move of moves) {
    const cell = move.destination * replay.width + move.into;
    into.set(cell, [...(into.get(cell) ?? []), move]);
  }
  return (
    <g class="travel">
      {[...into].map(([cell, coming]) => {
        const { rank, chunk } = replay.place(cell);
        const [x, y] = middle(rank, chunk);
        const merging = flight.phase === "merging";
        const own = held(cell);
        const adds = coming.some((move) => move.reduces);
        const terms = [
          ...(adds && own ? [own] : []),
          ...coming.map((move) => held(move.source * replay.width + move.chunk)),
        ];
        const text = merging && adds ? terms.join(signOf(numbers.op)) : (amountIn(numbers, replay, after, cell) ?? "");
        return (
          <Tile
            key={cell}
            x={x}
            y={y}
            grid={grid}
            lift={merging ? 0.3 : 0}
            size={flight.size}
            text={text}
            ranks={replay.contributors(after, cell)}
            many={replay.ranks}
            right={!merging && replay.asPromised(after, cell)}
          />
        );
      })}
    </g>
  );
}

/** A number with its colours, as large as its cell; broader if the number is. */
function Tile(props: {
  x: number;
  y: number;
  grid: Grid;
  lift: number;
  text: string;
  ranks: number[];
  many: number;
  size?: number;
  right?: boolean;
}): JSX.Element {
  const { grid, lift, size = 1 } = props;
  const text = props.text.length > 16 ? `${props.text.slice(0, 15)}…` : props.text;
  const letter = numberSize(grid);
  const high = grid.cellY;
  const wide = Math.max(grid.cellX, text.length * letter * 0.62 + 12);
  const [x, y] = [-wide / 2, -high / 2];
  const scale = size * (1 + 0.08 * lift);
  // Arcs of the last column run along the edge: the tile stays in the picture.
  const reach = (wide / 2 + 2) * scale;
  const middle = clamp(props.x, reach, Math.max(reach, grid.width - reach));
  const ground: ComponentChildren = (
    <>
      <rect class="under" x={x + 1} y={y + 1 + 4 * lift} width={wide} height={high} rx={6} opacity={0.25 * lift} />
      <rect
        class={props.right ? "cell right tile" : "cell tile"}
        x={x}
        y={y}
        width={wide}
        height={high}
        rx={Math.min(6, grid.cellX / 6)}
      />
    </>
  );
  return (
    <g
      class="traveller"
      transform={`translate(${tenth(middle)} ${tenth(props.y - 3 * lift)}) scale(${scale.toFixed(3)})`}
    >
      {ground}
      <Quilt ranks={props.ranks} many={props.many} x={x + 1} y={y + 1} width={wide - 2} height={high - 2} />
      <text class="amount" y={-1} font-size={letter}>
        {text}
      </text>
    </g>
  );
}

/** The size of the numbers in the cells of a grid. */
export const numberSize = (grid: Grid): number => clamp(grid.cellX / 2.6, 10, 17);
