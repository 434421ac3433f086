/** Any view as a file: its pictures in one SVG with their current colours, or the same as a PNG. */

import { download } from "./download";
import { layersAsSvg } from "./layers";
import { legendOf } from "./legend";
import { escaped, type Piece } from "./svg";

const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
  "paint-order",
  "display",
];
const EDGE = 24;
const SHARP = 2; // pixels of the PNG per pixel of the page

export function saveSvg(section: string, name: string, title: string): void {
  const picture = compose(section, title);
  if (picture) download(new Blob([picture.text], { type: "image/svg+xml" }), `${name}.svg`);
}

export async function savePng(section: string, name: string, title: string): Promise<void> {
  const picture = await imageOf(section, title);
  if (!picture) return;
  const canvas = document.createElement("canvas");
  canvas.width = picture.width * SHARP;
  canvas.height = picture.height * SHARP;
  canvas.getContext("2d")!.drawImage(picture.image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && download(blob, `${name}.png`), "image/png");
}

/** A view as an image, in the size that it has on the page. */
export async function imageOf(
  section: string,
  title: string,
): Promise<{ image: HTMLImageElement; width: number; height: number } | null> {
  const picture = compose(section, title);
  if (!picture) return null;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture.text)}`;
  await image.decode();
  return { image, width: picture.width, height: picture.height };
}

/**
 * One SVG of all pictures in a view, in rows as on the page, under a title.
 *
 * Styles are written into the elements: other programs do not have the page's style sheet.
 */
function compose(section: string, title: string): Piece | null {
  const root = document.getElementById(section);
  const parts = [...(root?.querySelectorAll<SVGSVGElement | HTMLElement>("svg.picture, [data-lines]") ?? [])];
  if (!root || !parts.length) return null;
  const page = getComputedStyle(root);
  const write = (x: number, y: number, words: string, weight: number): string =>
    `<text x="${x}" y="${y}" font-family="${escaped(page.fontFamily)}" font-size="15" font-weight="${weight}" fill="${page.color}">${escaped(words)}</text>`;
  const pieces: string[] = [write(EDGE, EDGE + 12, title, 600)];
  let [top, tallest, x, width] = [EDGE + 32, 0, EDGE, 0];
  let lowest = -Infinity; // of the row so far, on the page
  for (const part of parts) {
    const place = part.getBoundingClientRect();
    if (place.top >= lowest - 4) [top, tallest, x] = [top + tallest + (tallest ? EDGE : 0), 0, EDGE];
    lowest = Math.max(place.top >= lowest - 4 ? -Infinity : lowest, place.bottom);
    const piece = part instanceof SVGSVGElement ? copyOf(part) : linesOf(part);
    const caption = part.dataset.caption;
    if (caption) pieces.push(write(x, top + 12, caption, 600));
    pieces.push(`<g transform="translate(${x} ${top + (caption ? 22 : 0)})">${piece.text}</g>`);
    tallest = Math.max(tallest, piece.height + (caption ? 22 : 0));
    x += piece.width + EDGE;
    width = Math.max(width, x);
  }
  const legend = legendOf(root, Math.max(width, 360) - 2 * EDGE);
  if (legend) pieces.push(`<g transform="translate(${EDGE} ${top + tallest + EDGE})">${legend.text}</g>`);
  width = Math.max(width, legend ? legend.width + 2 * EDGE : 0);
  const height = top + tallest + EDGE + (legend ? legend.height + EDGE : 0);
  const ground = `<rect width="${width}" height="${height}" fill="${page.backgroundColor}"/>`;
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${ground}${pieces.join("")}</svg>`;
  return { text, width, height };
}

function copyOf(svg: SVGSVGElement): Piece {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((one, i) => {
    const style = getComputedStyle(one);
    const target = to[i];
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value && value !== "normal") target.setAttribute(name, value);
    }
    for (const name of ["class", "data-r", "data-c", "data-l", "data-cell", "data-right"]) target.removeAttribute(name);
  });
  const text = layersAsSvg(svg) + new XMLSerializer().serializeToString(copy);
  return { text, width: svg.clientWidth, height: svg.clientHeight };
}

/** Source code, which on the page is text, as lines of an SVG. */
function linesOf(element: HTMLElement): Piece {
  const rows = [...element.querySelectorAll<HTMLElement>("[data-line]")];
  const width = 64 + 7.4 * Math.max(...rows.map((row) => (row.dataset.text ?? "").length));
  const text = rows.map((row, i) => {
    const lit = getComputedStyle(row).backgroundColor;
    const ground = row.classList.contains("lit")
      ? `<rect y="${i * 18}" width="${width}" height="18" fill="${lit}"/>`
      : "";
    const number = `<text x="32" y="${i * 18 + 13}" text-anchor="end" opacity=".5">${row.dataset.line}</text>`;
    return `${ground}${number}<text x="44" y="${i * 18 + 13}" xml:space="preserve">${escaped(row.dataset.text ?? "")}</text>`;
  });
  const font = `font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12" fill="${getComputedStyle(element).color}"`;
  return { text: `<g ${font}>${text.join("")}</g>`, width, height: rows.length * 18 };
}
