"""What shells and terminals get: completion, a pager, and no colours for those who want none."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
        made = subprocess.run([*ALLFOLD, "completion", shell], capture_output=True, text=True, timeout=60, check=True)
        (folder / shell).write_text(made.stdout, encoding="utf-8")
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
    assert style.search(on_a_terminal("list", "reduce"))
    assert not style.search(on_a_terminal("list", "reduce", NO_COLOR="1"))
    assert not style.search(on_a_terminal("plan", "--topology", "dgx_h100", "--ranks", "8", NO_COLOR="1"))


@pytest.mark.parametrize("words", [("list", "reduce"), ("show", "--help"), ("--help",)])
def test_a_pager_gets_what_a_terminal_would(words: tuple[str, ...]) -> None:
    assert on_a_terminal(*words, PAGER="sed s/^/paged:/").startswith(b"paged:")
    direct = on_a_terminal(*words)
    assert on_a_terminal(*words, PAGER="tee") == direct, "the same text, with the same styles"
    assert on_a_terminal(*words, PAGER="") == on_a_terminal(*words, PAGER="no-such-program") == direct


def test_a_pager_may_end_early() -> None:
    assert len(on_a_terminal("show", "swing", "--ranks", "24", PAGER="head -n 3").splitlines()) == 3


def test_a_pipe_has_no_pager() -> None:
    variables = {**os.environ, "PAGER": "sed s/^/paged:/"}
    done = subprocess.run([*ALLFOLD, "list", "reduce"], capture_output=True, text=True, env=variables, timeout=60)
    assert done.returncode == 0 and "paged:" not in done.stdout


AT_ONCE = """
import sys
from allfold.cli import main, terminal
terminal._MOMENT = 0.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verify", "ring", "--ranks", "200"), b"proving"),
        (("show", "ring", "--ranks", "200"), b"drawing"),
        (("compare", "--ranks", "200", "--algorithms", "ring"), b"counting ring, 200 ranks"),
        (("export", "ring", "--ranks", "40", "--to", "json"), b"writing json, and checking it"),
    ],
)
def test_what_takes_long_says_so_on_a_terminal(words: tuple[str, ...], says: bytes) -> None:
    program = [sys.executable, "-c", AT_ONCE]
    assert says in on_a_terminal(*words, program=program, errors=True)
    piped = subprocess.run([*ALLFOLD, *words], capture_output=True, timeout=60)
    assert piped.returncode == 0 and says not in piped.stdout + piped.stderr
