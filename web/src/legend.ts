/** The legend of a view, which on the page is text with signs, as SVG: a saved picture has it, too. */

import { escaped, type Piece } from "./svg";

const [SIZE, LINE, LETTER, APART] = [13, 22, 7.4, 20];

export function legendOf(view: Element, width: number): Piece | null {
  const keys = [...view.querySelectorAll<HTMLElement>(".legend > span")].filter((key) => key.offsetWidth);
  if (!keys.length) return null;
  const style = getComputedStyle(keys[0]);
  const parts: string[] = [];
  let [x, y, widest] = [0, 0, 0];
  keys.forEach((key, i) => {
    const piece = keyOf(key, i);
    if (x && x + piece.width > width) [x, y] = [0, y + LINE];
    parts.push(`<g transform="translate(${x} ${y})">${piece.text}</g>`);
    x += piece.width + APART;
    widest = Math.max(widest, x - APART);
  });
  const font = `font-family="${escaped(style.fontFamily)}" font-size="${SIZE}" fill="${style.color}"`;
  return { text: `<g ${font}>${parts.join("")}</g>`, width: widest, height: y + LINE };
}

/** One entry: its signs and words in their order. */
function keyOf(key: HTMLElement, number: number): Piece {
  let x = 0;
  let text = "";
  let words = "";
  const say = (): void => {
    if (words.trim()) text += `<text x="${x}" y="${SIZE}">${escaped(words.trim())}</text>`;
    x += words.trim().length * LETTER + (words.trim() ? 5 : 0);
    words = "";
  };
  for (const node of key.childNodes) {
    if (!(node instanceof HTMLElement && node.tagName === "I")) {
      words += node.textContent;
      continue;
    }
    say();
    text += `<g transform="translate(${x} 0)">${signOf(node, `ramp${number}`)}</g>`;
    x += node.offsetWidth + 7;
  }
  say();
  return { text, width: x, height: LINE };
}

/** A sign as its style draws it: a line, a scale of colours, a wedge, or a shape with a border. */
function signOf(sign: HTMLElement, id: string): string {
  const style = getComputedStyle(sign);
  const [wide, high, middle] = [sign.offsetWidth, sign.offsetHeight, SIZE / 2 + 2];
  const border = parseFloat(style.borderTopWidth) || 0;
  if (sign.classList.contains("line")) {
    const dashes = { dashed: "5 3", dotted: "1.5 3" }[style.borderTopStyle];
    const stroke = `stroke="${style.borderTopColor}" stroke-width="${border}"`;
    return `<path d="M0 ${middle}h${wide}" ${stroke}${dashes ? ` stroke-dasharray="${dashes}"` : ""}/>`;
  }
  if (sign.classList.contains("upright"))
    return `<path d="M0 ${middle - high / 2}v${high}" stroke="${style.borderLeftColor}"/>`;
  const top = middle - high / 2;
  if (sign.classList.contains("wedge"))
    return `<path d="M0 ${top + 0.4 * high}L${wide} ${top}V${top + high}L0 ${top + 0.6 * high}z" fill="${style.backgroundColor}"/>`;
  const colours = style.backgroundImage.match(/rgba?\([^)]*\)/g);
  const stops = colours?.map((colour, i) => `<stop offset="${i / (colours.length - 1)}" stop-color="${colour}"/>`);
  const fill = stops ? `url(#${id})` : style.backgroundColor;
  const shape = `x="${border / 2}" y="${top + border / 2}" width="${wide - border}" height="${high - border}"`;
  const round = Math.min(
    parseFloat(style.borderTopLeftRadius) * (style.borderTopLeftRadius.endsWith("%") ? wide / 100 : 1),
    wide / 2,
  );
  const edge = border ? ` stroke="${style.borderTopColor}" stroke-width="${border}"` : "";
  const gradient = stops ? `<linearGradient id="${id}">${stops.join("")}</linearGradient>` : "";
  return `${gradient}<rect ${shape} rx="${round}" fill="${fill}"${edge}/>`;
}
