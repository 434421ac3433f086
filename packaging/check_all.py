"""`make check-all`: everything that must pass before a release, one target after the other, then a table of results."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from stage import LOGS, clock, run, show_end

# What each needs beyond `make test`: Node (web), Chromium (browser, site), Firefox (firefox), root (hosts), UCX's library
# (ucx), an index with the frameworks. Without a GPU, test-gpu skips its tests.
TARGETS = [
    "test",
    "test-all",
    "test-web",
    "test-browser",
    "test-gpu",
    "sanitize",
    "fuzz SECONDS=300",
    "bounds",
    "soak SECONDS=600",
    "faults",
    "check-trials",
    "explain-trials",
    "hosts",
    "ucx",
    "conformance",
    "conformance-mpi",
    "mpi-packages",
    "conformance-drop-in",
    "test-frameworks",
    "test-torchtitan",
    "test-many-ranks",
    "types",
    "test-site",
    "test-firefox",
    "test-site-python",
    "wheels",
    "test-wheels",
]


@dataclass
class Result:
    target: str
    passed: bool
    seconds: float


def main() -> None:
    wanted = sys.argv[1:] or TARGETS
    print(f"{len(wanted)} targets, several hours in all; each one's output is in {LOGS.name}/ of build/", flush=True)
    results = []
    for number, target in enumerate(wanted, 1):
        name, *variables = target.split()
        print(f"[{number}/{len(wanted)}] make {target} …", flush=True)
        log = LOGS / f"check-{name}.log"
        status, seconds = run(f"make {name}", ["make", "--no-print-directory", name, *variables], log)
        results.append(Result(name, status == 0, seconds))
        print(f"  {'passed' if status == 0 else 'FAILED'} after {clock(seconds)}", flush=True)
        if status != 0:
            show_end(log)
    print()
    for result in results:
        print(f"{result.target:16} {'passed' if result.passed else 'FAILED':7} {clock(result.seconds):>8}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed, {clock(sum(result.seconds for result in results))} in all")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
