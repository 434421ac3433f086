"""`make fuzz`: random schedules for as long as is told, fresh ones every time; an hour unless SECONDS says otherwise.

Each round takes a block of new seeds and asks four things: does `verify` accept what is right; does it agree with an oracle
that shares no code with it about what may be wrong; does `check` agree with another one about the order of what is
compiled, right or crippled; and does the engine, on 1 to 8 real processes, give the right result. The first
disagreement ends it with status 1 and the command that repeats it.

    python tests/programs/fuzz.py --seconds 3600 [--seed FIRST]
    python tests/programs/fuzz.py --one SEED [--ranks N]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from programs_oracle import judge_programs
from random_runs import call_of, try_seeds
from random_schedules import COLLECTIVES, Drawn, draw, judge, spoil

import allfold
from allfold.programs.check import SEGMENTS, check
from allfold.programs.compile import Programs, compile
from allfold.programs.rows import Lists
from allfold.programs.versions import Versions
from allfold.registry import Algorithm
from allfold.schedules import Schedule

MEMORIES = ("private", "readable", "shared")
BLOCK = 25  # seeds per round and number of ranks


class Disagreement(AssertionError):
    pass


def built(drawn: Drawn) -> Schedule:
    chosen = Algorithm(drawn.collective, "drawn", drawn.generate, drawn.chunks)
    return allfold.schedule(drawn.collective, chosen, drawn.ranks, drawn.root)


def verdict(drawn: Drawn) -> str | None:
    """What `verify` says is wrong with a schedule."""
    try:
        allfold.verify(built(drawn))
    except allfold.ScheduleError as error:
        return str(error)
    return None


def try_schedule(seed: int) -> Counter[str]:
    """One seed: a correct schedule, a spoiled one, and the programs compiled from the correct one."""
    rng = random.Random(seed)
    right = draw(rng, rng.choice(COLLECTIVES), rng.randint(1, 6))
    if (fault := judge(right)) is not None:
        raise Disagreement(f"the generator made a wrong schedule, {fault}: {right}")
    if (fault := verdict(right)) is not None:
        raise Disagreement(f"verify refuses what is right, {fault}: {right}")
    spoiled = spoil(rng, right)
    found, wanted = verdict(spoiled), judge(spoiled)
    if (found is None) != (wanted is None):
        raise Disagreement(f"verify says {found!r}, the oracle {wanted!r}: {spoiled}")
    counts = Counter(right=1, spoiled=1, wrong=int(wanted is not None))
    if right.ranks > 1:
        counts += try_programs(rng, built(right))
    return counts


def try_programs(rng: random.Random, schedule: Schedule) -> Counter[str]:
    versions, counts = Versions(schedule), Counter[str]()
    for memory in MEMORIES:
        programs = compile(schedule, memory, versions)  # type: ignore[arg-type]
        check(programs, versions.state)
        most = rng.choice([1, 2, SEGMENTS, SEGMENTS + 2]) if programs.work_slots.any() else 1
        if (fault := judge_programs(programs, most)) is not None:
            raise Disagreement(f"{memory} programs with {most} segments: check accepts them, and {fault}")
        crippled = cripple(rng, programs)
        if crippled is None:
            continue
        try:
            check(crippled, versions.state)
            found = None
        except allfold.ScheduleError as error:
            found = str(error)
        several = (1, SEGMENTS) if programs.work_slots.any() else (1,)
        wanted = next((fault for count in several if (fault := judge_programs(crippled, count))), None)
        # What `check` demands beyond the order (which ranks are silent towards which) concerns later calls.
        of_order = found is not None and ("unordered" in found or "cycle" in found)
        if (wanted is not None and found is None) or (wanted is None and of_order):
            raise Disagreement(f"{memory} programs, crippled: check says {found!r}, the oracle {wanted!r}")
        if found is None and programs.work_slots.any():
            for count in (SEGMENTS + 1, SEGMENTS + 2, SEGMENTS + 3):
                if (fault := judge_programs(crippled, count)) is not None:
                    raise Disagreement(f"{memory} programs: sound with {SEGMENTS} segments, and with {count} {fault}")
        counts.update(programs=1, crippled=1, refused=int(found is not None))
    return counts


def cripple(rng: random.Random, programs: Programs) -> Programs | None:
    """The same programs, without one of the things that keep them in order."""
    kind = rng.choice(["waits", "waits", "waits", "reuse", "leave", "announce", "silent", "one_area"])
    changed: Any
    if kind == "one_area":
        changed = True
    elif kind in ("announce", "silent"):
        changed = getattr(programs, kind).copy()
        rows = np.flatnonzero(changed == (kind == "announce")).tolist()
        if not rows:
            return None
        changed[rng.choice(rows)] = kind == "silent"
    else:
        lists: Lists = getattr(programs, kind)
        if not len(lists.rank):
            return None
        kept = np.flatnonzero(np.arange(len(lists.rank)) != rng.randrange(len(lists.rank)))
        changed = Lists(np.searchsorted(kept, lists.starts), lists.rank[kept], lists.value[kept])
    return replace(programs, **{kind: changed})


def try_runs(seeds: Iterable[int], ranks: int) -> int:
    seeds = list(seeds)
    wrong = [line for lines in allfold.spawn(try_seeds, ranks, args=(seeds,), timeout=600) for line in lines]
    if wrong:
        raise Disagreement("\n".join(wrong))
    return len(seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, help="where to begin; otherwise where nobody has been")
    parser.add_argument("--one", type=int, help="this seed alone")
    parser.add_argument("--ranks", type=int, help="of --one, on the engine; otherwise 1 to 8")
    arguments = parser.parse_args()
    if arguments.one is not None:
        if arguments.ranks is None:
            print(dict(try_schedule(arguments.one)))
        for ranks in [arguments.ranks] if arguments.ranks else range(1, 9):
            print(call_of(arguments.one, ranks))
            try_runs([arguments.one], ranks)
        return 0
    first = random.SystemRandom().randrange(10**9) if arguments.seed is None else arguments.seed
    began, said, seed, counts = time.monotonic(), 0.0, first, Counter[str]()
    print(f"from seed {first} on, for {arguments.seconds:g} s", flush=True)
    while time.monotonic() - began < arguments.seconds:
        block = range(seed, seed + BLOCK)
        ranks = seed // BLOCK % 8 + 1
        again = f"python tests/programs/fuzz.py --one {seed}"
        try:
            for one in block:
                again = f"python tests/programs/fuzz.py --one {one}"
                counts += try_schedule(one)
            again = f"python tests/programs/fuzz.py --one SEED --ranks {ranks}, with the seed that is named above"
            counts["runs"] += try_runs(block, ranks)
        except Exception as error:
            print(f"{type(error).__name__}: {error}\nafter {dict(counts)}\nto repeat it: {again}", file=sys.stderr)
            return 1
        seed += BLOCK
        if time.monotonic() - said > 30:
            said = time.monotonic()
            print(f"{said - began:6.0f} s  {dict(counts)}", flush=True)
    print(f"{time.monotonic() - began:6.0f} s  {dict(counts)}: nothing wrong", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
