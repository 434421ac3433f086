"""Each collective, before and after, rank by rank.

Rank r starts with the numbers 10r, 10r + 1, …: the first digit says where a number comes from. The three that work in
place (all_reduce, reduce, broadcast) change the array that they are given; the others fill a second one.
"""

import argparse
import time

import numpy as np

import allfold as af


class Sheet:
    """Prints on rank 0 what every rank had and has."""

    def __init__(self, comm):
        self.comm = comm

    def show(self, call, meaning, before, after):
        """One line per rank, gathered as an array of bytes."""
        line = f"  rank {self.comm.rank}   {_text(before):<24s} →  {_text(after)}"
        letters = np.zeros(80 + 10 * self.comm.size, np.uint8)
        letters[: len(line.encode())] = np.frombuffer(line.encode(), np.uint8)
        page = np.empty((self.comm.size, len(letters)), np.uint8) if self.comm.rank == 0 else None
        self.comm.gather(letters, page)
        if self.comm.rank == 0:
            print(f"{call:36s} {meaning}")
            for row in page:
                print(row.tobytes().rstrip(b"\0").decode())
            print()


def _text(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else " ".join(f"{number:2d}" for number in value.tolist())


def expect(found, wanted):
    assert np.array_equal(found, wanted), f"expected {wanted}, got {found}"


def main(comm):
    sheet, rank, size, root = Sheet(comm), comm.rank, comm.size, 0
    everyone = np.array([[10 * r + i for i in range(size)] for r in range(size)])  # row r is what rank r starts with
    mine = everyone[rank]
    part = mine[:2]  # for the collectives whose output is larger than their input

    x = mine.copy()
    comm.all_reduce(x)
    sheet.show("all_reduce(x)", "x becomes the sum of all x, everywhere", mine, x)
    expect(x, everyone.sum(axis=0))

    x = mine.copy()
    comm.reduce(x, root=root)
    sheet.show("reduce(x, root=0)", "the same on the root alone", mine, x if rank == root else "undefined: workspace")
    if rank == root:
        expect(x, everyone.sum(axis=0))

    x = mine.copy()
    comm.broadcast(x, root=root)
    sheet.show("broadcast(x, root=0)", "x becomes the root's", mine, x)
    expect(x, everyone[root])

    out = np.empty(1, mine.dtype)
    comm.reduce_scatter(mine, out)
    sheet.show("reduce_scatter(x, out)", "out becomes part r of the sum, on rank r", mine, out)
    expect(out, everyone.sum(axis=0)[rank : rank + 1])

    out = np.empty(size * len(part), mine.dtype)
    comm.all_gather(part, out)
    sheet.show("all_gather(x, out)", "out becomes all x, one after the other, everywhere", part, out)
    expect(out, everyone[:, :2].reshape(-1))

    out = np.empty(size * len(part), mine.dtype) if rank == root else None
    comm.gather(part, out, root=root)
    sheet.show("gather(x, out, root=0)", "the same on the root alone", part, out)
    if rank == root:
        expect(out, everyone[:, :2].reshape(-1))

    whole = mine if rank == root else None
    out = np.empty(1, mine.dtype)
    comm.scatter(array=whole, output=out, root=root)
    sheet.show("scatter(array=x, output=out, root=0)", "out becomes part r of the root's x, on rank r", whole, out)
    expect(out, everyone[root, rank : rank + 1])

    out = np.empty(size, mine.dtype)
    comm.all_to_all(mine, out)
    sheet.show("all_to_all(x, out)", "part j of rank i becomes part i of rank j", mine, out)
    expect(out, everyone[:, rank])

    out = np.empty_like(mine)
    sending = comm.isend(mine, destination=(rank + 1) % size)
    comm.recv(out, source=(rank - 1) % size)
    sending.wait()
    sheet.show("isend(x, r + 1), recv(out, r − 1)", "point to point: here everyone to its right", mine, out)
    expect(out, everyone[(rank - 1) % size])

    comm.barrier()
    begin = np.array([time.monotonic()])  # the same clock for all processes on a machine
    comm.broadcast(begin)
    time.sleep(0.01 * rank)  # every rank has some work first, higher ranks have more
    came = time.monotonic()
    comm.barrier()
    left = time.monotonic()
    after = [f"{verb} after {(moment - begin[0]) * 1e3:.0f} ms" for verb, moment in (("comes", came), ("leaves", left))]
    sheet.show("barrier()", "nobody leaves before everybody has come", *after)
    comm.all_reduce(last := np.array([came]), op="max")
    assert left >= last[0], f"rank {rank} left {last[0] - left} s before the last one came"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks to start without a launcher")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    af.start(main, options.ranks)
