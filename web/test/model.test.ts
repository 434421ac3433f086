import { describe, expect, test } from "vitest";
import type { TableRow } from "../src/document";
import { reigns, timeOf, winner } from "../src/model";

const row = (algorithm: string, rounds: number, busiest: number, reduced: number): TableRow => ({
  collective: "all_reduce",
  algorithm,
  ranks: 8,
  steps: rounds,
  rounds,
  messages: 0,
  busiest_port_bytes: busiest,
  reduced_bytes: reduced,
});
const ring = row("ring", 14, 1.75, 0.875);
const doubling = row("doubling", 3, 3, 3);
const figures = { latency: 1e-6, bandwidth: 1e10, reduction: 2e10 };

describe("the α-β-γ model", () => {
  test("adds up rounds, bytes of the busiest port and bytes combined", () => {
    expect(timeOf(ring, 1e6, figures)).toBeCloseTo(14e-6 + 1.75e6 / 1e10 + 0.875e6 / 2e10, 12);
  });

  test("few rounds win where buffers are small, few bytes where they are large", () => {
    expect(winner([ring, doubling], 8, figures)!.algorithm).toBe("doubling");
    expect(winner([ring, doubling], 1e9, figures)!.algorithm).toBe("ring");
    const sizes = Array.from({ length: 30 }, (_, i) => 2 ** i);
    const found = reigns([ring, doubling], sizes, figures);
    expect(found.map((one) => one.algorithm)).toEqual(["doubling", "ring"]);
    // Where one ends the other begins, at the size at which both take the same, up to the steps between sizes.
    const even = (11 * figures.latency) / ((3 - 1.75) / figures.bandwidth + (3 - 0.875) / figures.reduction);
    expect(found[0].to).toBe(found[1].from);
    expect(found[1].from).toBeGreaterThan(even);
    expect(found[1].from / 2).toBeLessThan(even);
  });

  test("nobody wins where nobody runs", () => expect(winner([], 8, figures)).toBeNull());
});
