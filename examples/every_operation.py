"""Every operation on every type that it supports, and the edge cases.

Every cell of the table is a real all_reduce, compared with NumPy's own fold over the ranks from left to right. Then the edge
cases: what wraps around, what becomes infinite, what NaN does, what bool does. Then custom operations, one of which is not
commutative.
"""

import argparse
import functools

import numpy as np

import allfold as af
from allfold.dtypes import DTYPES, narrow, widen

NUMPY = {
    "sum": np.add,
    "avg": np.add,  # and a division at the end
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def numbers(rank, dtype):
    """Twenty small numbers of a type, as NumPy carries them; bfloat16 comes as uint16, bit by bit."""
    random = np.random.default_rng(rank)
    if dtype.kind == "bool":
        return random.integers(0, 2, 20).astype(bool)
    values = random.integers(0, 5, 20) if dtype.carrier.kind == "u" else random.integers(-4, 5, 20)
    if dtype.kind == "complex":
        return (values + 1j * random.integers(-4, 5, 20)).astype(dtype.carrier)
    return narrow(values.astype(dtype.accumulates_in), dtype)


def run_cell(comm, name, dtype):
    """✓ if the type supports the operation and the result equals NumPy's; – if it is refused, and the message."""
    array = numbers(comm.rank, dtype)
    try:
        comm.all_reduce(array, op=name, dtype=dtype.name)
    except af.UsageError as error:
        return "–", str(error)
    operands = [widen(numbers(rank, dtype), dtype) for rank in range(comm.size)]
    with np.errstate(over="ignore"):
        expected = functools.reduce(NUMPY[name], operands)
    if name == "avg":
        # Real and imaginary parts separately: NumPy's complex division has more steps, and rounds in them.
        expected = (expected.view(expected.real.dtype) / comm.size).view(expected.dtype)
    expected = narrow(expected.astype(dtype.accumulates_in), dtype)
    assert np.array_equal(array, expected), f"{name} of {dtype} on rank {comm.rank}: {array}, not {expected}"
    return "✓", ""


def reduced(comm, mine, dtype, op="sum", **options):
    """What the ranks' numbers become: rank r brings mine(r)."""
    array = np.array([mine(comm.rank)], dtype)
    comm.all_reduce(array, op=op, **options)
    return array[0]


def edges(comm, say):
    """What the documents promise, one line each, checked."""
    last = comm.size - 1

    def line(what, found, wanted):
        assert found == wanted or (found != found and wanted != wanted), f"{what}: {found!r}, not {wanted!r}"
        say(f"  {what:58s} {found}")

    line(
        "int8 sum, 100 from every rank: wraps around",
        reduced(comm, lambda r: 100, np.int8),
        np.int8((100 * comm.size + 128) % 256 - 128),
    )
    line(
        "float16 sum, 60000 from every rank: beyond 65504 is inf",
        reduced(comm, lambda r: 60000, np.float16),
        np.float16(np.inf if comm.size > 1 else 60000),
    )
    line(
        "float32 max, NaN on the last rank: NaN everywhere",
        reduced(comm, lambda r: np.nan if r == last else r, np.float32, "max"),
        np.nan,
    )
    zero = reduced(comm, lambda r: -0.0 if r == last else 0.0, np.float32, "min")
    line("float32 min of 0.0 and −0.0: −0.0 is below", str(zero), "-0.0")
    line("bool sum, true on the last rank alone: or", bool(reduced(comm, lambda r: r == last, bool)), True)
    line(
        "bool product, false on the last rank alone: and",
        bool(reduced(comm, lambda r: r != last, bool, "product")),
        False,
    )
    line(
        "float32 avg of 1, 2, 3, …: the sum, divided once",
        reduced(comm, lambda r: r + 1, np.float32, "avg"),
        np.float32((comm.size + 1) / 2),
    )
    # 2048 + 1 is 2049, which float16 cannot represent: added one by one in float16 it would stay 2048.
    halves = reduced(comm, lambda r: 2048 if r == 0 else 1, np.float16, algorithm="driver")
    line("float16 sum of 2048, 1, 1, …: folded in float32", halves, np.float16(2048 + last))


def own_operations(comm, say):
    greatest_divisor = af.op(np.gcd, commutative=True)
    found = reduced(comm, lambda r: 60 * (r + 1), np.int64, greatest_divisor)
    assert found == np.gcd.reduce([60 * (r + 1) for r in range(comm.size)])
    say(f"  gcd of 60, 120, 180, …: {found}")

    # x → a·x + b, held as the complex number a + bi. "First one, then the other" depends on the order of the two.
    def then(first, second):
        result = np.empty_like(first)
        result.real = second.real * first.real
        result.imag = second.real * first.imag + second.imag
        return result

    maps = [complex(2, rank + 1) for rank in range(comm.size)]
    in_order = af.op(then, commutative=False, name="composition")
    found = reduced(comm, lambda r: maps[r], np.complex128, in_order)
    assert found == functools.reduce(lambda f, g: complex(g.real * f.real, g.real * f.imag + g.imag), maps)
    say(f"  x → 2x + 1, then 2x + 2, then …, over the ranks in order: x → {found.real:.0f}x + {found.imag:.0f}")

    # A ring starts every chunk at a different rank, so rank order is lost. The proof finds that: the call is refused.
    if af.verify(af.schedule("all_reduce", "ring", comm.size)).rank_order:
        say("  by a ring: allowed, since among so few ranks it keeps their order")
        return
    try:
        reduced(comm, lambda r: maps[r], np.complex128, in_order, algorithm="ring")
    except af.UsageError as error:
        say(f"  by a ring: refused\n    {error}")
    else:
        raise AssertionError("an operation that is not commutative ran on a ring")


def main(comm):
    say = print if comm.rank == 0 else lambda *_: None
    say(f"every operation on every type; ranks: {comm.size}; ✓ equals NumPy's fold, – does not exist")
    say(f"{'':11s}" + "".join(f"{name:>9s}" for name in NUMPY))
    refused = {}
    for dtype in DTYPES.values():
        cells = {name: run_cell(comm, name, dtype) for name in NUMPY}
        say(f"{dtype.name:11s}" + "".join(f"{mark:>9s}" for mark, _ in cells.values()))
        refused |= {name: sentence for name, (mark, sentence) in cells.items() if mark == "–"}
    for name in ("avg", "min", "band"):
        say(f"  – {refused[name]}")
    say("\nat the edges")
    edges(comm, say)
    say("\noperations of your own")
    own_operations(comm, say)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
