/** Where the page begins: the document that Python wrote into it, then the app. */

import { render, type JSX } from "preact";
import { followHash } from "./address";
import { App } from "./app";
import type { PageData } from "./document";
import { Learn } from "./learn/learn";
import { learning } from "./learn/place";
import { begin, followDraft } from "./site/link";
import { forgetEditsOnChange, open } from "./source";
import "./page.css";

const place = document.getElementById("allfold")!;

/** The document as it lies in the page: JSON, in files deflated and in base64. */
async function given(): Promise<PageData> {
  const text = document.getElementById("allfold-data")!.textContent;
  return JSON.parse(text.trimStart().startsWith("{") ? text : await inflated(text)) as PageData;
}

function inflated(text: string): Promise<string> {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

/** Keys that are pressed while the document is unpacked count as soon as there is a page. */
function keepKeys(): () => void {
  const kept: KeyboardEvent[] = [];
  const keep = (event: KeyboardEvent): void => void kept.push(event);
  addEventListener("keydown", keep);
  return () => {
    removeEventListener("keydown", keep);
    for (const { key, shiftKey, ctrlKey, metaKey, altKey } of kept)
      document.body.dispatchEvent(
        new KeyboardEvent("keydown", { key, shiftKey, ctrlKey, metaKey, altKey, bubbles: true }),
      );
  };
}

async function start(): Promise<void> {
  const pressKept = keepKeys();
  const page = await given();
  if (page.format !== "allfold-page" || page.version !== 1) {
    place.textContent = `This page draws documents of the format allfold-page 1, not ${page.format} ${page.version}.`;
    return;
  }
  open(page);
  followHash();
  begin(page, location.hash);
  if (page.site) followDraft(page.site);
  forgetEditsOnChange();
  place.textContent = "";
  render(<Root />, place);
  pressKept();
}

function Root(): JSX.Element {
  return learning.value === null ? <App /> : <Learn place={learning.value} />;
}

void start();
