/** SVG as text, for pictures that are saved. */

export interface Piece {
  text: string;
  width: number;
  height: number;
}

export function escaped(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
}
