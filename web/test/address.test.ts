import { expect, test } from "vitest";
import type { PageState } from "../src/document";
import { besideFromHash, fromHash, nonsense, toHash } from "../src/address";

const state: PageState = {
  collective: "reduce",
  algorithm: "tree",
  ranks: 6,
  root: 2,
  topology: "hosts:ranks_per_host=4,bandwidth=400Gb/s",
  size: 65536,
  step: 3,
  view: "time",
  clock: "modelled",
  values: "1 2; 3 4",
  op: "max",
  against: "tree/1024/dgx1",
  rivals: ["driver", "chain"],
  follow: "cut",
};
const other: PageState = {
  ...state,
  collective: "all_reduce",
  algorithm: "ring",
  ranks: 2,
  root: null,
  topology: "",
  size: 1,
  step: 0,
  view: "holds",
  clock: "steps",
  rivals: null,
};

test("a hash holds the whole state", () => {
  expect(fromHash(toHash(state), other)).toEqual(state);
  expect(fromHash(toHash(other), state)).toEqual({ ...other, topology: state.topology, rivals: state.rivals });
  expect(besideFromHash(toHash(state, "code"))).toBe("code");
});

test("what makes no sense in a hash is left as it was", () => {
  expect(fromHash("#view=upside&ranks=-4&step=1.5&size=many&clock=sundial", state)).toEqual(state);
  expect(fromHash("", state)).toEqual(state);
  expect(besideFromHash("#beside=nothing")).toBeNull();
});

test("at most three rivals race", () => {
  expect(fromHash("#rivals=a,b,c,d", state).rivals).toEqual(["a", "b", "c"]);
});

test("what means nothing in an address is named", () => {
  expect(nonsense(toHash(state, "race"))).toEqual([]);
  expect(nonsense("#ranks=many&view=upside&size=-1&clock=sundial&follow=7&step=2&beside=x")).toEqual([
    "ranks=many",
    "view=upside",
    "size=-1",
    "clock=sundial",
    "beside=x",
  ]);
});
