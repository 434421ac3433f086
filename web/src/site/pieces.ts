/** Parts of the site that are loaded when they are needed: scripts, because a page on disk can load nothing else. */

import type { Piece } from "../document";

interface Receiver {
  /** Every such script calls it, with its name and its content, compressed and in letters. */
  allfoldPiece?: (name: string, text: string) => void;
}

const arrived = new Map<string, string>();

/** The content of a piece. */
export async function load(name: string, piece: Piece): Promise<Uint8Array> {
  (globalThis as Receiver).allfoldPiece ??= (name, text) => arrived.set(name, text);
  await run(piece.file);
  const text = arrived.get(name);
  if (text === undefined) throw new Error(`${piece.file} is not the part that this page expects`);
  arrived.delete(name);
  return unzip(bytesOf(text));
}

function run(file: string): Promise<void> {
  return new Promise((done, failed) => {
    const element = document.createElement("script");
    element.src = file;
    element.onload = () => {
      element.remove();
      done();
    };
    element.onerror = () => failed(new Error(`${file} cannot be loaded; it belongs beside this page`));
    document.head.append(element);
  });
}

function bytesOf(text: string): Uint8Array {
  const known = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  return known ? known.call(Uint8Array, text) : Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
}

async function unzip(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
