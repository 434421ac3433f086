/** The reader's own numbers: typed as for `allfold show --values`, and how they are combined. */

import type { JSX } from "preact";
import { carriesNumbers, MOST_RANKS, OPS, randomNumbers, rowsIn } from "../amounts";
import { Quiet } from "../picture";
import type { Replay } from "../replay";
import { choose, inStudio, numbersFor } from "../source";
import { go, showNumbers, state } from "../state";

export function OwnNumbers(props: { replay: Replay }): JSX.Element | null {
  const { replay } = props;
  if (!carriesNumbers(replay) || replay.ranks > MOST_RANKS) return null;
  const { values, op } = state.value;
  const { wrong } = numbersFor(replay);
  const take = (text: string): void => {
    const typed = text.trim() === "random" ? randomNumbers(replay) : text.trim();
    // As in the terminal: as many ranks as there are rows. A file holds what it holds.
    const ranks = rowsIn(typed);
    if (inStudio() && ranks !== null && ranks !== replay.ranks && ranks <= MOST_RANKS) choose({ ranks });
    go({ values: typed || null });
    showNumbers.value = true;
  };
  return (
    <form class="own-numbers" onSubmit={(event) => event.preventDefault()}>
      <label>
        your own numbers, one row per rank
        <input
          type="text"
          autocomplete="off"
          placeholder="1 2 3; 4 5 6; 7 8 9"
          value={values ?? ""}
          aria-invalid={wrong !== null}
          onChange={(event) => take(event.currentTarget.value)}
        />
      </label>
      {replay.reduces && (
        <label>
          combined by
          <select
            value={op}
            onChange={(event) => {
              // An operation needs numbers that it is asked of: those of the page are for sums.
              go({ op: event.currentTarget.value, values: values ?? randomNumbers(replay) });
              showNumbers.value = true;
            }}
          >
            {OPS.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      )}
      <Quiet onClick={() => take("random")}>random</Quiet>
      {values !== null && <Quiet onClick={() => go({ values: null, op: "sum" })}>reset</Quiet>}
      {wrong !== null && (
        <p class="alarm" role="alert">
          {wrong}
        </p>
      )}
    </form>
  );
}
