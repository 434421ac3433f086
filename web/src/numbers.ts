/** Small calculations that drawings share. */

export function clamp(value: number, least: number, most: number): number {
  return Math.max(least, Math.min(most, value));
}

/** For paths: rounded to a tenth of a pixel, which is finer than anyone can see. */
export function tenth(value: number): number {
  return Math.round(value * 10) / 10;
}

export function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

export function unique<T>(values: Iterable<T>): T[] {
  return [...new Set(values)];
}

/** 0, `step`, 2 · `step` … below `many`: the rows or columns that have room for a label. */
export function every(many: number, step = 1): number[] {
  return Array.from({ length: Math.ceil(many / step) }, (_, i) => i * step);
}
