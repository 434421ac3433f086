/** The figures behind "who wins where": latency, bandwidth, combining speed and ranks, one slider each. */

import type { JSX } from "preact";
import { signal } from "@preact/signals";
import type { Entry } from "../document";
import type { Figures } from "../model";
import { clamp } from "../numbers";
import { Quiet } from "../picture";
import { rate, seconds } from "../words";

/** The slider values; until one is moved, those of the topology. */
export const figures = signal<Figures | null>(null);
export const ranksShown = signal<number | null>(null);

export function figuresOf(entry: Entry): Figures {
  const topology = entry.topology;
  const finite = (value: number | "inf" | undefined, otherwise: number): number =>
    typeof value === "number" && isFinite(value) && value > 0 ? value : otherwise;
  return {
    latency: topology ? Math.max(1e-8, topology.latency + topology.overhead) : 2e-6,
    bandwidth: finite(topology?.bandwidth, 12e9),
    reduction: finite(topology?.reduction, 30e9),
  };
}

export function Sliders(props: { known: number[]; ranks: number; now: Figures }): JSX.Element {
  const { known, ranks, now } = props;
  const set = (change: Partial<Figures>): void => void (figures.value = { ...now, ...change });
  return (
    <div class="sliders">
      <label>
        <span>ranks</span>
        <input
          type="range"
          min={0}
          max={known.length - 1}
          value={known.indexOf(ranks)}
          onInput={(event) => (ranksShown.value = known[Number(event.currentTarget.value)])}
        />
        <output>{ranks}</output>
      </label>
      {FIGURES.map((one) => (
        <LogSlider key={one.figure} {...one} value={now[one.figure]} onSet={(value) => set({ [one.figure]: value })} />
      ))}
      {(figures.value || ranksShown.value !== null) && (
        <Quiet
          onClick={() => {
            figures.value = null;
            ranksShown.value = null;
          }}
        >
          back to the topology's figures
        </Quiet>
      )}
    </div>
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
