"""The torch programs of examples/torch: the same results on allfold and on gloo, however they are started."""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
from io import StringIO
from pathlib import Path

import pytest
from launched import launched
from test_examples import EXAMPLES, printed, start

pytest.importorskip("torch")
FOLDER = EXAMPLES / "torch"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("started", "everything", "mistakes"))
STARTS = {
    "allfold run": ("-m", "allfold", "run", "-n", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    "mp.spawn": (),
}


def _results(out: str, backend: str) -> dict[str, str]:
    """By program, what it printed on this backend, without times."""
    part = re.split(r"^(?:allfold|gloo), 2 ranks\n", out, flags=re.MULTILINE)[{"allfold": 1, "gloo": 2}[backend]]
    found = dict(re.findall(r"^= (\w+)\n(.*?)(?=^= |\Z)", part, flags=re.MULTILINE | re.DOTALL))
    return {name: re.sub(r" +[\d.]+ (?:ms|GB/s)", "", text) for name, text in found.items()}


def as_a_rank(_: object, script: str, *words: str) -> str:
    """The work of a rank: a script; what it printed."""
    sys.argv, sys.path[:0] = [script, *words], [str(Path(script).parent)]
    with contextlib.redirect_stdout(StringIO()) as out:
        runpy.run_path(script, run_name="__main__")
    return out.getvalue()


def _printed(script: str, *words: str) -> str:
    """What a program prints in two ranks with the variables of `allfold run`, forked from a process that has torch."""
    first, second = launched(as_a_rank, 2, str(FOLDER / script), *words)
    assert second == ""
    return str(first)


def _check(out: str) -> None:
    allfold, gloo = _results(out, "allfold"), _results(out, "gloo")
    assert sorted(allfold) == NAMES and allfold == gloo
    assert "to oneself: ValueError" in allfold["ring"]


def test_all_of_them_on_both_backends() -> None:
    """All programs in the same two processes: importing torch takes longer than any of them."""
    _check(_printed("everything.py", "--backend", "allfold,gloo"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", STARTS)
def test_all_of_them_started_in_every_way(how: str) -> None:
    options = ("--backend", "allfold,gloo", *(("--ranks", "2") if how == "mp.spawn" else ()))
    _check(printed(start(*STARTS[how], str(FOLDER / "everything.py"), *options)))


def test_the_usual_mistakes_are_reported() -> None:
    out = _printed("mistakes.py")
    assert re.sub(r" \(call.*|; if this.*", "", out).splitlines() == [
        "allfold, 2 ranks",
        "different lengths: all_reduce: rank 0 called it with float32[3] sum, rank 1 with float32[4] sum",
        "different types: all_reduce: rank 0 called it with float32[3] sum, rank 1 with float64[3] sum",
        "another order: mismatched calls: rank 0 called all_reduce(float32[3] sum), rank 1 called barrier()",
        "a call on one rank only: all_reduce: rank 1 did not arrive within 1 s",
        "everybody receives first: irecv: nothing arrived from rank 1 with tag 0 within 1 s (the world)",
        "a root of their own: broadcast: rank 0 called it with float32[3] root 0, rank 1 with float32[3] root 1",
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_each_by_itself(name: str) -> None:
    assert printed(start(str(FOLDER / f"{name}.py"), "--ranks", "2")).startswith("allfold, 2 ranks\n")


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_popular_versions_get_wrong(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(r"What (a )?popular versions? gets? wrong:", text)
    assert text.endswith('if __name__ == "__main__":\n    start(main, __doc__)\n')
    assert f"[{name}.py](torch/{name}.py)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert Path(FOLDER / "everything.py").read_text(encoding="utf-8").count(f'"{name}"') == 1
