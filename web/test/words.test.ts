import { expect, test } from "vitest";
import { inLines } from "../src/python";
import { bytes, plural, seconds, sentence, timesS } from "../src/words";

const move = { number: 0, step: 3, reduces: true, chunk: 2, source: 0, destination: 1, into: 2, site: 0 };

test("moves in sentences", () => {
  expect(sentence(move)).toBe("rank 0 sends chunk 2 to rank 1, reduced");
  expect(sentence({ ...move, reduces: false, into: 5 })).toBe("rank 0 sends chunk 2 to rank 1 into chunk 5");
  expect(sentence({ ...move, destination: 0, into: 5, reduces: false })).toBe(
    "rank 0 copies its own chunk 2 into chunk 5",
  );
});

test("numbers with units", () => {
  expect([0, 1, 1536, 2 ** 20, 45.3 * 1024].map(bytes)).toEqual(["0 B", "1 B", "1.5 KiB", "1 MiB", "45.3 KiB"]);
  expect([0, 2.5e-9, 1.234e-6, 0.0201, 3].map(seconds)).toEqual(["0 s", "2.5 ns", "1.23 µs", "20.1 ms", "3 s"]);
  expect(timesS(1.75)).toBe("1.75 S");
  expect([plural(1, "rank"), plural(0, "rank")]).toEqual(["1 rank", "0 ranks"]);
});

test("Python in coloured words loses nothing", () => {
  const source = '@algorithm("a")\ndef ring(ranks):\n    """Two\n    lines."""\n    yield [1] # why\n';
  const lines = inLines(source);
  expect(lines.map((words) => words.map((word) => word.text).join("")).join("\n")).toBe(source);
  const kinds = lines.flat().map((word) => `${word.kind} ${word.text}`);
  expect(kinds).toEqual(
    expect.arrayContaining([
      "name @algorithm",
      'string "a"',
      "keyword def",
      "name ring",
      'string     lines."""',
      "keyword yield",
      "number 1",
      "comment # why",
    ]),
  );
});
