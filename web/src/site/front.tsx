/** The front page of the site: what it is for, above the editor; proofs and price of the code, below. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Entry } from "../document";
import { casesOf, data } from "../source";
import { state } from "../state";
import { bytes, plural, seconds, timesS } from "../words";
import { starting } from "./python";
import "./site.css";

export function Hero(): JSX.Element {
  return (
    <section class="hero">
      <h2>Write a collective. It is proved as you type.</h2>
      <p>
        Each <code>yield</code> is a step: a list of <code>copy</code> and <code>reduce</code> moves. Change the code:
        allfold’s own Python, in this page, proves it for 1 to 17 ranks, prices and plays it, or says which rank, chunk,
        step and line is wrong. Nothing to install, and nothing leaves your browser.
      </p>
      <Links />
    </section>
  );
}

function Links(): JSX.Element {
  return (
    <p class="links">
      {Object.entries(data().site?.links ?? {}).map(([says, address]) => (
        <a key={address} href={address}>
          {says}
        </a>
      ))}
      <Share />
    </p>
  );
}

function Share(): JSX.Element {
  const [says, setSays] = useState("copy the link to this code");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(location.href);
      setSays("copied: whoever opens it sees this code proved");
    } catch {
      setSays("the address of this page is the link: copy it from there");
    }
    setTimeout(() => setSays("copy the link to this code"), 4000);
  };
  return (
    <button type="button" onClick={() => void copy()}>
      {says}
    </button>
  );
}

/** How far Python has come while it loads. */
export function Starting(): JSX.Element | null {
  const now = starting.value;
  if (!now) return null;
  return (
    <p class="starting" role="status">
      <progress max={1} value={now.part} aria-label="Python is starting" />
      <span>{now.says} … once; then an edit takes a moment.</span>
    </p>
  );
}

/** What it costs, and which built-in algorithm is fastest there. */
export function Price(props: { entry: Entry }): JSX.Element | null {
  const { counts, bounds, modelled, proof, schedule } = props.entry;
  const { topology, size, collective } = state.value;
  if (!proof.ok) return null;
  const here = casesOf(collective, topology).find((one) => one.ranks === schedule.ranks);
  const at = here ? here.sizes.indexOf(size) : -1;
  const times = here && at >= 0 ? here.algorithms.filter((one) => one.times.length > at) : [];
  const best = times.reduce<[string, number] | null>(
    (old, one) => (old && old[1] <= one.times[at] ? old : [one.name, one.times[at]]),
    null,
  );
  return (
    <p class="price">
      <b>
        {plural(schedule.steps.length, "step")}, {plural(counts.messages, "message")},{" "}
        {timesS(counts.busiest_port_bytes)} through the busiest port
      </b>{" "}
      (no algorithm can do with less than {plural(bounds.rounds, "round")} and {timesS(bounds.busiest_port_bytes)}).
      {modelled && (
        <>
          {" "}
          <b>{seconds(modelled.seconds)}</b> for {bytes(size)} on {topology.split(":")[0].replaceAll("_", " ")}
          {best && `; the fastest built-in one is ${best[0]}, ${seconds(best[1])}`}.
        </>
      )}
    </p>
  );
}
