/** The code of two schedules as a difference, line by line. */

import type { JSX } from "preact";
import { diffOf, type Row } from "../diff";
import { inLines } from "../python";
import { replayOf } from "../source";
import type { Side } from "../why";
import { movesAsLines } from "./code";

const AROUND = 4; // lines that both have are shown this far around a difference

interface Fold {
  rows: Row[];
  folded: boolean;
}

/** Runs of lines; what both have, far from any difference, is folded. */
function folds(rows: Row[]): Fold[] {
  const near = rows.map(() => false);
  rows.forEach((row, i) => {
    if (row.left !== null && row.right !== null) return;
    for (let k = Math.max(0, i - AROUND); k <= Math.min(rows.length - 1, i + AROUND); k++) near[k] = true;
  });
  const found: Fold[] = [];
  rows.forEach((row, i) => {
    const last = found[found.length - 1];
    if (last && last.folded === !near[i]) last.rows.push(row);
    else found.push({ rows: [row], folded: !near[i] });
  });
  return found;
}

export function CodeDiff(props: { one: Side; other: Side }): JSX.Element {
  const [a, b] = [props.one, props.other].map(({ entry }) => entry.code ?? movesAsLines(replayOf(entry)));
  if (a.text === b.text)
    return (
      <p class="note">
        {props.one.name} and {props.other.name} come from the same file, {a.file}
        {props.one.entry.schedule.algorithm === props.other.entry.schedule.algorithm ? ", and the same function." : "."}
      </p>
    );
  const rows = diffOf(a.text, b.text);
  const only = (side: "left" | "right"): number => rows.filter((row) => row[side] === null).length;
  return (
    <figure class="listing diff">
      <figcaption>
        <span class="gone">− {a.file}</span> <span class="new">+ {b.file}</span>
        <span class="soft">
          {only("right")} lines only in {props.one.name}, {only("left")} only in {props.other.name}
        </span>
      </figcaption>
      <div class="scroll" tabIndex={0}>
        {folds(rows).map((fold, i) =>
          fold.folded && fold.rows.length > 3 ? (
            <details key={i}>
              <summary>{fold.rows.length} lines that both have</summary>
              <Rows rows={fold.rows} />
            </details>
          ) : (
            <Rows key={i} rows={fold.rows} />
          ),
        )}
      </div>
    </figure>
  );
}

function Rows(props: { rows: Row[] }): JSX.Element {
  return (
    <pre>
      {props.rows.map((row, i) => (
        <div key={i} class={row.right === null ? "row gone" : row.left === null ? "row new" : "row"}>
          <i>{row.left ?? ""}</i>
          <i>{row.right ?? ""}</i>
          <b>{row.right === null ? "−" : row.left === null ? "+" : " "}</b>
          <code>
            {inLines(row.text)[0].map((word, k) => (
              <span key={k} class={word.kind}>
                {word.text}
              </span>
            ))}
          </code>
        </div>
      ))}
    </pre>
  );
}
