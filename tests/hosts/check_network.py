"""Do the hosts find each other, whatever their names and interfaces, and do they say so if they cannot?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import launchers
from check_correctness import judged
from checking import INTERFACE, RANKS, Check, Failed, Setting, must_have_left_nothing, one_line, outputs
from lab import Lab

SECTIONS = ("messages", "groups")
GROUP_SECONDS, RUN_SECONDS = 15.0, 240.0
SAYS_SO_WITHIN = GROUP_SECONDS + 2.0


def _finds(name: str, made: Callable[[], Lab], environment: Mapping[str, str] | None = None, over: str = "") -> Check:
    """Nothing is set, unless `environment` does it; `over` is the interface that must carry the data."""

    def run(setting: Setting) -> str:
        with made() as lab:
            arguments = [setting.backend, str(GROUP_SECONDS), *SECTIONS]
            result = lab.run(launchers.ranks, RANKS / "correct.py", [2, 1], environment, RUN_SECONDS, arguments)
            seen = judged(result, SECTIONS, setting.backend)
            if over:
                sent = {f"eth{number}": lab.sent(0, f"eth{number}") for number in range(lab.interfaces)}
                seen += "; sent over " + ", ".join(f"{one} {count / 1e6:.1f} MB" for one, count in sent.items())
                if any(count > sent[over] for count in sent.values()):
                    raise Failed([f"the data did not go over {over}: {seen}"])
            must_have_left_nothing(lab)
            return seen

    return Check(name, run)


def _refuses(name: str, interface: str) -> Check:
    """An interface that cannot be used is named in an error on every rank, soon."""

    def run(setting: Setting) -> str:
        with Lab(decoy=True) as lab:
            arguments = [setting.backend, str(GROUP_SECONDS), "groups"]
            result = lab.run(
                launchers.ranks, RANKS / "correct.py", [1, 1], {INTERFACE: interface}, RUN_SECONDS, arguments
            )
            complaints, texts = [], []
            for rank, lines in result.reports.items():
                said = next((line for line in lines if line["event"] == "refused"), None)
                if said is None:
                    complaints.append(f"rank {rank} raised nothing while the group was made")
                    continue
                after = said["time"] - next(line["time"] for line in lines if line["event"] == "meets")
                texts.append(f"after {after:.1f} s {said['error']}: {one_line(said['text'])}")
                if not re.search(rf"\b{interface}\b", said["text"]):
                    complaints.append(f"rank {rank} does not name {interface}: {texts[-1]}")
                if after > SAYS_SO_WITHIN:
                    complaints.append(f"rank {rank} said so only after {after:.1f} s")
            if result.timed_out:
                complaints.append(f"the ranks had not ended after {result.seconds:.0f} s")
            if complaints or not texts:
                raise Failed(complaints or ["no rank reported anything"], outputs(result))
            must_have_left_nothing(lab)
            return texts[0]

    return Check(name, run)


CHECKS = (
    _finds("hosts without names", Lab),
    _finds("hosts whose names mean 127.0.1.1", lambda: Lab(names="loopback")),
    _finds("hosts with names", lambda: Lab(names="known")),
    _finds("two interfaces, and docker0", lambda: Lab(interfaces=2, decoy=True)),
    _finds("two interfaces, told to use eth1", lambda: Lab(interfaces=2), {INTERFACE: "eth1"}, "eth1"),
    _finds("IPv6 only", lambda: Lab(ipv6_only=True)),
    _finds("two containers of one machine", lambda: Lab(one_machine=True)),
    _refuses("told to use an interface that is not there", "eth7"),
    _refuses("told to use loopback", "lo"),
    _refuses("told to use an interface that leads nowhere", "docker0"),
)
