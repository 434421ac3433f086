/** Which times "who wins where" shows: those planned for the topology, or "what if", with a slider per figure. */

import type { JSX } from "preact";
import { signal } from "@preact/signals";
import type { Case, Entry } from "../document";
import type { Figures } from "../model";
import { clamp } from "../numbers";
import { rate, seconds } from "../words";

/** The slider values of "what if"; null while the times are those that are planned for the topology. */
export const figures = signal<Figures | null>(null);
export const ranksShown = signal<number | null>(null);

function figuresOf(entry: Entry): Figures {
  const topology = entry.topology;
  const finite = (value: number | "inf" | undefined, otherwise: number): number =>
    typeof value === "number" && isFinite(value) && value > 0 ? value : otherwise;
  return {
    latency: topology ? Math.max(1e-8, topology.latency + topology.overhead) : 2e-6,
    bandwidth: finite(topology?.bandwidth, 12e9),
    reduction: finite(topology?.reduction, 30e9),
  };
}

export function Sliders(props: { cases: Case[]; here: Case; entry: Entry }): JSX.Element {
  const { cases, here, entry } = props;
  const ranks = cases.map((one) => one.ranks);
  const now = figures.value;
  return (
    <>
      <div class="chips" role="group" aria-label="Network">
        <button
          type="button"
          aria-pressed={!now}
          disabled={!here.winners.length}
          onClick={() => (figures.value = null)}
        >
          as planned
        </button>
        <button type="button" aria-pressed={!!now} onClick={() => (figures.value ??= figuresOf(entry))}>
          what if …
        </button>
      </div>
      <div class="sliders">
        <label>
          <span>ranks</span>
          <input
            type="range"
            min={0}
            max={ranks.length - 1}
            value={ranks.indexOf(here.ranks)}
            onInput={(event) => (ranksShown.value = ranks[Number(event.currentTarget.value)])}
          />
          <output>{here.ranks}</output>
        </label>
        {now &&
          FIGURES.map((one) => (
            <LogSlider
              key={one.figure}
              {...one}
              value={now[one.figure]}
              onSet={(value) => (figures.value = { ...now, [one.figure]: value })}
            />
          ))}
      </div>
    </>
  );
}

interface Range {
  figure: keyof Figures;
  label: string;
  least: number;
  most: number;
  shown: (value: number) => string;
}

const FIGURES: Range[] = [
  { figure: "latency", label: "latency", least: 1e-8, most: 1e-4, shown: seconds },
  { figure: "bandwidth", label: "bandwidth", least: 1e8, most: 1e12, shown: rate },
  { figure: "reduction", label: "combining", least: 1e8, most: 1e13, shown: rate },
];

function LogSlider(props: Range & { value: number; onSet: (value: number) => void }): JSX.Element {
  const { least, most } = props;
  const place = Math.log(props.value / least) / Math.log(most / least);
  return (
    <label>
      <span>{props.label}</span>
      <input
        type="range"
        min={0}
        max={1000}
        value={Math.round(clamp(place, 0, 1) * 1000)}
        aria-valuetext={props.shown(props.value)}
        onInput={(event) => props.onSet(least * (most / least) ** (Number(event.currentTarget.value) / 1000))}
      />
      <output>{props.shown(props.value)}</output>
    </label>
  );
}
