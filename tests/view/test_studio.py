"""The studio, in its own process: what it answers, which requests it refuses, and what edited code cannot do to it."""

from __future__ import annotations

import contextlib
import html
import http.client
import inspect
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import allfold as af
from allfold import Schedule
from allfold.cli import main
from allfold.export.msccl.msccl import write as write_msccl
from allfold.launch.sandbox import CodeError
from allfold.registry import find_algorithm
from allfold.studio.answers import Answers, topology_of
from allfold.studio.edit import Limits, Workers
from allfold.studio.server import Studio as Server
from allfold.view.entry import TooManyMoves, within
from allfold.view.page import entry

COMMAND = [sys.executable, "-m", "allfold", "studio", "--no-browser"]
RING = inspect.getsource(import_module("allfold.algorithms.ring"))
CASE = {"collective": "all_reduce", "ranks": 4, "root": None, "topology": "hosts:ranks_per_host=2", "size": 4096}


@dataclass
class Opened:
    """What a browser was told to open, as long as it was there."""

    home: Path
    line: str
    modes: tuple[int, int]
    target: str


@dataclass
class Studio:
    process: subprocess.Popen[str]
    port: int
    token: str
    opened: Opened | None = None

    def ask(self, path: str, body: object = None, **headers: str | None) -> tuple[int, Any, dict[str, str]]:
        """The status, the answer, and its headers. A header given as None is not sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        given = {"X-Allfold-Token": self.token, "Content-Type": "application/json" if body is not None else None}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        connection.request(method, path, data, {name: value for name, value in given.items() if value is not None})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.headers.get_content_type() == "application/json":
            content = json.loads(content)
        return answer.status, content, dict(answer.headers)

    def entry(self, **case: object) -> tuple[int, Any]:
        words = {name: "null" if value is None else value for name, value in {**CASE, **case}.items()}
        status, found, _ = self.ask(f"/api/entry?{urlencode(words)}")
        return status, found

    def edit(self, code: str, **case: object) -> tuple[int, Any]:
        status, found, _ = self.ask("/api/edit", {**CASE, **case, "code": code})
        return status, found


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


def start_with_browser(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str, Opened]:
    """The browser is a script, which notes its command line."""
    home, seen, browser = folder / "home", folder / "seen", folder / "browser"
    home.mkdir()
    os.mkfifo(seen)
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}\n')
    browser.chmod(0o700)
    environ = {**os.environ, "HOME": str(home), "BROWSER": f"{browser} %s"}
    command, pipe = [sys.executable, "-m", "allfold", *words], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ, cwd=folder)
    reader = os.open(seen, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert process.stdout is not None
        address = process.stdout.readline()
        assert select.select([reader], [], [], 60)[0], "the browser was not started"
        line = os.read(reader, 4096).decode().strip()
        file = Path(urlsplit(line).path)
        target = re.search(r'url=([^"]*)"', file.read_text())
        assert target is not None
        modes = (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777)
        return process, address, Opened(home, line, modes, html.unescape(target[1]))
    except BaseException:
        process.kill()
        process.communicate()
        raise
    finally:
        os.close(reader)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    process, line, opened = start_with_browser(tmp_path_factory.mktemp("studio"), "studio", "--edit-seconds", "1")
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", line)
    assert found, line
    yield Studio(process, int(found[1]), found[2], opened)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "The studio has ended." in out and not err


# What it answers -----------------------------------------------------------------------------------------------------


def test_the_page_is_served_with_its_token(studio: Studio) -> None:
    status, page, headers = studio.ask(f"/?token={studio.token}", X_Allfold_Token=None)
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    data = json.loads(re.search(rb'id="allfold-data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["mode"] == "studio" and data["studio"] == {"token": studio.token}
    assert data["entries"][0]["key"] == "all_reduce/ring/8/null/hosts:ranks_per_host=4/1048576"
    assert len(data["topologies"]) > 5
    policies = [headers["Content-Security-Policy"], page.decode()]
    assert all("default-src 'none'" in policy and "connect-src 'self'" in policy for policy in policies)
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_entries_are_those_of_the_library(studio: Studio) -> None:
    status, found = studio.entry(collective="broadcast", algorithm="tree", ranks=6, root=2, topology="none")
    assert status == 200
    assert found == json.loads(json.dumps(entry(af.schedule("broadcast", "tree", 6, root=2), size=4096)))
    assert studio.entry(collective="broadcast", algorithm="tree", ranks=6, root=2, topology="none")[1] == found


def test_a_thousand_ranks_are_computed(studio: Studio) -> None:
    status, found = studio.entry(algorithm="recursive_doubling", ranks=1024, topology="none")
    assert status == 200 and found["proof"]["ok"] and len(found["schedule"]["steps"]) == 10


def test_the_table_is_priced(studio: Studio) -> None:
    status, rows, _ = studio.ask("/api/table?collective=all_reduce&topology=laptop&ranks=3,8")
    assert status == 200 and {row["ranks"] for row in rows} == {3, 8}
    assert all({one["name"] for one in row["algorithms"]} == set(af.algorithms("all_reduce")) for row in rows)
    assert all(row["topology"] == "laptop" and len(row["winners"]) == len(row["sizes"]) for row in rows)
    status, refused, _ = studio.ask("/api/table?collective=all_reduce&topology=/etc/hosts&ranks=3")
    assert status == 400 and "knows no topology" in refused["error"]["message"]


def test_a_schedule_is_exported_as_allfold_export_writes_it(studio: Studio) -> None:
    made = af.schedule("all_gather", "ring", 5)
    status, found, _ = studio.ask("/api/msccl", {"schedule": made.to_json()})
    assert status == 200 and found["text"] == write_msccl(made)
    wrong = made.to_json()
    wrong["steps"] = wrong["steps"][:-1]
    for schedule, expected in (
        (wrong, "instead of slice 1"),
        ({}, "this is not a schedule"),
        (None, "this is not a schedule"),
    ):
        status, found, _ = studio.ask("/api/msccl", {"schedule": schedule})
        assert status == 400 and expected in found["error"]["message"], found
    large = af.schedule("all_reduce", "direct", 144)
    with pytest.raises(af.UsageError, match="41,184 moves; the studio exports up to 40,000"):
        Answers().msccl({"schedule": large.to_json()})


def test_a_run_is_recorded(studio: Studio) -> None:
    status, found, _ = studio.ask("/api/measure", {**CASE, "algorithm": "ring", "ranks": 2})
    assert status == 200
    events = found["recording"]["events"]
    assert {event["rank"] for event in events} == {0, 1} and {event["algorithm"] for event in events} == {"ring"}
    status, found, _ = studio.ask(
        "/api/measure", {**CASE, "algorithm": "tree", "collective": "gather", "ranks": 3, "root": 1}
    )
    assert status == 200 and found["key"].startswith("gather/tree/3/1/") and found["recording"]["events"]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"ranks": 1025}, "the studio draws 1 to 1,024"),
        ({"ranks": 0}, "the studio draws 1 to 1,024"),
        ({"ranks": "many"}, "expected a non-negative whole number"),
        ({"algorithm": "rinng"}, "did you mean 'ring'?"),
        ({"collective": "al_reduce"}, "did you mean 'all_reduce'?"),
        ({"root": 1}, "has no root"),
        ({"size": 2**55}, "expected between 0 and 1 PiB"),
        ({"topology": "/etc/hostname"}, "the studio knows no topology"),
        ({"topology": "here.json"}, "the studio knows no topology"),
        ({"topology": "torus:shape=2000x2000x2000"}, "more than 65,536 places"),
        ({"topology": "torus:sides=2"}, "no parameter 'sides'"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_sentence(
    studio: Studio, case: dict[str, Any], expected: str
) -> None:
    status, found = studio.entry(**{"algorithm": "ring", **case})
    assert status == 400 and expected in found["error"]["message"]


def test_measuring_has_limits(studio: Studio) -> None:
    for case, expected in (({"ranks": 17}, "at most 16"), ({"size": 2**30}, "bytes per rank are measured")):
        status, found, _ = studio.ask("/api/measure", {**CASE, "algorithm": "ring", **case})
        assert status == 400 and expected in found["error"]["message"]


# Whom it refuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Allfold_Token": None},
        {"X_Allfold_Token": ""},
        {"X_Allfold_Token": "guessed"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_strangers_are_refused(studio: Studio, headers: dict[str, str | None]) -> None:
    asked = [
        ("/api/table?collective=all_reduce&ranks=2", None),
        ("/api/edit", {**CASE, "code": RING}),
        ("/api/work?name=ring", None),
        ("/api/learn", {"lesson": "ring", "do": "start"}),
    ]
    for path, body in asked:
        status, found, answered = studio.ask(path, body, **headers)
        assert status == 403 and found["error"]["message"]
        assert not any(name.startswith("Access-Control") for name in answered)


def test_its_own_page_is_answered(studio: Studio) -> None:
    for own in (f"127.0.0.1:{studio.port}", f"localhost:{studio.port}"):
        headers = {"Host": own, "Origin": f"http://{own}", "Sec_Fetch_Site": "same-origin"}
        assert studio.ask("/api/table?collective=all_reduce&ranks=2", **headers)[0] == 200


def test_the_page_needs_the_token(studio: Studio) -> None:
    for path in ("/", "/?token=", "/?token=guessed"):
        assert studio.ask(path)[0] == 403  # for the page itself, the header is not enough
    assert studio.ask(f"/?token={studio.token}", Host="evil.example")[0] == 403


def test_a_link_to_the_page_may_be_followed_but_not_framed(studio: Studio) -> None:
    for destination, status in (("document", 200), ("iframe", 403), ("script", 403), ("empty", 403)):
        headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": destination}
        assert studio.ask(f"/?token={studio.token}", **headers)[0] == status
    path = "/api/table?collective=all_reduce&ranks=2"
    assert studio.ask(path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 403


def check_opened(opened: Opened, address: str) -> None:
    file = Path(urlsplit(opened.line).path)
    assert opened.line == file.as_uri() and file.parent.parent == opened.home
    assert opened.modes == (0o600, 0o700) and opened.target == address


def test_the_token_is_not_in_the_command_line_of_the_browser(studio: Studio) -> None:
    assert studio.opened is not None
    check_opened(studio.opened, f"http://127.0.0.1:{studio.port}/?token={studio.token}")
    # As browsers do it: from a page of another origin, as a document.
    headers = {"X_Allfold_Token": None, "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document"}
    assert studio.ask(f"/?token={studio.token}", **headers)[0] == 200
    assert list(studio.opened.home.iterdir()) == []


def test_the_token_is_not_in_the_command_line_of_the_browser_with_lessons(tmp_path: Path) -> None:
    process, line, opened = start_with_browser(tmp_path, "learn", "studio")
    process.terminate()
    process.communicate(timeout=60)
    check_opened(opened, line.split()[-1])


def test_a_redirect_page_that_no_browser_has_opened_is_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server() as server:
        assert Path(urlsplit(server.redirect_page("")).path).exists()
    assert list(tmp_path.iterdir()) == []


def test_there_are_no_files(studio: Studio) -> None:
    for path in ("/index.html", "/static/page.js", "/../../etc/passwd", "//etc/passwd", "/api/", "/api/nothing"):
        assert studio.ask(path)[0] == 404


def test_it_listens_on_loopback_only(studio: Studio) -> None:
    own = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {fields[1] for fields in own if fields[3] == "0A" and fields[1].endswith(f":{studio.port:04X}")}
    assert listening == {f"0100007F:{studio.port:04X}"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"{}", {"Content_Type": "text/plain"}, 400),
        (b"{}", {"Content_Length": str(2**30)}, 413),
        (b"{}", {"Content_Length": "-1"}, 413),
        (json.dumps({**CASE, "code": 7}).encode(), {}, 400),
        (json.dumps({**CASE, "code": "x", "ranks": "4"}).encode(), {}, 400),
        (json.dumps({**CASE, "code": "x" * 300_000}).encode(), {}, 400),
        (json.dumps({**CASE, "code": "x", "topology": "/etc/hostname"}).encode(), {}, 400),
    ],
)
def test_bad_requests_are_refused(studio: Studio, body: bytes, headers: dict[str, str], status: int) -> None:
    assert studio.ask("/api/edit", body, **headers)[0] == status


# Edited code ---------------------------------------------------------------------------------------------------------


def test_edited_code_is_proved(studio: Studio) -> None:
    status, found = studio.edit(RING)
    assert status == 200 and found["proof"]["ok"] and found["code"] == {"file": "edited.py", "first": 1, "text": RING}
    made, own = Schedule.from_json(found["schedule"]), af.schedule("all_reduce", "ring", 4)
    assert [made.step(step) for step in range(made.steps)] == [own.step(step) for step in range(own.steps)]
    assert "timeline" in found and len(found["lines"]) == 6


def test_a_chunk_sent_to_the_wrong_rank_is_blamed_at_its_cell(studio: Studio) -> None:
    # In the last step of the share-reduce, rank 3 sends chunk 0, which has rank 1's contribution, to rank 1 instead of
    # rank 0.
    wrong = RING.replace("destination=(r + 1) % ranks)", "destination=(r + 1 + (step == 2 and r == 3)) % ranks)", 1)
    assert wrong != RING
    status, found = studio.edit(wrong)
    assert status == 200 and not found["proof"]["ok"] and "timeline" not in found
    proof, line = found["proof"], 1 + next(i for i, text in enumerate(wrong.splitlines()) if "step == 2" in text)
    assert (proof["rank"], proof["chunk"], proof["step"], proof["site"]) == (1, 0, 2, f"edited.py:{line}")
    assert "after step 3, rank 1 chunk 0 lacks rank 0 and has rank 1 twice" in proof["message"]
    assert {"site": f"edited.py:{line}", "file": "edited.py", "line": line} in found["sources"]


def test_the_file_has_the_name_that_the_page_shows(studio: Studio) -> None:
    wrong = RING.replace("range(ranks - 1)", "range(ranks)", 1)
    _, found = studio.edit(wrong, ranks=4, file="ring.py")
    assert found["code"]["file"] == "ring.py" and found["proof"]["site"].startswith("ring.py:")
    for strange in ("../ring.py", "/etc/passwd", "a b.py", 7):
        assert studio.edit(wrong, ranks=4, file=strange)[1]["code"]["file"] == "edited.py"


def test_a_worker_waits_for_the_next_edit() -> None:
    workers = Workers()
    try:
        for _ in range(2):
            workers.prepare()
            waiting = workers._next
            assert waiting is not None
            pid = waiting.result().sandbox.process.pid
            request = {**CASE, "code": "import os\nraise ValueError(os.getpid())", "algorithm": None, "file": None}
            with pytest.raises(CodeError, match=f"ValueError: {pid}"):
                workers.prove(request, Limits())
            assert not Path(f"/proc/{pid}").exists()
    finally:
        workers.close()


def test_a_schedule_without_end_is_stopped_by_its_moves() -> None:
    """With more time than the studio of these tests gives: on a busy machine the moves take longer."""
    workers, code = Workers(), "def f(ranks):\n    while True:\n        yield []\n"
    try:
        with pytest.raises(CodeError, match="has made 2,000 moves and is still in line 3") as caught:
            workers.prove({**CASE, "code": code, "algorithm": None, "file": None}, Limits(moves=2000))
        assert caught.value.line == 3
    finally:
        workers.close()


def test_the_algorithm_that_is_meant_is_taken(studio: Studio) -> None:
    text = inspect.getsource(import_module("allfold.algorithms.recursive"))
    for name in ("recursive_doubling", "halving_doubling"):
        status, found = studio.edit(text, algorithm=name)
        assert status == 200 and found["schedule"]["algorithm"] == name
    # If the page does not say which algorithm, it is the one that was changed.
    changed = text.replace("def recursive_doubling(ranks: int)", "def recursive_doubling(ranks)", 1)
    assert changed != text and studio.edit(changed)[1]["schedule"]["algorithm"] == "recursive_doubling"


def test_plain_generators_will_do(studio: Studio) -> None:
    code = "from allfold import copy\n\ndef hand_out(ranks, root):\n    yield [copy(0, root, 1 - root)]\n"
    status, found = studio.edit(code, collective="broadcast", ranks=2, root=1)
    assert status == 200 and found["proof"]["ok"] and found["schedule"]["algorithm"] == "hand_out"


def test_a_schedule_that_breaks_off_is_drawn_so_far(studio: Studio) -> None:
    code = "from allfold import reduce\n\ndef f(ranks):\n    yield [reduce(0, 1, 0)]\n    yield [reduce(0, ranks, 0)]\n"
    status, found = studio.edit(code)
    assert status == 200 and len(found["schedule"]["steps"]) == 1
    assert found["proof"]["step"] == 1 and found["proof"]["site"] == "edited.py:5"


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        ("def f(:\n    pass", "not Python", 1),
        ("x = 1\nraise KeyError('lost')\n", "KeyError: 'lost'", 2),
        ("import nowhere", "No module named 'nowhere'", 1),
        ("def f(ranks):\n    nothing\n    yield []\n", "raised NameError at step 1", 2),
        ("x = 1", "defines no generator function", None),
        ("import sys\nsys.exit(3)", "SystemExit", 2),
        ("import os\nos._exit(3)", "exit status 3", None),
        ("def f(ranks, more):\n    yield []\n", "cannot be called for all_reduce", None),
        ("def f(ranks):\n    while True: pass\n    yield []\n", "stopped after 1 s of processor time", 2),
        ("import time\ntime.sleep(1000)\n", "the code was stopped after 4 s; does every loop end?", 2),
        ("x = []\nwhile True:\n    x.append(bytes(2**30))\n", "more than 2 GiB of memory", 3),
    ],
)
def test_what_does_not_run_is_said_with_its_line(studio: Studio, code: str, message: str, line: int | None) -> None:
    status, found = studio.edit(code)
    assert status == 400 and message in found["error"]["message"] and found["error"].get("line") == line
    assert studio.entry(algorithm="ring")[0] == 200  # and the studio still works


def test_what_the_code_started_ends_with_it(studio: Studio) -> None:
    code = "import os, time\nchild = os.fork()\nif not child:\n    time.sleep(1000)\nraise RuntimeError(f'child {child}.')\n"
    status, found = studio.edit(code)
    assert status == 400
    if "BlockingIOError" in found["error"]["message"]:
        return  # only root may start processes in there
    child = int(re.search(r"child (\d+)\.", found["error"]["message"])[1])  # type: ignore[index]
    try:
        descriptor = os.pidfd_open(child)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)


def test_the_code_writes_no_files(studio: Studio) -> None:
    _, found = studio.edit("with open('x', 'w') as file:\n    file.write('x')\n")
    assert "File too large" in found["error"]["message"]


# Parts ---------------------------------------------------------------------------------------------------------------


def test_moves_are_counted_as_they_are_made() -> None:
    chosen = find_algorithm("all_reduce", "ring")
    assert af.schedule("all_reduce", within(chosen, 24), 4) == af.schedule("all_reduce", "ring", 4)
    with pytest.raises(
        TooManyMoves, match=r"ring\(ranks=4\) has made 23 moves and is still in line \d+: does its loop end"
    ):
        af.schedule("all_reduce", within(chosen, 23), 4)


def test_answers_are_kept_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(Limits())
    first = answers.entry("all_reduce", "ring", 4, None, "none", 8)
    assert answers.entry("all_reduce", "ring", 4, None, "none", 8) is first
    monkeypatch.setattr("allfold.studio.answers._CACHED", len(first))
    answers.entry("all_reduce", "tree", 4, None, "none", 8)
    assert answers.entry("all_reduce", "ring", 4, None, "none", 8) is not first


def test_topologies_have_room_for_the_ranks() -> None:
    assert topology_of("none", 4) is None
    found = topology_of("fat_tree:ranks_per_host=2,bandwidth=400Gb/s", 12)
    assert found is not None and found.ranks >= 12


# The command ---------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["studio", "--no-browser", "--port", port]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_running_ends_with_the_studio(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, line = start("--edit-seconds", "100")
    port, token = re.findall(r":(\d+)/\?token=([\w-]+)", line)[0]
    with socket.create_server(("127.0.0.1", 0)) as here:
        address = ("127.0.0.1", here.getsockname()[1])
        code = (
            f"import os, socket, time\nout = socket.create_connection({address})\nout.sendall(b'%d\\n' % os.getpid())\n"
        )
        asking = Thread(target=_ask_in_vain, args=(Studio(process, int(port), token), code + "time.sleep(1000)\n"))
        asking.start()
        here.settimeout(60)
        running = int(here.accept()[0].makefile().readline())
    descriptor = os.pidfd_open(running)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "The studio has ended." in out and not err
    assert not [*tmp_path.iterdir()]
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    asking.join()


def _ask_in_vain(studio: Studio, code: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # as a rule the connection ends first
        assert studio.edit(code)[0] == 400


def test_close_ends_the_code_that_runs_and_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = Workers()
    raised: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as here:
        code = f"import socket, time\nout = socket.create_connection({here.getsockname()})\ntime.sleep(1000)\n"
        request = {"code": code, "file": None, "collective": "all_reduce", "ranks": 2, "root": 0}

        def ask() -> None:
            try:
                workers.prove(request, Limits(seconds=100))
            except CodeError as error:
                raised.append(error)

        asking = Thread(target=ask)
        asking.start()
        here.settimeout(60)
        here.accept()[0].close()
    assert [*tmp_path.iterdir()]
    workers.close()
    assert not [*tmp_path.iterdir()]
    asking.join(60)
    assert "the studio is ending" in str(raised[0])
    with pytest.raises(CodeError, match="the studio is ending"):
        workers.prove(request, Limits())


@pytest.mark.parametrize("words", [("--port", "70000"), ("--port", "-1"), ("--edit-seconds", "0")])
def test_bad_usage_is_a_sentence(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", "--no-browser", *words]) == 2
    assert "expected" in capsys.readouterr().err


def test_the_token_is_new_every_time(studio: Studio) -> None:
    process, line = start()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    token = urlsplit(line.split()[-1]).query.removeprefix("token=")
    assert len(token) >= 32 and token != studio.token
