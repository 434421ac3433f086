/** A light per number of ranks, 1 to 17: for which of them the code is proved, and the first that is wrong. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Entry, Verdict } from "../document";
import { draft, drafted } from "../draft";
import { every } from "../numbers";
import { choose, data, edited, outdated, request } from "../source";
import { state } from "../state";
import { listed, messageOf, plural } from "../words";

const MOST = 17; // ranks
const PAUSE = 300; // milliseconds: the picture comes first

interface Proved {
  /** The code and collective that they are about. */
  of: string;
  verdicts: Verdict[];
  failed?: string;
}

/** The verdicts, one after the other, for code that runs. */
function useVerdicts(entry: Entry): Proved {
  const { collective, algorithm } = state.value;
  const text = drafted.value ? draft.value!.text : (entry.code?.text ?? "");
  const of = JSON.stringify([collective, drafted.value ? "" : algorithm, text]);
  const [found, setFound] = useState<Proved>({ of: "", verdicts: [] });
  const first = data().site;
  const known = first?.first?.code?.text === text ? first.verdicts : undefined;
  const ready = !drafted.value || edited.value !== null;
  useEffect(() => {
    if (known || !ready || !text) return;
    let wanted = true;
    const prove = async (): Promise<void> => {
      let verdicts: Verdict[] = [];
      for (const ranks of every(MOST).map((one) => one + 1)) {
        const root = entry.schedule.root === null ? null : 0;
        const file = drafted.value ? draft.value!.original.file : (entry.code?.file ?? null);
        const question = { collective, algorithm, ranks, root, code: text, file, many: [ranks] };
        try {
          const { verdicts: more } = await request<{ verdicts: Verdict[] }>("/api/prove", question);
          if (!wanted) return;
          setFound({ of, verdicts: (verdicts = [...verdicts, ...more]) });
        } catch (error) {
          if (wanted) setFound({ of, verdicts, failed: messageOf(error) });
          return;
        }
      }
    };
    const timer = setTimeout(() => void prove(), PAUSE);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [of, ready, known]);
  if (known) return { of, verdicts: known };
  return found.of === of && ready ? found : { of, verdicts: [] };
}

export function Lights(props: { entry: Entry }): JSX.Element {
  const { verdicts, failed } = useVerdicts(props.entry);
  const off = outdated.value === "does not run";
  const wrong = verdicts.filter((one) => !one.ok);
  const first = wrong.length > 0 ? wrong[0] : null;
  return (
    <section class="lights" aria-label="Proofs">
      <ol>
        {every(MOST).map((index) => {
          const one = off ? undefined : verdicts[index];
          const says = !one ? "not proved yet" : one.ok ? "proved" : one.message;
          return (
            <li key={index}>
              <button
                type="button"
                class={!one ? "" : one.ok ? "right" : "wrong"}
                aria-current={state.value.ranks === index + 1}
                title={`${plural(index + 1, "rank")}: ${says}`}
                onClick={() => choose({ ranks: index + 1, ...(one?.root ? { root: one.root } : {}) })}
              >
                <span aria-hidden="true">{!one ? "·" : one.ok ? "✓" : "✗"}</span>
                {index + 1}
                <span class="unseen">
                  {plural(index + 1, "rank")}: {says}
                </span>
              </button>
            </li>
          );
        })}
      </ol>
      <p class={first ? "alarm" : verdicts.length === MOST ? "good" : "soft"} role="status">
        {off
          ? "Nothing to prove: the code does not run."
          : first
            ? `Wrong for ${listed(wrong.map((one) => one.ranks))} ${wrong.length === 1 && first.ranks === 1 ? "rank" : "ranks"}. ${first.message}`
            : verdicts.length === MOST
              ? `Proved for 1 to ${MOST} ranks${props.entry.schedule.root === null ? "" : ", every root"}: every contribution arrives exactly once, and the compiled programs cannot deadlock.`
              : failed
                ? failed
                : verdicts.length
                  ? `Proved for 1 to ${verdicts.length} …`
                  : "Every number of ranks from 1 to 17 is proved as you type."}
      </p>
    </section>
  );
}
