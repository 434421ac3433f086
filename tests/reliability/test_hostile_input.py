"""Input from others is untrusted: it is accepted, or refused with one of our errors; nothing hangs or eats memory.

Single fields of schedules, topologies, tuning files and MSCCL files are fuzzed in their own tests. The rest is here:
environment variables, exported plans and traces, whole files of arbitrary bytes on the command line, sizes that are
claimed but not there, and strangers that connect to a run.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import secrets
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_ranks import knock

import allfold as af
from allfold.cli import main
from allfold.communicator.communicator import connect
from allfold.engines.shared_memory.engine import _fetches
from allfold.engines.shared_memory.members import _arena_bytes
from allfold.engines.shared_memory.rendezvous import exchange
from allfold.engines.shared_memory.tuning import find_tuning
from allfold.export import perfetto
from allfold.export.chakra import chakra
from allfold.export.mscclpp import mscclpp
from allfold.export.mscclpp import plan as mscclpp_plan
from allfold.launch.environment import place_from_environment

PATIENCE = 60.0
ROOM = 3 << 30  # bytes of address space: a claim of more than this must be refused, not tried

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from((10**12, -1, 2**31)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


# Environment variables ------------------------------------------------------------------------------------------------

NAMES = (
    *("ALLFOLD_RANK", "ALLFOLD_SIZE", "ALLFOLD_KEY", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "PMI_JOBID", "PMI_PORT", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_NNODES"),
)
# What os.environ may hold: no zero bytes; bytes that are not text appear as surrogates.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=12)
VALUES = (
    st.sampled_from(("", "0", "1", "2", "3", "65536", "999999999", "1e3", "-1", "٣", " 1", "1_0", "\udcff", "9" * 5000))
    | TEXT
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
def test_whatever_launchers_say_is_a_place_or_refused(environ: dict[str, str]) -> None:
    try:
        place = place_from_environment(environ)
    except af.UsageError as error:
        assert any(name in str(error) for name in NAMES), "the sentence names the variable"
        assert str(error).encode(errors="surrogateescape")
        return
    assert 0 <= place.rank < place.size and 0 <= place.local_rank < place.size and place.key


@given(st.sampled_from(("ALLFOLD_ARENA_BYTES", "ALLFOLD_FETCH", "ALLFOLD_TUNING")), VALUES | TEXT)
def test_settings_are_taken_or_refused(name: str, value: str) -> None:
    with mock.patch.dict(os.environ, {name: os.fsdecode(value.encode(errors="surrogatepass"))}):
        for reader in (lambda: _arena_bytes(2**40), _fetches, find_tuning):
            try:
                reader()
            except af.UsageError as error:
                assert name in str(error)


@pytest.mark.parametrize("size", [2**20, 999_999_999, 2**31 - 1])
def test_a_size_that_nobody_has_is_refused_or_waited_for_no_longer_than_told(size: int) -> None:
    began = time.monotonic()
    with pytest.raises(af.AllfoldError):
        connect(0, size, secrets.token_hex(16), 0.2)
    assert time.monotonic() - began < PATIENCE


# Plans and traces -----------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, as the keys that lead there."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


RING = af.schedule("all_reduce", "ring", 3)
DOCUMENTS: dict[str, tuple[Any, Callable[[Any], af.Schedule]]] = {
    "perfetto": (json.loads(perfetto.write(RING)), perfetto.read),
    "mscclpp": (json.loads(mscclpp.write(RING)), lambda document: mscclpp_plan.read(json.dumps(document))),
    "schedule": (RING.to_json(), af.Schedule.from_json),
}


@pytest.mark.parametrize("form", sorted(DOCUMENTS))
@given(st.data())
def test_a_changed_document_is_understood_or_refused(form: str, data: st.DataObject) -> None:
    good, read = DOCUMENTS[form]
    place = data.draw(st.sampled_from(list(places(good))))
    value = data.draw(JSON | st.just(...))
    document = copy.deepcopy(good)
    inside = document
    for key in place[:-1]:
        inside = inside[key]
    if not place:
        document = None if value is ... else value
    elif value is ...:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    with contextlib.suppress(af.AllfoldError):
        af.verify(read(document))


TRACES = chakra.write(RING, 3000)


@given(st.data())
def test_damaged_traces_of_chakra_are_understood_or_refused(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(TRACES) - 1))
    raw = TRACES[number]
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 20)))
    damaged = raw[:start] + data.draw(st.binary(max_size=12)) + raw[end:]
    with contextlib.suppress(af.AllfoldError):
        af.verify(chakra.read([damaged if one == number else trace for one, trace in enumerate(TRACES)]))


# Files at the command line --------------------------------------------------------------------------------------------

HEAD = b'{"format": "allfold-schedule", "version": 1, "collective": "all_reduce", '
FILES = [
    b"",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"1" * 100_000,
    b'{"format": "allfold-schedule", "version": 1e400}',
    HEAD + b'"ranks": ' + b"9" * 5000 + b"}",
    "\ufeff{}".encode(),
    b'"\\ud800"',
]


@pytest.mark.parametrize("content", FILES, ids=range(len(FILES)))
@pytest.mark.parametrize("suffix", ["json", "xml"])
def test_files_of_any_content_are_refused_with_a_sentence(
    content: bytes, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"given.{suffix}"
    path.write_bytes(content)
    for words in (["verify", str(path)], ["show", str(path)], ["plan", "--topology", str(path)]):
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert said.strip() and "Traceback" not in said and len(said) < 2000, words


def test_a_pipe_and_a_folder_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.json").mkdir()
    assert main(["show", str(tmp_path / "folder.json")]) == 2
    assert main(["show", str(tmp_path / "nothing.json")]) == 2
    assert "Traceback" not in capsys.readouterr().err


CLAIMS: dict[str, tuple[list[str], Any]] = {
    "ranks of a schedule": (["verify"], RING.to_json() | {"ranks": 10**12}),
    "ranks that just fit": (
        ["verify"],
        RING.to_json() | {"ranks": 2**31 - 1, "chunks": 1, "steps": [[[0, 0, 0, 1, 0, 0]]]},
    ),
    "chunks that just fit": (["verify"], RING.to_json() | {"chunks": 2**29}),
    "scratch that just fits": (["verify"], RING.to_json() | {"scratch": 2**29}),
    "ranks to be shown": (
        ["show"],
        RING.to_json() | {"ranks": 2**31 - 1, "chunks": 1, "steps": [[[0, 0, 0, 1, 0, 0]]]},
    ),
    "ranks of a topology": (
        ["plan", "--ranks", "8", "--topology"],
        {"format": "allfold-topology", "version": 1, "name": "x", "ranks": 10**12, "links": []},
    ),
}
SMALL_ROOM = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({ROOM}, {ROOM}))
from allfold.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("claim", sorted(CLAIMS))
def test_what_is_claimed_is_not_allocated(claim: str, tmp_path: Path) -> None:
    words, document = CLAIMS[claim]
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(document))
    command = [sys.executable, "-c", SMALL_ROOM, *words, str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert ended.returncode in (1, 2), ended
    assert "Traceback" not in ended.stderr and "MemoryError" not in ended.stderr and ended.stderr + ended.stdout


# Strangers at the door ------------------------------------------------------------------------------------------------


def test_strangers_of_all_kinds_hold_up_nobody() -> None:
    """Silent ones, partial messages, noise and floods, while the ranks of this run and of another one connect."""
    dice = random.Random(7)
    key, other = secrets.token_hex(16), secrets.token_hex(16)
    results: dict[tuple[str, int], Any] = {}

    def meet(name: str, rank: int, size: int) -> None:
        try:
            came = exchange(rank, size, name, f"rank {rank}".encode(), [], PATIENCE)
            results[name, rank] = [payload for payload, _ in came]
        except BaseException as error:
            results[name, rank] = error

    greeting = struct.pack("!B8sHIIQIQ32s", 0, b"allfold\0", 2, 1, 3, 2**63, 2**31, 0, b"")
    first = threading.Thread(target=meet, args=(key, 0, 3))
    first.start()
    strangers = []
    for number in range(150):  # more than rank 0 keeps waiting at once
        stranger = knock(key, PATIENCE)
        strangers.append(stranger)
        packet = (
            b"",
            dice.randbytes(dice.randrange(1, 300)),
            greeting[: dice.randrange(1, len(greeting))],
            greeting + b"!",
        )
        try:
            if packet[number % 4]:
                stranger.send(packet[number % 4])
            if number % 8 == 7:
                stranger.close()
        except BrokenPipeError:  # already rejected
            pass
    threads = [threading.Thread(target=meet, args=(key, rank, 3)) for rank in (1, 2)]
    threads += [threading.Thread(target=meet, args=(other, rank, 2)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in (first, *threads):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    for stranger in strangers:
        stranger.close()
    three, two = [b"rank 0", b"rank 1", b"rank 2"], [b"rank 0", b"rank 1"]
    assert results == {**{(key, rank): three for rank in range(3)}, **{(other, rank): two for rank in range(2)}}
