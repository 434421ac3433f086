/** Bytes from rank to rank as a matrix: for more ranks than a drawing of the network has room for. */

import type { ComponentChildren } from "preact";
import type { Entry } from "../document";
import { clamp, every, unique } from "../numbers";
import { fullness } from "../palette";
import { lights, type Drawn } from "../picture";
import { remembered } from "../remembered";
import type { Replay } from "../replay";
import { state } from "../state";
import { bytes } from "../words";
import { followedCut, followedTree } from "./follow";

const MOST_SQUARES = 64; // per side; more ranks are grouped

/** The hosts that are framed in the matrix; none if ranks are grouped. */
export function hostsOf(entry: Entry, replay: Replay): number[] {
  const host = entry.topology?.host;
  return host && replay.ranks <= MOST_SQUARES ? unique(host.slice(0, replay.ranks)) : [];
}

/** The pairs that the followed tree takes, or that lead out of the followed cut; null if nothing is followed. */
function litPairs(entry: Entry, block: (rank: number) => number, side: number): Set<number> | null {
  const tree = followedTree(entry);
  if (tree) return new Set(tree.branches.map((one) => block(one.source) * side + block(one.destination)));
  const cut = followedCut(entry);
  if (!cut || cut.ranks.length === entry.schedule.ranks) return null; // all ranks together: every pair crosses
  const inside = new Set(cut.ranks);
  const pairs = new Set<number>();
  for (const one of every(entry.schedule.ranks)) {
    for (const other of every(entry.schedule.ranks)) {
      const [from, to] = cut.receives ? [other, one] : [one, other];
      if (inside.has(one) && !inside.has(other)) pairs.add(block(from) * side + block(to));
    }
  }
  return pairs;
}

interface Flow {
  all: Float64Array;
  /** What was sent when so many steps were done: playing goes on from there. */
  done: number;
  sofar: Float64Array;
}

/** Moves from block to block of ranks, in all steps. */
const flowOf = remembered((replay: Replay, side: number): Flow => {
  const flow: Flow = { all: new Float64Array(0), done: 0, sofar: new Float64Array(side * side) };
  const block = (rank: number): number => Math.floor((rank * side) / replay.ranks);
  flow.all = sofarOf(flow, replay, replay.steps, side, block).slice();
  return flow;
});

function sofarOf(
  flow: Flow,
  replay: Replay,
  step: number,
  side: number,
  block: (rank: number) => number,
): Float64Array {
  if (step < flow.done) {
    flow.sofar.fill(0);
    flow.done = 0;
  }
  for (; flow.done < step; flow.done++)
    for (const [, , source, destination] of replay.schedule.steps[flow.done])
      if (source !== destination) flow.sofar[block(source) * side + block(destination)]++;
  return flow.sofar;
}

/** Bytes from rank to rank so far: rows send, columns receive. More than 64 ranks are grouped into blocks. */
export function drawMatrix(entry: Entry, replay: Replay, step: number, width: number): Drawn {
  const side = Math.min(MOST_SQUARES, replay.ranks);
  const [left, top] = [64, 46];
  const cell = clamp(Math.floor((Math.min(width, 860) - left - 16) / side), 4, 22);
  const block = (rank: number): number => Math.floor((rank * side) / replay.ranks);
  const flow = flowOf(replay, side);
  const { all } = flow;
  const fresh = new Set<number>();
  for (const [, , source, destination] of step ? replay.schedule.steps[step - 1] : [])
    if (source !== destination) fresh.add(block(source) * side + block(destination));
  // At the start, everything that is to come is shown, faintly.
  const sofar = step === 0 ? all : sofarOf(flow, replay, step, side, block);
  const most = Math.max(...all, 1);
  const chunk = state.value.size / replay.schedule.chunks;
  const lit = litPairs(entry, block, side);
  const cells: ComponentChildren[] = [];
  for (let place = 0; place < all.length; place++) {
    const [row, column] = [Math.floor(place / side), place % side];
    if (!all[place]) continue;
    cells.push(
      <rect
        key={place}
        class={`pair${fresh.has(place) ? " fresh" : ""}${lit?.has(place) === false ? " unlit" : ""}`}
        data-r={`${row} ${column}`}
        x={left + column * cell}
        y={top + row * cell}
        width={cell - 1}
        height={cell - 1}
        fill={fullness(0.12 + 0.88 * (sofar[place] / most))}
        opacity={step === 0 ? 0.5 : sofar[place] ? 1 : 0.35}
      >
        <title>{`rank ${row} to rank ${column}: ${bytes(sofar[place] * chunk)} of ${bytes(all[place] * chunk)}`}</title>
      </rect>,
    );
  }
  const labelled = Math.ceil(16 / cell);
  const host = entry.topology?.host;
  const hosts = hostsOf(entry, replay);
  const content = (
    <>
      <rect class="ground" x={left} y={top} width={side * cell - 1} height={side * cell - 1} />
      {cells}
      {hosts.map((one) => {
        const first = host!.indexOf(one);
        const many = host!.slice(0, replay.ranks).filter((other) => other === one).length;
        return (
          <rect
            key={one}
            class="hostline"
            x={left + first * cell - 0.5}
            y={top + first * cell - 0.5}
            width={many * cell}
            height={many * cell}
          />
        );
      })}
      {every(side, labelled).map((row) => (
        <g key={row}>
          <text
            class="label hot"
            x={left - 8}
            y={top + row * cell + cell / 2 + 4}
            text-anchor="end"
            {...lights({ ranks: [row] })}
          >
            {Math.ceil((row * replay.ranks) / side)}
          </text>
          {row % (2 * labelled) === 0 && (
            <text
              class="label hot"
              x={left + row * cell + cell / 2}
              y={top - 8}
              text-anchor="middle"
              {...lights({ ranks: [row] })}
            >
              {Math.ceil((row * replay.ranks) / side)}
            </text>
          )}
        </g>
      ))}
      <text class="axis" x={left} y={top - 28}>
        to rank →, from rank ↓
      </text>
    </>
  );
  return { width: Math.max(width, left + side * cell + 8), height: top + side * cell + 10, content };
}
