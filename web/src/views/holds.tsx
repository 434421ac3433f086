/** Who holds what: one row per rank, one column per chunk, one mark per contribution, one arc per move. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { ReadonlySignal } from "@preact/signals";
import type { Entry } from "../document";
import { every } from "../numbers";
import { colourOf, fullness } from "../palette";
import { Key, lights, Picture, Quiet, Scale, Steady, Twin, type Drawn } from "../picture";
import { fraction } from "../player";
import { remembered } from "../remembered";
import type { Replay, State } from "../replay";
import { asked, showNumbers } from "../state";
import { numbersFor, replayOf } from "../source";
import { opening, reading, sentencesOf } from "../story";
import { onlyChunks, type Tree } from "../trees";
import { moment, plural, stepSentence } from "../words";
import { Arcs, arcsFit, Paths, TreePaths } from "./arcs";
import { Callout, calloutHeight, cellToExplain, changed, explained } from "./callout";
import { asNumbers, canBeNumbers, Marks } from "./cells";
import { drawBlocks, drawSquare, MOST_ROWS } from "./crowd";
import { Cross, DenseCells, denseLayers } from "./dense";
import { followChunk, Follow, followedTree, TreePicture } from "./follow";
import { isNarrow, layOut, layOutShaded, NARROWEST, spaceIn, type Grid } from "./grid";
import { OwnNumbers } from "./own_numbers";
import { Provenance } from "./provenance";
import { Wrong, wrongLines } from "./wrong";
import type { View } from "./view";

export const view: View = {
  name: "holds",
  title: "Who holds what",
  summary: "every chunk on every rank, and the moves that change it",
  key: "1",
  draw: Holds,
  needs: ["schedule", "starts", "ends", "proof"],
  plays: "steps",
};

/** Up to this many ranks, cells show numbers or marks in the ranks' colours; beyond, and on a phone sooner, they are shaded. */
const COLOURED = 16;
const COLOURED_NARROW = 8;
const LEGIBLE = 28; // pixels of a column: below, no number fits into its cells

const isShaded = (replay: Replay, width: number): boolean =>
  replay.ranks > (isNarrow(width) ? COLOURED_NARROW : COLOURED) ||
  (isNarrow(width) && spaceIn(width) / replay.width < LEGIBLE);

/** The height in which all ranks are in sight. */
const heightInSight = (): number => Math.max(240, innerHeight - 400);

/** While the moves of a step are on their way, cells show what they held before it. */
export function Holds(props: {
  entry: Entry;
  step: number;
  moving?: boolean;
  /** How far the step is; the player's, if the picture has no clock of its own. */
  clock?: ReadonlySignal<number>;
  compact?: boolean;
  /** Without words of its own: the page around it has them. */
  quiet?: boolean;
}): JSX.Element {
  const followed = few(props.entry);
  const entry = followed?.entry ?? props.entry;
  const replay = replayOf(entry);
  const { moving = false, clock = fraction } = props;
  const state = replay.at(moving ? props.step - 1 : props.step);
  const label = `Who holds what, ${moment(state.done)}: ${plural(replay.ranks, "rank")} by ${plural(replay.width, "chunk")}`;
  const crowd = isCrowd(replay);
  const [width, setWidth] = useState(0);
  const sentences = sentencesOf(props.entry);
  return (
    <>
      {!props.compact && (
        <Steady
          class="opening"
          texts={[
            <p>{opening(props.entry)}</p>,
            ...sentences.told.map((one) => <p key={one.sentence}>{one.sentence}</p>),
          ]}
          at={props.step === 0 ? 0 : sentences.at(props.step) + 1 || -1}
        />
      )}
      <Picture
        name="holds"
        label={label}
        onWidth={setWidth}
        draw={(width) =>
          !crowd && !tooNarrow(replay, width)
            ? drawCells(entry, replay, state, moving ? clock : null, width, !props.compact, followed?.chunks)
            : replay.width === 1
              ? drawSquare(replay, state, width)
              : drawBlocks(replay, state, width, heightInSight())
        }
      />
      {!props.compact && (crowd ? <p class="legend" /> : <Legend replay={replay} shaded={isShaded(replay, width)} />)}
      {!props.compact && <p class="note">{reading(props.entry)}</p>}
      {!props.compact && !crowd && <OwnNumbers replay={replay} />}
      {!props.compact && <Follow entry={props.entry} />}
      {!props.compact && <TreePicture entry={props.entry} step={props.step} />}
      {!props.quiet && (
        <Twin live lines={[stepSentence(replay, props.step), ...wrongLines(replay, props.entry, props.step)]} />
      )}
      {!props.compact && asked.value && <Provenance replay={replay} done={props.step} />}
    </>
  );
}

