"""The export command, and what makes two schedules the same; each format has its own file beside this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from export_cases import block, gpu, xml
from test_cli import Call, assert_printed

import allfold as af
from allfold.cli import choose, main
from allfold.export import perfetto
from allfold.export.chakra import chakra
from allfold.export.equivalence import check_equivalent
from allfold.registry import REGISTRY


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    with REGISTRY.scope():
        yield run
    choose._load_module.cache_clear()


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (("all_reduce", "ring", 4), ("all_reduce", "ring", 5), "ranks is 5 and was 4"),
        (("all_reduce", "ring", 4), ("all_reduce", "halving_doubling", 4), "rank 0 sends"),
        (("all_reduce", "naive", 4), ("all_reduce", "rotate", 4), "sends|another result"),
        (("reduce_scatter", "ring", 3), ("reduce_scatter", "direct", 3), "sends|another result"),
    ],
)
def test_what_differs_is_not_equivalent(first: tuple[str, str, int], second: tuple[str, str, int], says: str) -> None:
    check_equivalent(af.schedule(*first), af.schedule(*first))
    with pytest.raises(af.ScheduleError, match=says):
        check_equivalent(af.schedule(*first), af.schedule(*second))


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json", "perfetto", "json"])
def test_to_a_file_and_to_the_terminal(form: str, call: Call, tmp_path: Path) -> None:
    status, out, _ = call("export", "ring", "--ranks", "3", "--to", form)
    assert status == 0
    path = tmp_path / "file"
    status, said, _ = call("export", "ring", "--ranks", "3", "--to", form, "-o", str(path))
    assert status == 0 and path.read_text() == out
    assert said == f"{path}: all_reduce ring(ranks=3) as {form}, {len(out.encode())} bytes, proved\n"


def test_chakra_writes_a_file_a_rank(call: Call, tmp_path: Path) -> None:
    words = ("export", "tree", "--collective", "broadcast", "--ranks", "3", "--to", "chakra", "--size", "3K")
    assert call(*words)[0] == 2
    assert call(*words, "-o", str(tmp_path / "b"))[0] == 0
    plan = chakra.read([(tmp_path / f"b.{rank}.et").read_bytes() for rank in range(3)])
    check_equivalent(af.schedule("broadcast", "tree", 3), plan)


@pytest.mark.parametrize("suffix", ["xml", "json"])
def test_show_and_verify_take_what_was_exported(suffix: str, call: Call, tmp_path: Path) -> None:
    path = str(tmp_path / f"plan.{suffix}")
    form = "msccl-xml" if suffix == "xml" else "json"
    assert call("export", "ring", "--ranks", "4", "--to", form, "-o", path)[0] == 0
    status, out, err = call("verify", path, "--ranks", "4")
    assert status == 0 and out.startswith("all_reduce ring(ranks=4) is right"), err
    assert "24 messages" in call("show", path, "--ranks", "4", "--moves-only")[1]
    status, _, err = call("show", path, "--ranks", "5")
    assert status == 2 and "is a schedule for 4 ranks: pass --ranks 4" in err
    assert call("verify", path, "--collective", "broadcast", "--ranks", "4")[0] == 2
    assert call("export", path, "--ranks", "4", "--to", "mscclpp-json")[0] == 0


def test_a_wrong_file_has_exit_status_one(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "wrong.xml"
    path.write_text(xml(gpu(0, block(1, 1, "r i0 o0", "s i0 o0")), gpu(1, block(0, 0, "r i0 o0", "s i0 o0"))))
    status, _, err = call("verify", str(path), "--ranks", "2")
    assert status == 1 and "deadlock" in err
    assert call("verify", str(tmp_path / "missing.xml"), "--ranks", "2")[0] == 2
    path.write_text("<algo")
    status, _, err = call("verify", str(path), "--ranks", "2")
    assert status == 2 and f"{path}: this is not XML" in err


def test_perfetto_on_the_modelled_clock(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = (
        "export",
        "ring",
        "--ranks",
        "4",
        "--to",
        "perfetto",
        "--topology",
        "one_host",
        "--size",
        "1M",
        "-o",
        str(path),
    )
    status, out, err = call(*words)
    assert status == 0, err
    document = json.loads(path.read_text())
    perfetto.check_trace(document)
    assert sum(row["ph"] == "s" for row in document["traceEvents"]) == 24 and "checked" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "msccl"), "did you mean 'msccl-xml'?"),
        (("--to", "json", "--size", "1M"), "--size does not concern --to json"),
        (("--to", "perfetto", "--size", "1M"), "--size needs --topology"),
        (("--to", "perfetto", "--segments", "2"), "--segments needs --topology"),
        (("--to", "json", "--segments", "2"), "--segments does not concern --to json"),
        (("--to", "chakra", "--size", "0", "-o", "x"), "at least 1 byte"),
        (("--to", "chakra", "--size", "900000000G", "-o", "x"), "at most 2**56"),
        (("--to", "chakra", "-o", "."), "expected a prefix"),
        (("--to", "chakra", "-o", ".."), "expected a prefix"),
        (("--to", "chakra", "-o", "/"), "expected a prefix"),
        ((), "--to"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], says: str, call: Call) -> None:
    status, _, err = call("export", "ring", "--ranks", "3", *words)
    assert status == 2 and says in err


def test_the_example_of_the_help_is_real(call: Call) -> None:
    status, out, _ = call("export", "--help")
    assert status == 0
    example = out.split("example:\n")[1].split("\nexit status")[0]
    for part in example.split("  $ allfold ")[1:]:
        words, *quoted = part.rstrip().splitlines()
        if quoted:
            assert_printed([line[2:] for line in quoted], call(*words.split())[1], words)
