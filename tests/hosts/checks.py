"""allfold across hosts, in laboratories on one machine. `make hosts` runs it; it needs root.

    python tests/hosts/checks.py                          everything
    python tests/hosts/checks.py --only kill "IPv6"       the checks with these words in their names
    python tests/hosts/checks.py --backend gloo           the same of gloo, as a comparison: it fails in the checks of faults
    ALLFOLD_FABRIC=ucx python tests/hosts/checks.py       over another fabric than tcp
    python tests/hosts/checks.py --list

One line per check: its name, whether it holds, how long it took, and what was seen. Ends with status 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence

import check_correctness
import check_faults
import check_network
from checking import Check, Failed, Setting
from lab import FABRIC, missing

LIMIT_SECONDS = 5400.0  # no check begins later
CHECKS: Sequence[Check] = (*check_correctness.CHECKS, *check_network.CHECKS, *check_faults.CHECKS)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("allfold", "gloo"), default="allfold", help="of torch (default: allfold)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="checks with these words in their names")
    parser.add_argument("--list", action="store_true", help="the names of the checks")
    parser.add_argument("--verbose", action="store_true", help="what the processes of a failed check printed")
    options = parser.parse_args(arguments)
    chosen = [one for one in CHECKS if not options.only or any(words in one.name for words in options.only)]
    if options.list:
        print("\n".join(one.name for one in chosen))
        return 0
    if reason := missing():
        print(f"make hosts {reason}", file=sys.stderr)
        return 2
    if not chosen:
        print(f"no check has {' or '.join(map(repr, options.only))} in its name: see --list", file=sys.stderr)
        return 2
    setting = Setting(options.backend)
    began, failed = time.monotonic(), 0
    width = max(len(one.name) for one in chosen)
    for one in chosen:
        start = time.monotonic()
        if start > began + LIMIT_SECONDS:
            failed += 1
            print(f"FAILED  {one.name:{width}}     –    no time left: {LIMIT_SECONDS:g} s are over", flush=True)
            continue
        try:
            state, facts = "ok", one.run(setting)
        except Failed as failure:
            state, facts, failed = "FAILED", str(failure), failed + 1
            if options.verbose:
                print(failure.output, file=sys.stderr)
        except Exception as error:  # of the laboratory, or of the check itself: the others go on
            state, facts, failed = "FAILED", f"{type(error).__name__}: {error}", failed + 1
            if options.verbose:
                traceback.print_exc()
        except KeyboardInterrupt:
            print(f"interrupted in {one.name}", file=sys.stderr)
            return 130
        print(f"{state:6}  {one.name:{width}} {time.monotonic() - start:5.1f} s  {facts}", flush=True)
    tested = f"{options.backend} over {os.environ[FABRIC]}" if os.environ.get(FABRIC) else options.backend
    print(f"{len(chosen) - failed} of {len(chosen)} checks hold for {tested}, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
