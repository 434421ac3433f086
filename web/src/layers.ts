/**
 * Many lines on a canvas: thousands of elements would be too slow. A picture that has layers gets a canvas below its SVG;
 * a saved picture gets the same lines as paths.
 */

import { tenth } from "./numbers";
import { tokenOf } from "./palette";

/** Lines that look the same. */
export interface Layer {
  /** x, y of the one end, x, y of the other, and so on. */
  lines: number[];
  /** A colour, or a variable of the style sheet. */
  colour: string;
  width: number;
  opacity: number;
  dashes?: number[];
}

const SHARPEST = 3; // pixels of the canvas per pixel of the page

const drawn = new WeakMap<Element, Layer[]>();

/** The layers below an SVG. */
const layersBelow = (svg: Element): Layer[] => drawn.get(svg) ?? [];

export function paint(canvas: HTMLCanvasElement, svg: Element, layers: Layer[], width: number, height: number): void {
  drawn.set(svg, layers);
  const sharp = Math.min(SHARPEST, devicePixelRatio || 1);
  const [wide, high] = [Math.round(width * sharp), Math.round(height * sharp)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const pen = canvas.getContext("2d")!;
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  for (const layer of layers) {
    pen.strokeStyle = shade(layer.colour);
    pen.lineWidth = layer.width;
    pen.globalAlpha = layer.opacity;
    pen.setLineDash(layer.dashes ?? []);
    pen.beginPath();
    const { lines } = layer;
    for (let i = 0; i < lines.length; i += 4) {
      pen.moveTo(lines[i], lines[i + 1]);
      pen.lineTo(lines[i + 2], lines[i + 3]);
    }
    pen.stroke();
  }
}

const shade = (colour: string): string => (colour.startsWith("--") ? tokenOf(colour.slice(2)) : colour);

export function layersAsSvg(svg: Element): string {
  return layersBelow(svg)
    .map(({ lines, colour, width, opacity, dashes }) => {
      let d = "";
      for (let i = 0; i < lines.length; i += 4)
        d += `M${tenth(lines[i])} ${tenth(lines[i + 1])}L${tenth(lines[i + 2])} ${tenth(lines[i + 3])}`;
      const stroke = `stroke="${shade(colour)}" stroke-width="${width}" opacity="${opacity}"`;
      return `<path d="${d}" fill="none" ${stroke}${dashes ? ` stroke-dasharray="${dashes.join(" ")}"` : ""}/>`;
    })
    .join("");
}
