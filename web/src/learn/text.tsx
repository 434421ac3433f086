/** The blocks of a lesson's text: prose, code, tables, and schedules as pictures that can be played. */

import type { JSX } from "preact";
import { Lines } from "../views/code";
import type { Block } from "./data";
import { Film } from "./film";

export function Text(props: { blocks: Block[] }): JSX.Element {
  return (
    <div class="prose">
      {props.blocks.map((block, i) => {
        if (block.kind === "figure") return <Film key={i} entry={block.entry} titled={!block.entry.values} />;
        if (block.kind === "table") return <Rows key={i} rows={block.rows} />;
        if (block.kind === "code") return <Code key={i} language={block.language} text={block.text} />;
        // Python made it from the lesson's own Markdown, in which HTML is switched off.
        return <div key={i} dangerouslySetInnerHTML={{ __html: block.html }} />;
      })}
    </div>
  );
}

export function Rows(props: { rows: string[][] }): JSX.Element {
  const [head, ...rows] = props.rows;
  return (
    <div class="rows">
      <table>
        <thead>
          <tr>
            {head.map((cell) => (
              <th key={cell}>{cell}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Code(props: { language: string; text: string }): JSX.Element {
  if (props.language !== "python")
    return (
      <pre class="plain" tabIndex={0}>
        {props.text.trimEnd()}
      </pre>
    );
  return (
    <div class="scroll unnumbered" tabIndex={0}>
      <Lines text={props.text} first={1} lit={new Set()} wrong={null} />
    </div>
  );
}
