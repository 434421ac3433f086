/** What is shown: collective, algorithm, ranks, root, topology, size. In a file only what is embedded can be chosen. */

import type { JSX } from "preact";
import { againstState, asAgainst, choices, choose, current, data, edited, inStudio } from "./source";
import { go, notice, state } from "./state";
import { bytes } from "./words";

const MOST_RANKS = 1024;

export function Choose(): JSX.Element {
  const one = state.value;
  const may = choices(one);
  const summary = data().catalogue.find(
    (row) => row.collective === one.collective && row.algorithm === one.algorithm,
  )?.summary;
  return (
    <form class="choose" onSubmit={(event) => event.preventDefault()}>
      <Pick
        label="collective"
        value={one.collective}
        options={may.collectives}
        onPick={(collective) => choose({ collective })}
      />
      <Pick
        label="algorithm"
        value={one.algorithm}
        options={may.algorithms}
        onPick={(algorithm) => choose({ algorithm })}
      />
      {inStudio() ? (
        <label>
          <span>ranks</span>
          <input
            type="number"
            min={1}
            max={MOST_RANKS}
            value={one.ranks}
            onChange={(event) => {
              const ranks = Math.round(Number(event.currentTarget.value));
              if (ranks >= 1 && ranks <= MOST_RANKS) choose({ ranks });
              else {
                notice.value = `The studio draws 1 to ${MOST_RANKS} ranks, not ${event.currentTarget.value || "none"}. This is still ${one.ranks}.`;
                event.currentTarget.value = String(one.ranks);
              }
            }}
          />
        </label>
      ) : (
        <Pick
          label="ranks"
          value={String(one.ranks)}
          options={may.ranks.map(String)}
          onPick={(ranks) => choose({ ranks: Number(ranks) })}
        />
      )}
      {may.roots.length > 0 && (
        <Pick
          label="root"
          value={String(one.root ?? 0)}
          options={may.roots.map(String)}
          onPick={(root) => choose({ root: Number(root) })}
        />
      )}
      <Pick
        label="topology"
        value={one.topology}
        options={may.topologies}
        shown={(name) => name.split(":")[0].replace(/_/g, " ")}
        onPick={(topology) => choose({ topology })}
      />
      <Pick
        label="size"
        value={String(one.size)}
        options={(may.sizes.includes(one.size) ? may.sizes : [...may.sizes, one.size].sort((a, b) => a - b)).map(
          String,
        )}
        shown={(size) => bytes(Number(size))}
        onPick={(size) => choose({ size: Number(size) })}
      />
      <Against />
      {summary && <p class="summary">{summary}</p>}
    </form>
  );
}

/** What it is compared with: another algorithm, on this topology or another; the schedule before an edit; a recording. */
function Against(): JSX.Element | null {
  const one = state.value;
  const { entry } = current.value;
  const own = edited.value ? [one.algorithm] : [];
  const recorded = entry?.recording?.events.length ? ["measured"] : [];
  const others = choices(one).algorithms.filter((name) => name !== one.algorithm);
  const options = ["", ...recorded, ...own, ...others];
  const other = againstState(one);
  const chosen = one.against === null ? "" : (other?.algorithm ?? "measured");
  if (options.length === 1 && !chosen) return null;
  const named = (name: string): string =>
    name === "" ? "nothing" : name === "measured" ? "its recording" : name === one.algorithm ? "before the edit" : name;
  const may = other && choices({ ...one, algorithm: other.algorithm });
  return (
    <>
      <Pick
        label="compared with"
        value={chosen}
        options={options}
        shown={named}
        onPick={(name) => go({ against: name === "" ? null : name })}
      />
      {other && may!.topologies.length > 1 && (
        <Pick
          label="… on"
          value={other.topology}
          options={may!.topologies}
          shown={(name) => name.split(":")[0].replace(/_/g, " ")}
          onPick={(topology) => go({ against: asAgainst({ ...other, topology }, one) })}
        />
      )}
    </>
  );
}

function Pick(props: {
  label: string;
  value: string;
  options: string[];
  shown?: (value: string) => string;
  onPick: (value: string) => void;
}): JSX.Element {
  const options = props.options.includes(props.value) ? props.options : [props.value, ...props.options];
  const shown = props.shown ?? ((value: string) => value);
  return (
    <label title={props.value}>
      <span>{props.label}</span>
      {/* A single option is shown as text, not as a choice. */}
      {options.length === 1 ? (
        <output>{shown(options[0]) || "none"}</output>
      ) : (
        <select value={props.value} onChange={(event) => props.onPick(event.currentTarget.value)}>
          {options.map((value) => (
            <option key={value} value={value}>
              {shown(value)}
            </option>
          ))}
        </select>
      )}
    </label>
  );
}
