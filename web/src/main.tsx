/** Where the page begins: the document that Python wrote into it, then the app. */

import { render } from "preact";
import { effect } from "@preact/signals";
import { App } from "./app";
import type { PageData } from "./document";
import { forgetEditsOnChange, open, settle } from "./source";
import { beside, besideFromHash, fromHash, state, toHash } from "./state";
import "./page.css";

const place = document.getElementById("allfold")!;

function start(): void {
  const page = JSON.parse(document.getElementById("allfold-data")!.textContent!) as PageData;
  if (page.format !== "allfold-page" || page.version !== 1) {
    place.textContent = `This page draws documents of the format allfold-page 1, not ${page.format} ${page.version}.`;
    return;
  }
  open(page);
  followHash();
  forgetEditsOnChange();
  place.textContent = "";
  render(<App />, place);
}

function followHash(): void {
  let seen = location.hash;
  const read = (): void => {
    seen = location.hash;
    state.value = fromHash(location.hash, state.value);
    beside.value = besideFromHash(location.hash);
    settle();
  };
  if (location.hash.length > 1) read();
  addEventListener("hashchange", read);
  let timer = 0;
  effect(() => {
    const hash = toHash(state.value, beside.value);
    // Browsers allow a few hundred changes of the address a minute; playing makes more.
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (location.hash !== seen) return; // somebody has gone elsewhere meanwhile; that is read in a moment
      try {
        history.replaceState(null, "", hash);
        seen = location.hash;
      } catch {
        // In a notebook's frame there is no address to write into.
      }
    }, 120);
  });
}

start();
