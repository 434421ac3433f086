"""What shells and terminals get: completion, a pager, and no colours for those who want none."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allfold.cli import main, terminal

ALLFOLD = [sys.executable, "-m", "allfold"]
BASH_TRY = """
source {script}
try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=(); _allfold; echo "${{COMPREPLY[@]}}"; }}
try {words}
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        with contextlib.redirect_stdout(io.StringIO()) as made:
            assert main(["completion", shell]) == 0
        (folder / shell).write_text(made.getvalue(), encoding="utf-8")
    return {shell: folder / shell for shell in ("bash", "zsh", "fish")}


ASKED = [
    ("allfold ver", {"verify"}, {"list"}),
    ("allfold show recursive_d", {"recursive_doubling"}, {"ring"}),
    ("allfold show ring --ran", {"--ranks"}, {"--root"}),
    ("allfold plan --collective all_", {"all_reduce", "all_gather", "all_to_all"}, {"broadcast"}),
    ("allfold find --topology dgx_", {"dgx_a100", "dgx_h100"}, {"torus"}),
    ("allfold completion f", {"fish"}, {"bash"}),
]


@pytest.mark.parametrize(("line", "offered", "others"), ASKED, ids=[one[0] for one in ASKED])
@pytest.mark.parametrize("shell", [shell for shell in ("bash", "fish") if shutil.which(shell)])
def test_completion(
    scripts: dict[str, Path], shell: str, line: str, offered: set[str], others: set[str], tmp_path: Path
) -> None:
    if shell == "bash":
        code = BASH_TRY.format(script=scripts[shell], words=shlex.join(line.split(" ")))
    else:
        code = f"source {scripts[shell]}; complete -C {shlex.quote(line)}"
    variables = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    answer = subprocess.run(
        [shell, "-c", code], capture_output=True, text=True, timeout=60, env=variables, cwd=tmp_path
    )
    assert answer.returncode == 0 and not answer.stderr
    found = {word.partition("\t")[0] for each in answer.stdout.splitlines() for word in each.split(" ")}
    assert offered <= found and not others & found


@pytest.mark.parametrize("shell", [shell for shell in ("bash", "zsh", "fish") if shutil.which(shell)])
def test_the_script_has_no_syntax_error(scripts: dict[str, Path], shell: str) -> None:
    option = "--no-execute" if shell == "fish" else "-n"
    checked = subprocess.run([shell, option, str(scripts[shell])], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and not checked.stderr


def on_a_terminal(*words: str, program: list[str] = ALLFOLD, errors: bool = False, **variables: str) -> bytes:
    """What a command writes to a terminal; with `errors` also what goes to stderr, where progress is shown."""
    ours, theirs = pty.openpty()
    environment = {
        "TERM": "xterm",
        **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
        **variables,
    }
    stderr = theirs if errors else None
    process = subprocess.Popen([*program, *words], stdin=theirs, stdout=theirs, stderr=stderr, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # the last one who wrote has gone
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return written


def test_no_color() -> None:
    style = re.compile(rb"\x1b\[[\d;]*m")
    assert style.search(on_a_terminal("show", "ring", "--ranks", "2"))
    assert b"\x1b" not in on_a_terminal("show", "ring", "--ranks", "2", NO_COLOR="1")
    assert not style.search(on_a_terminal("plan", "--topology", "dgx_h100", "--ranks", "8", NO_COLOR="1"))


def test_a_pager_gets_what_a_terminal_would() -> None:
    direct = on_a_terminal("list", "reduce")
    assert b"\x1b" in direct and not direct.startswith(b"paged:")
    assert on_a_terminal("list", "reduce", PAGER="tee") == direct, "the same text, with the same styles"


@pytest.mark.parametrize("words", [("show", "--help"), ("--help",)])
def test_a_pager_gets_the_help(words: tuple[str, ...]) -> None:
    assert on_a_terminal(*words, PAGER="sed s/^/paged:/").startswith(b"paged:")
    direct = on_a_terminal(*words)
    assert on_a_terminal(*words, PAGER="tee") == direct, "the same text, with the same styles"
    assert on_a_terminal(*words, PAGER="") == on_a_terminal(*words, PAGER="no-such-program") == direct


def test_a_pager_may_end_early() -> None:
    assert len(on_a_terminal("show", "swing", "--ranks", "24", PAGER="head -n 3").splitlines()) == 3


def test_a_pipe_has_no_pager() -> None:
    variables = {**os.environ, "PAGER": "sed s/^/paged:/"}
    done = subprocess.run([*ALLFOLD, "show", "--help"], capture_output=True, text=True, env=variables, timeout=60)
    assert done.returncode == 0 and "example:" in done.stdout and "paged:" not in done.stdout


# The moment passes before the work begins: the work can be short, and the test does not depend on the clock.
AT_ONCE = """
import sys, threading
from allfold.cli import main, terminal

class Timer(threading.Timer):
    def start(self):
        super().start()
        self.join()

terminal._MOMENT, threading.Timer = 0.0, Timer
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verify", "ring", "--ranks", "16"), "proving"),
        (("show", "ring", "--ranks", "4"), "drawing"),
        (("compare", "--ranks", "20", "--algorithms", "ring"), "counting ring, 20 ranks"),
        (("export", "ring", "--ranks", "4", "--to", "json"), "writing json, and checking it"),
    ],
)
def test_what_takes_long_says_so_on_a_terminal(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [sys.executable, "-c", AT_ONCE]
    assert says.encode() in on_a_terminal(*words, program=program, errors=True)
    monkeypatch.setattr(terminal, "_MOMENT", 0.0)
    assert main(words) == 0
    piped = capsys.readouterr()
    assert piped.out and says not in piped.out + piped.err
