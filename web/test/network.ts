/** Networks for tests: links that have a place, and the topology around them. */

import type { LinkJson, Place, TopologyJson } from "../src/document";

export const WAYS = ["out", "in"] as const;

export const link = (place?: Place, bytes = 1): LinkJson => {
  const known = place ? { place } : {};
  return { name: JSON.stringify(place), kind: "", bytes, seconds: bytes, latency: 0, bandwidth: 1, ...known };
};

export const topologyOf = (host: number[], parameters: Record<string, unknown> = {}): TopologyJson => ({
  name: "",
  ranks: host.length,
  host,
  overhead: 0,
  reduction: "inf",
  latency: 0,
  bandwidth: 1,
  source: "",
  parameters,
});
