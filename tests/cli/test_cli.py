"""The command line: its help, what it refuses, and the process that it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import Call, process
from each import each

import allfold as af
from allfold.cli import COMMANDS, demo, main, verify
from allfold.files import require_writable, write_whole

# Help and usage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_holds_an_example(command: str, call: Call) -> None:
    status, out, _ = call(command, "--help")
    assert status == 0
    assert "example:" in out and f"$ allfold {command}" in out


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_alone_it_prints_help(words: tuple[str, ...], call: Call) -> None:
    status, out, _ = call(*words)
    assert status == 0
    assert all(re.search(rf"^    {command}( |$)", out, re.MULTILINE) for command in COMMANDS)


def assert_printed(quoted: list[str], printed: str, what: str) -> None:
    """Every quoted line, or the quoted part of it, was printed."""
    real = [line.rstrip() for line in printed.splitlines()]
    for line in filter(None, (line.rstrip("… ") for line in quoted)):
        assert any(one.startswith(line) for one in real), f"{what}: {line!r} is not printed"


def examples_of(command: str, call: Call) -> Iterator[tuple[str, list[str]]]:
    """The commands that the help of a command shows, with what it says that they print."""
    example = call(command, "--help")[1].split("example:\n")[1].split("\nexit status")[0]
    for block in example.split("  $ allfold ")[1:]:
        words, *rest = block.rstrip().splitlines()
        quoted = [line[2:] for line in rest if not line.startswith("  $ ")]  # other programs are not run
        if quoted:
            yield words, quoted


@pytest.mark.parametrize("command", ["list", "show", "verify", "compare", "export", "plan", "find", "simulate"])
def test_the_example_of_the_help_is_real(command: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for words, quoted in examples_of(command, call):
        assert_printed(quoted, call(*words.split())[1], words)


def test_the_first_lines_of_the_readme_print_what_it_says() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    code, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    command = [sys.executable, "-c", code]
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    assert subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=60).stdout == output


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, call: Call) -> None:
    status, out, _ = call(option)
    first, *others = out.splitlines()
    assert status == 0 and first == f"allfold {af.__version__}"
    assert [line.split()[0] for line in others] == ["python", "numpy", "system", "engine"]
    assert np.__version__ in out and "kernels" in others[-1] and "baseline" in others[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shwo"], "did you mean 'show'?"),
        (["show", "rinng"], "did you mean 'ring'?"),
        (["show"], "NAME"),
        (["show", "ring", "--collective", "al_reduce"], "did you mean 'all_reduce'?"),
        (["show", "halving", "--collective", "all_reduce"], "all_reduce has no algorithm 'halving'"),
        (["show", "ring", "--ranks", "0"], "the least is 1"),
        (["show", "ring", "--ranks", "four"], "expected a number"),
        (["show", "ring", "--ranks", "1-4"], "expected one number"),
        (["show", "ring", "--root", "1"], "has no root"),
        (["show", "chain", "--root", "9"], "root must be between 0 and 3"),
        (["show", "hierarchical", "--with", "groups"], "expected KEY=VALUE"),
        (["show", "hierarchical", "--with", "groups=[[0,1]]"], "groups must hold each of the ranks"),
        (["show", "hierarchical", "--with", "groups=7"], "allfold show: groups must hold each of the ranks"),
        (["show", "ring", "--nonsense"], "--nonsense"),
        (["list", "all_redcue"], "did you mean 'all_reduce'?"),
        (["verify"], "expected the names of algorithms or --all"),
        (["verify", "ring", "--all"], "expected the names of algorithms or --all"),
        (["verify", "ring", "--ranks", "9-3"], "9-3 goes backwards"),
        (["verify", "chain", "--roots", "first"], "expected all, or ranks"),
        (["verify", "chain", "--roots", "16"], "there is no rank 16 among 16"),
        (["verify", "ring", "--jobs", "0"], "at least 1"),
        (["verify", "nowhere.py:ring"], "there is no file nowhere.py"),
        (["show", "ring", "--values", "1 2; 3"], "expected 2 rows of equally many numbers"),
        (["show", "ring", "--values", "1 x; 3 4"], "expected numbers, as in"),
        (["show", "ring", "--op", "max"], "add --values"),
        (["show", "dissemination", "--collective", "barrier", "--values", "1"], "a barrier carries no data"),
        (["list", "--size", "1M"], "add --what-for"),
        (["list", "reduce", "--what-for"], "leave out the name"),
        (["compare", "--algorithms", "ring,rign"], "did you mean 'ring'?"),
        (["compare", "ring", "rign"], "did you mean 'ring'?"),
        (["show", "ring", "--rnaks", "4"], "unknown option --rnaks; did you mean --ranks?"),
        (["export", "ring", "--format", "json"], "unknown option --format (see"),  # nothing is like it
        (["plan", "-o", "x"], "unknown option -o (see"),
        (
            ["show", "ring", "--html", "/nowhere/x.html"],
            "--html: /nowhere/x.html cannot be written: there is no folder",
        ),
        (["show", "ring", "--svg", "/"], "--svg: / cannot be written: Is a directory"),
        (["find", "--save", "/nowhere/x.json"], "--save: /nowhere/x.json cannot be written: there is no folder"),
        (["export", "ring", "--too", "json"], "unknown option --too; did you mean --to?"),
        (["learn", "check", "--wacth"], "did you mean --watch?"),
        (["run", "-n", "2", "--prefx", "x.py"], "unknown option --prefx; did you mean --prefix?"),
        (["run", "x.py", "-n", "2"], "-n goes before the script: allfold run -n 2 x.py"),
        (["run"], "expected -n RANKS"),
        (["run", "-n", "2", "--threads", "--", "true"], "--threads does not work with -- and a command"),
        (["run", "-n", "2", "--threads", "--hosts", "2", __file__], "--threads does not work with --hosts"),
        (["run", "-n", "2", "--threads", "--prefix", __file__], "--threads does not work with --prefix"),
        (["run", "-n", "2", "--threads", "--pdb", "0", __file__], "--threads does not work with --pdb"),
        (["run", "-n", "2", "--threads", "--engine", "thread", __file__], "there is no engine 'thread'"),
        (["show", "hierarchical", "--with", "groups=[[0,1],[2"], "the value is not JSON"),
        (["export", "ring", "--to", "json", "-o", "/nowhere/at/all/ring.json"], "there is no folder /nowhere/at/all"),
        (["bench", "-n", "100000"], "100000 ranks are too many for one machine"),
        (["bench", "all_redcue"], "did you mean 'all_reduce'?"),
        (["bench", "reduce", "--collective", "gather"], "name only one of them"),
    ],
)
def test_wrong_usage_is_one_sentence(words: list[str], says: str, call: Call) -> None:
    status, out, err = call(*words)
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("allfold") and says in err


def test_wrong_options_are_refused_before_anything_is_loaded() -> None:
    """NumPy and rich take longer to load than a typo should cost."""
    code = (
        "import sys; from allfold.cli import COMMANDS, main\n"
        "assert [main([command, '--nonsense']) for command in COMMANDS] == [2] * len(COMMANDS)\n"
        "assert main(['shwo']) == main(['run', 'x.py', '-n', '2']) == 2\n"
        "for wrong in ('show ring -n 0', 'verify ring -n 3-2', 'plan --size 8Q', 'bench -b many', 'tune --sizes 1K-'):\n"
        "    assert main(wrong.split()) == 2, wrong\n"
        "assert not {'numpy', 'rich', 'allfold._native'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# The process ----------------------------------------------------------------------------------------------------------


def test_demo(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all that can be seen in it: it takes longer than most commands. The times are of shorter buffers."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(demo, "_TIMED", {"4 KiB": 1024, "16 MiB": 4096})
    ((words, quoted),) = examples_of("demo", call)
    assert words == "demo"
    status, out, _ = call("demo")
    assert status == 0 and out.count("checked, proved") == len(af.algorithms("all_reduce"))
    assert "all_reduce by ring: 4 ranks" in out
    assert_printed(quoted, out, words)
    assert "\x1b" not in out


def test_as_a_process() -> None:
    done = process("list", "barrier")
    assert done.returncode == 0 and done.stderr == "" and "dissemination" in done.stdout
    assert process("shwo").returncode == 2


def test_a_terminal_without_unicode() -> None:
    done = process("show", "ring", "--ranks", "2", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "+1:0>1" in done.stdout
    assert "[01v]" in done.stdout and "?" not in done.stdout


NOBODY = [
    pytest.param(words, where, status, marks=[pytest.mark.exhaustive] if number % 2 else [], id=f"{words} {where}")
    for number, (words, where, status) in enumerate(
        (words, where, status)
        for words in ("list barrier", "plan --ranks 4 --json")
        for where, status in ((">/dev/full", 2), (">&-", 0), (">&- 2>&-", 0))
    )
]


@pytest.mark.parametrize(("words", "where", "status"), NOBODY)
def test_output_that_nobody_can_take_is_no_traceback(words: str, where: str, status: int) -> None:
    command = [sys.executable, "-m", "allfold", *words.split()]
    done = subprocess.run(["sh", "-c", f'exec "$@" {where}', "sh", *command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == status
    said = f"allfold {words.split()[0]}: cannot write output: No space left on device\n"
    assert done.stderr == (said if status else "")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("plan --ranks 64 --topology dgx_h100 --algorithms ring,two_level", "ring .*2.99 ms"),
        ("compare --ranks 4 --algorithms ring,recursive_doubling", "4 +recursive_doubling +2 +8 +8 S +2 +2 S"),
    ],
)
def test_tables_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, row: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([*words.split(), "--no-color"]) == 0
    out = capsys.readouterr().out
    table = [
        line for line in out.splitlines() if line.startswith(("algorithm ", "ring ", "two_level ", "ranks ", "4 "))
    ]
    assert len(table) >= 3 and max(map(len, table)) <= 80
    assert "…" not in out and re.search(row, "\n".join(table))


@each(
    ("path", "reason"),
    [
        (".", "Is a directory"),
        ("a/b", "there is no folder"),
        ("file/b", "no file can be made in"),
        ("a" * 5000, "File name too long"),
        ("a\0b", "null byte"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(af.UsageError, match=f"cannot be written: .*{reason}"):
        require_writable(tmp_path / path)
    with pytest.raises(af.UsageError, match="cannot be written: "):
        write_whole(tmp_path / path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_files_that_can_be_written_are_not_made_before_the_work(tmp_path: Path) -> None:
    for path in (tmp_path / "new", Path(__file__), Path("/dev/null"), Path("/dev/stdout")):
        require_writable(path)
    require_writable(tmp_path / "a" / "b", folders=True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert path.read_text() == "new" and link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    write_whole(tmp_path / "a" / "b", b"there", folders=True, private=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
    with pytest.raises(af.UsageError, match="cannot be written: Is a directory"):
        write_whole(tmp_path, "new")
    with pytest.raises(af.UsageError, match="cannot be written: File name too long"):
        write_whole(tmp_path / ("a" * 300), "new")
    write_whole("/dev/null", "new")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text("old")
    command = [sys.executable, "-m", "allfold", "export", "ring", "--ranks", "48", "--to", "json", "-o", str(path)]
    limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2 and "cannot be written: File too large" in done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_interrupt_ends_a_prover_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while it imports what it needs."""
    prover = verify._Prover()
    interrupt, masks = 1 << signal.SIGINT - 1, [0]
    while not any(mask & interrupt for mask in masks):
        status = Path(f"/proc/{prover.process.pid}/status").read_text()
        masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", status, re.MULTILINE)]
    assert prover.process.pid is not None
    os.kill(prover.process.pid, signal.SIGINT)
    prover.process.join()
    assert prover.process.exitcode == -signal.SIGINT and capfd.readouterr().err == ""
    prover.end()


@pytest.mark.parametrize("where", [("--full",), ("--html", "/dev/stdout")])
def test_a_closed_pipe_is_quiet(where: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "allfold", "show", "ring", "--ranks", "48", *where]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.read(100)
    running.stdout.close()
    err = running.stderr.read().decode()
    assert running.wait(60) == 128 + signal.SIGPIPE
    assert err == ""
    running.stderr.close()
