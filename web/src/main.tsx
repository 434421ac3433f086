/** Where the page begins: the document that Python wrote into it, then the app. */

import { render, type JSX } from "preact";
import { followHash } from "./address";
import { App } from "./app";
import type { PageData } from "./document";
import { Learn } from "./learn/learn";
import { learning } from "./learn/place";
import { forgetEditsOnChange, open } from "./source";
import "./page.css";

const place = document.getElementById("allfold")!;

function start(): void {
  const page = JSON.parse(document.getElementById("allfold-data")!.textContent) as PageData;
  if (page.format !== "allfold-page" || page.version !== 1) {
    place.textContent = `This page draws documents of the format allfold-page 1, not ${page.format} ${page.version}.`;
    return;
  }
  open(page);
  followHash();
  forgetEditsOnChange();
  place.textContent = "";
  render(<Root />, place);
}

function Root(): JSX.Element {
  return learning.value === null ? <App /> : <Learn place={learning.value} />;
}

start();
