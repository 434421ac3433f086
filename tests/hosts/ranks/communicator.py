"""`af.init()` on every rank, and the communicator's own collectives, groups and messages, against NumPy."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
from report import say, say_here

LIMIT_SECONDS = 30.0


def main() -> int:
    say_here()
    cases, wrong = 0, []
    try:
        import allfold as af

        with af.init(timeout=LIMIT_SECONDS) as comm:
            for name, got, wanted in _results(comm):
                cases += 1
                if not np.array_equal(got, wanted):
                    wrong.append(f"{name}: {got[:4]}… instead of {wanted[:4]}…")
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    say("communicator", seconds=0.0, cases=cases, wrong=wrong, refused=[])
    return int(bool(wrong))


def _values(rank: int, count: int, dtype: str) -> Any:
    return np.random.default_rng([rank, count]).integers(1, 4, count).astype(dtype)


def _results(comm: Any) -> Iterator[tuple[str, Any, Any]]:
    """Names, what came, and what should have come."""
    rank, size, last = comm.rank, comm.size, comm.size - 1
    for dtype in ("float32", "float64", "float16", "int8", "int64", "complex64"):
        for count in (0, 1, 7, 1023, *((65_537, 1_000_003) if dtype == "float32" else ())):
            every = [_values(other, count, dtype) for other in range(size)]
            about = f"{dtype}[{count}]"
            mine = every[rank].copy()
            comm.all_reduce(mine)
            yield f"all_reduce {about}", mine, np.sum(every, axis=0, dtype=dtype)
            mine = every[rank].copy()
            comm.reduce(mine, root=last)
            if rank == last:
                yield f"reduce {about}", mine, np.sum(every, axis=0, dtype=dtype)
            mine = every[rank].copy()
            comm.broadcast(mine, root=last)
            yield f"broadcast {about}", mine, every[last]
            whole = np.zeros(count * size, dtype)
            comm.all_gather(every[rank], whole)
            yield f"all_gather {about}", whole, np.concatenate(every)
            longer = [_values(100 + other, count * size, dtype) for other in range(size)]
            mine = np.zeros(count, dtype)
            comm.reduce_scatter(longer[rank], mine)
            yield (
                f"reduce_scatter {about}",
                mine,
                np.sum(longer, axis=0, dtype=dtype)[rank * count : (rank + 1) * count],
            )
            whole = np.zeros(count * size, dtype)
            comm.all_to_all(longer[rank], whole)
            wanted = np.concatenate([one[rank * count : (rank + 1) * count] for one in longer])
            yield f"all_to_all {about}", whole, wanted
            whole = np.zeros(count * size, dtype)
            comm.gather(every[rank], whole if rank == last else None, root=last)
            if rank == last:
                yield f"gather {about}", whole, np.concatenate(every)
            mine = np.zeros(count, dtype)
            comm.scatter(array=longer[last] if rank == last else None, output=mine, root=last)
            yield f"scatter {about}", mine, longer[last][rank * count : (rank + 1) * count]
    comm.barrier()
    after, before = (rank + 1) % size, (rank - 1) % size
    taken = np.zeros(501, "float64")
    sending = comm.isend(_values(rank, 501, "float64"), after)
    comm.recv(taken, before)
    sending.wait()
    yield "around the ring", taken, _values(before, 501, "float64")
    pair = comm.group([0, last])
    if pair is not None:
        mine = _values(rank, 99, "float32")
        pair.all_reduce(mine)
        yield "a group of two", mine, _values(0, 99, "float32") + _values(last, 99, "float32")
        pair.close()


if __name__ == "__main__":
    sys.exit(main())
