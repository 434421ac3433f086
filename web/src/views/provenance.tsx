/** How the content of one cell came together, contribution by contribution. */

import type { JSX } from "preact";
import { colourOf } from "../palette";
import { Quiet } from "../picture";
import { nameRanks, NOTHING, type Move, type Replay } from "../replay";
import { asked } from "../state";
import { sentence } from "../words";

/** `came via 4 → 5 → 6, in steps 1, 2`. */
function viaOf(path: Move[]): string {
  const stops = [path[0].source, ...path.map((move) => move.destination)].filter((rank, i, all) => rank !== all[i - 1]);
  const steps = path.map((move) => move.step + 1).join(", ");
  const way = stops.length > 1 ? `came via ${stops.join(" → ")}` : "was moved within the rank";
  return `${way}, in ${path.length === 1 ? "step" : "steps"} ${steps}`;
}

export function Provenance(props: { replay: Replay; done: number }): JSX.Element | null {
  const { replay, done } = props;
  const { rank, chunk } = asked.value!;
  if (rank >= replay.ranks || chunk >= replay.width) return null;
  const paths = replay.provenance(done, rank, chunk);
  const state = replay.at(done);
  const cell = rank * replay.width + chunk;
  const there = replay.contributors(state, cell);
  const what =
    state.datum[cell] === NOTHING
      ? "holds nothing"
      : !replay.reduces
        ? `holds ${replay.nameOf(state.datum[cell])}`
        : there.length === replay.ranks
          ? "holds the parts of all ranks, combined"
          : `holds ${there.length === 1 ? "the part" : "the parts"} of ${nameRanks(there)}${there.length === 1 ? "" : ", combined"}`;
  return (
    <div class="provenance">
      <h3>
        Rank {rank}, chunk {chunk} {what}
        <Quiet onClick={() => (asked.value = null)} aria-label="Close">
          ×
        </Quiet>
      </h3>
      <ul>
        {paths.slice(0, 64).map((one, i) => (
          <li key={i}>
            <i class="dot" style={{ background: colourOf(one.rank, replay.ranks) }} />
            <span>rank {one.rank}</span>
            <span class="path" title={one.path.map(sentence).join("; ")}>
              {one.path.length ? viaOf(one.path) : "was here from the start"}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
