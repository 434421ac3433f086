/** What a reader takes along: a view as a picture or a clip, and what it shows as data. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { canFilm, saveClip } from "./clip";
import type { Entry } from "./document";
import { download } from "./download";
import { asCsv, asJson, asTrace } from "./exports";
import { Quiet } from "./picture";
import { savePng, saveSvg } from "./save";
import { asMsccl } from "./source";
import { notice, state } from "./state";
import { messageOf, percent } from "./words";
import { happeningOf } from "./views/time";

/** The view as a picture or a clip, and what it shows as data for other programs. */
export function Save(props: { entry: Entry; id: string; file: string; caption: string; films: boolean }): JSX.Element {
  const { entry, id, file, caption } = props;
  const [filmed, setFilmed] = useState<number | null>(null);
  const [writing, setWriting] = useState(false);
  const { collective, algorithm, ranks } = entry.schedule;
  const name = `${collective}-${algorithm}-${ranks}`;
  const film = async (): Promise<void> => {
    await saveClip(id, file, caption, setFilmed);
    setFilmed(null);
  };
  const data: Record<string, () => [text: string | Promise<string>, ending: string]> = {
    "schedule (JSON)": () => [asJson(entry), "json"],
    "MSCCL XML": () => [asMsccl(entry), "xml"],
    "messages (CSV)": () => [asCsv(happeningOf(entry, state.value.clock)), "csv"],
    "trace (Perfetto)": () => [asTrace(happeningOf(entry, state.value.clock)), "trace.json"],
  };
  const saveData = async (what: string): Promise<void> => {
    notice.value = null;
    setWriting(true);
    try {
      const [text, ending] = data[what]();
      download(new Blob([await text]), `${name}.${ending}`);
    } catch (error) {
      notice.value = messageOf(error);
    }
    setWriting(false);
  };
  return (
    <span class="save">
      <Quiet onClick={() => saveSvg(id, file, caption)}>SVG</Quiet>
      <Quiet onClick={() => void savePng(id, file, caption)}>PNG</Quiet>
      {props.films && canFilm() && (
        <Quiet disabled={filmed !== null} onClick={() => void film()} title="Six seconds as WebM">
          {filmed === null ? "clip" : `filming, ${percent(filmed)}`}
        </Quiet>
      )}
      <select
        aria-label="Save data"
        value=""
        onChange={(event) => {
          const what = event.currentTarget.value;
          event.currentTarget.value = "";
          if (what) void saveData(what);
        }}
        disabled={writing}
      >
        <option value="">{writing ? "writing …" : "data"}</option>
        {Object.keys(data).map((what) => (
          <option key={what}>{what}</option>
        ))}
      </select>
    </span>
  );
}
