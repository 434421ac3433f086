/** Code in an address: compressed, in letters that stay as they are when a link is sent. */

import { effect, signal } from "@preact/signals";
import { draft, drafted, draftKey } from "../draft";
import type { PageData, SiteData } from "../document";
import { edited, inBrowser } from "../source";
import { state } from "../state";

/** The code as the address has it; null if what is shown is not the reader's own. */
export const linked = signal<string | null>(null);

const MOST = 200_000; // characters, as Python takes

async function through(bytes: BlobPart, stream: GenericTransformStream): Promise<ArrayBuffer> {
  return new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer();
}

export async function packed(text: string): Promise<string> {
  const bytes = new Uint8Array(await through(text, new CompressionStream("deflate-raw")));
  const signs = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(signs).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The code in a part of an address; null if it is none. */
export async function unpacked(word: string): Promise<string | null> {
  try {
    const signs = atob(word.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(signs, (sign) => sign.charCodeAt(0));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(
      await through(bytes, new DecompressionStream("deflate-raw")),
    );
    return text.length <= MOST ? text : null;
  } catch {
    return null;
  }
}

/** The code that a link brings. It is run when the editor shows it. */
export async function takeLink(hash: string): Promise<boolean> {
  const word = new URLSearchParams(hash.replace(/^#/, "")).get("code");
  if (!inBrowser() || word === null || word === linked.value) return true;
  const text = await unpacked(word);
  if (text === null) return false;
  edited.value = null;
  draft.value = { key: draftKey(), original: { file: "linked.py", first: 1, text }, text, own: true };
  return true;
}

/** What the page begins with, unless its address says something else: code whose proof is in the page already. */
export function begin(page: PageData, hash: string): void {
  const [first, now, then] = [page.site?.first, state.value, page.state];
  if (!first?.code || new URLSearchParams(hash.replace(/^#/, "")).has("code")) return;
  if (now.collective !== then.collective || now.algorithm !== then.algorithm) return;
  draft.value = { key: draftKey(), original: first.code, text: first.code.text, own: true };
  if (now.ranks === then.ranks && now.topology === then.topology && now.size === then.size) edited.value = first;
}

/** Called once: the address follows what is typed. */
export function followDraft(site: SiteData | undefined): void {
  let number = 0;
  let timer = 0;
  effect(() => {
    const text = drafted.value ? draft.value!.text : null;
    const own = text === null || text === site?.first?.code?.text ? null : text;
    const mine = ++number;
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (own === null) linked.value = null;
      else void packed(own).then((word) => mine === number && (linked.value = word));
    }, 200);
  });
}