/** Whether shaded cells would be too narrow to be seen: then neighbours are grouped. */
const tooNarrow = (replay: Replay, width: number): boolean =>
  isShaded(replay, width) && spaceIn(width) / replay.width < NARROWEST;

const isCrowd = (replay: Replay): boolean => replay.ranks > MOST_ROWS || replay.width > 4 * MOST_ROWS;

const MOST_FOLLOWED = 32;
const onlyFollowed = remembered((entry: Entry, tree: Tree) => {
  const chunks = tree.chunks.slice(0, MOST_FOLLOWED);
  return { entry: onlyChunks(entry, chunks), chunks };
});

/** Of a schedule with too many chunks for a grid, those of the followed tree alone. */
function few(entry: Entry): { entry: Entry; chunks: number[] } | null {
  const tree = followedTree(entry);
  return tree && entry.schedule.ranks <= MOST_ROWS && isCrowd(replayOf(entry)) ? onlyFollowed(entry, tree) : null;
}

/** `names` are the numbers of the chunks where not all of them are drawn. */
function drawCells(
  entry: Entry,
  replay: Replay,
  state: State,
  clock: ReadonlySignal<number> | null,
  width: number,
  explains: boolean,
  names?: number[],
): Drawn {
  const shaded = isShaded(replay, width);
  const wanted = showNumbers.value && canBeNumbers(replay);
  const explain = explains && !shaded && !names && entry.proof.ok;
  // At every step as high as at the start, so that the grid stays where it is.
  const start = cellToExplain(replay);
  const begins = explain
    ? explained(replay, replay.at(0), start, wanted ? numbersFor(replay).numbers : null, isNarrow(width))
    : "";
  const above = explain ? calloutHeight(begins, width) : 0;
  const grid = shaded
    ? layOutShaded(replay, width, heightInSight())
    : layOut(replay, width, wanted ? innerHeight - 440 - above : Infinity);
  const numbers = !shaded && asNumbers(replay, grid) ? numbersFor(replay).numbers : null;
  const step = clock ? state.done + 1 : state.done;
  const tree = names ? null : followedTree(entry);
  const callout = !explain
    ? null
    : step === 0
      ? { cell: start, text: begins }
      : changed(replay, step, numbers, tree?.chunks);
  const fresh = new Set<number>();
  const moves = replay.moves(step - 1);
  for (const move of moves) fresh.add(move.destination * replay.width + move.into);
  // In a still, lines to other columns pass behind the cells, so that they do not cross out text.
  const behind = !clock && moves.some((move) => move.chunk !== move.into);
  // Between shaded columns that touch there is no room for arcs.
  const arcs = grid.gap >= 6 ? <Arcs {...{ moves, replay, grid, clock, numbers }} /> : null;
  const content = (
    <g transform={above ? `translate(0 ${above})` : undefined}>
      <Labels entry={entry} replay={replay} grid={grid} names={names} />
      {behind && arcs}
      {shaded ? (
        <DenseCells replay={replay} grid={grid} changed={fresh} />
      ) : (
        <Marks replay={replay} state={state} grid={grid} changed={fresh} numbers={numbers} />
      )}
      {shaded && <Cross grid={grid} replay={replay} state={state} />}
      {!behind && arcs}
      {tree && <TreePaths replay={replay} grid={grid} tree={tree} />}
      {asked.value && <Paths replay={replay} grid={grid} done={state.done} of={asked.value} />}
      <Wrong entry={entry} replay={replay} state={state} grid={grid} />
      {callout && <Callout grid={grid} {...callout} width={width} height={above} />}
    </g>
  );
  const layers = shaded ? denseLayers(replay, state, grid) : undefined;
  return { width: grid.width, height: grid.height + above, content, layers };
}

function Labels(props: { entry: Entry; replay: Replay; grid: Grid; names?: number[] }): JSX.Element {
  const { entry, replay, grid, names } = props;
  const { chunks, scratch } = replay.schedule;
  const everyRow = Math.ceil(13 / grid.pitchY);
  const everyColumn = Math.ceil((names ? 34 : 20) / grid.pitchX);
  return (
    <g class="labels">
      <text class="axis" x={grid.left - 12} y={grid.top - 12} text-anchor="end">
        {grid.narrow ? "" : "chunk"}
      </text>
      {every(replay.width, everyColumn).map((chunk) => (
        <text
          key={`c${chunk}`}
          class="label hot"
          x={grid.x(chunk) + grid.cellX / 2}
          y={grid.top - 12}
          text-anchor="middle"
          {...lights({ chunk }, () => followChunk(entry, names?.[chunk] ?? chunk))}
        >
          <title>follow this chunk</title>
          {names?.[chunk] ?? chunk}
        </text>
      ))}
      {scratch > 0 && grid.pitchX > 14 && (
        <line
          class="hair"
          x1={grid.x(chunks) - grid.gap / 2}
          x2={grid.x(chunks) - grid.gap / 2}
          y1={grid.top - 22}
          y2={grid.height - 8}
        />
      )}
      {every(replay.ranks, everyRow).map((rank) => (
        <g key={`r${rank}`} class="hot" {...lights({ ranks: [rank] })}>
          <text class="label" x={grid.left - 12} y={grid.y(rank) + grid.cellY / 2 + 4} text-anchor="end">
            {grid.narrow || grid.pitchY < 16 ? rank : `rank ${rank}`}
          </text>
          {grid.cellY >= 14 && (
            <rect
              x={grid.left - 7}
              y={grid.y(rank) + grid.cellY / 2 - 7}
              width={3}
              height={14}
              rx={1.5}
              fill={colourOf(rank, replay.ranks)}
            />
          )}
        </g>
      ))}
    </g>
  );
}

function Legend(props: { replay: Replay; shaded: boolean }): JSX.Element {
  const { replay } = props;
  if (props.shaded) {
    return (
      <p class="legend">
        <Scale
          from="nothing"
          to={replay.reduces ? "the parts of all ranks" : "arrived"}
          colours={[0, 0.33, 0.66, 1].map(fullness)}
        />
        <Key sign="swatch changed">changed in this step</Key>
        {replay.schedule.scratch > 0 && <Key sign="upright">scratch follows</Key>}
        <span>point at a cell to read whose parts are in it</span>
      </p>
    );
  }
  const numbers = showNumbers.value && canBeNumbers(replay);
  return (
    <p class="legend">
      {canBeNumbers(replay) && (
        <Quiet onClick={() => (showNumbers.value = !showNumbers.value)}>
          {numbers ? "show contributions instead of numbers" : "show numbers instead of contributions"}
        </Quiet>
      )}
      <Key sign="swatch filled">
        {numbers
          ? "behind a number: whose parts are in it"
          : replay.reduces
            ? "a rank's contribution, in its own place"
            : "a piece, in the colour of the rank it came from"}
      </Key>
      <Key sign="swatch right">as {replay.schedule.collective} promises</Key>
      <Key sign="swatch changed">changed in this step</Key>
      {replay.kinds.reduce && <Key sign="line reduce">combined on arrival</Key>}
      {replay.kinds.copy && <Key sign="line copy">copied</Key>}
      {replay.schedule.scratch > 0 && <Key sign="upright">scratch follows</Key>}
      {!arcsFit(replay.moves(0).length) && (
        <span>too many moves per step for arcs; the cells they change are outlined</span>
      )}
    </p>
  );
}
