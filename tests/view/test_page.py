"""The page's document, the file that contains it, and what `allfold show` does with both."""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each

import allfold as af
from allfold import Schedule
from allfold.cli import choose, main
from allfold.cli.show.film import frames
from allfold.collectives import COLLECTIVES, NOTHING
from allfold.export.msccl.msccl import write as write_msccl
from allfold.price import find_topology
from allfold.price.cost.plan import plan
from allfold.price.simulate.simulate import simulate
from allfold.registry import REGISTRY, find_algorithm
from allfold.view import html
from allfold.view.page import document, entry, page_of, schedule_up_to_error, topologies, views
from allfold.view.text import draw
from allfold.view.wins import table

EVERY = [(collective, name) for collective in COLLECTIVES for name in af.algorithms(collective)]
ROOT = Path(__file__).parents[2]
TOPOLOGY = "hosts:ranks_per_host=2"

ALWAYS = {
    "key", "schedule", "promise", "starts", "ends", "sources", "code", "also", "lines", "proof", "phases", "counts",
    "bounds",
}  # fmt: skip
PRICED = {"topology", "timeline", "modelled", "links", "pairs", "bottleneck"}

WRONG = """\
from allfold import copy, reduce


def early(ranks):
    for step in range(ranks - 2):
        yield [reduce(chunk=(r - 1 - step) % ranks, source=r, destination=(r + 1) % ranks) for r in range(ranks)]


def outside(ranks):
    yield [reduce(0, 1, 0)]
    yield [reduce(0, ranks, 0)]


def raising(ranks):
    yield [reduce(0, 1, 0)]
    raise LookupError("</script><script>alert(1)</script><!--")
"""

STAR = """\
from allfold import copy, reduce


def star(ranks):
    yield [reduce(0, r, 0) for r in range(1, ranks)]
    yield [copy(0, 0, r) for r in range(1, ranks)]
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def forget_what_files_registered() -> Iterator[None]:
    with REGISTRY.scope():
        yield
    choose._load_module.cache_clear()


@pytest.fixture
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def priced(schedule: Schedule, size: int = 4096) -> dict[str, object]:
    return entry(schedule, find_topology(TOPOLOGY, schedule.ranks), size, topology_name=TOPOLOGY)


# Entries -------------------------------------------------------------------------------------------------------------


@each(("collective", "name"), EVERY)
def test_an_entry_holds_the_schedule_and_its_price(collective: str, name: str) -> None:
    schedule = af.schedule(collective, name, 5)
    bare, full = entry(schedule), priced(schedule)
    cut = set() if collective == "barrier" else {"cut"}  # it has none
    assert set(bare) == ALWAYS and set(full) == ALWAYS | PRICED | cut
    assert Schedule.from_json(json.loads(json.dumps(bare["schedule"]))) == schedule
    width = schedule.chunks + schedule.scratch
    promise = schedule.promise
    for key, layout in (("starts", promise.starts_with), ("ends", promise.ends_with)):
        cells = np.asarray(bare[key])
        assert cells.shape == (5, width)
        assert (cells[:, : schedule.chunks] == layout(5, schedule.root, schedule.chunks)).all()
        assert (cells[:, schedule.chunks :] == NOTHING).all()
    assert bare["proof"]["ok"] and bare["counts"] == schedule.counts.to_json()
    assert full["key"] == f"{collective}/{name}/5/{'null' if schedule.root is None else 0}/{TOPOLOGY}/4096"
    assert bare["key"].endswith("/none/1048576")


def test_the_timeline_is_the_simulation() -> None:
    schedule, topology = af.schedule("all_reduce", "halving_doubling", 6), find_topology(TOPOLOGY, 6)
    found, real = priced(schedule)["timeline"], simulate(schedule, topology, 4096)
    assert found["duration"] == real.duration and found["critical"] == real.critical.tolist()
    for column in ("move", "moves", "segment"):
        assert found[column] == getattr(real, column).tolist()
    for column in ("ready", "start", "sent", "arrived", "landed", "end"):
        assert np.allclose(found[column], getattr(real, column), rtol=0, atol=1e-11)
    assert np.allclose(found["idle"], real.idle(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", af.algorithms("all_reduce"))
def test_links_carry_what_the_pairs_send(name: str) -> None:
    schedule, topology = af.schedule("all_reduce", name, 6), find_topology(TOPOLOGY, 6)
    found = priced(schedule)
    carried = [0.0] * len(found["links"])
    for bytes_of_pair, links in zip(found["pairs"]["bytes"], found["pairs"]["links"], strict=True):
        for link in links:
            carried[link] += bytes_of_pair
    assert np.allclose(carried, [link["bytes"] for link in found["links"]])
    assert np.allclose(carried, simulate(schedule, topology, 4096).link_bytes())
    assert sum(found["pairs"]["bytes"]) == pytest.approx(float(schedule.counts.bytes) * 4096)
    assert re.fullmatch(r"[A-Z].* (is for bytes on|takes) .*\.", found["bottleneck"]["sentence"])
    assert found["bottleneck"]["link"] in {link["name"] for link in found["links"]}


def test_the_sentence_says_of_a_link_what_the_list_says() -> None:
    schedule = af.schedule("all_to_all", "bruck", 6)
    found = priced(schedule, 2**20)
    busiest = next(link for link in found["links"] if link["name"] == found["bottleneck"]["link"])
    share = 100 * busiest["seconds"] / found["timeline"]["duration"]
    assert (
        "the time is for bytes on" in found["bottleneck"]["sentence"]
        and f": {share:.0f} %." in found["bottleneck"]["sentence"]
    )


@pytest.mark.parametrize(
    ("collective", "name", "ranks", "others"),
    [("broadcast", "tree", 2, "1 link"), ("all_reduce", "recursive_doubling", 4, "7 links")],
)
def test_the_sentence_counts_the_links_like_it(collective: str, name: str, ranks: int, others: str) -> None:
    found = entry(af.schedule(collective, name, ranks), find_topology("hosts:ranks_per_host=1", ranks), 2**24)
    assert f" and {others} like it: " in found["bottleneck"]["sentence"]


def test_where_no_bytes_go_no_link_is_the_busiest() -> None:
    sentence = priced(af.schedule("barrier", "dissemination", 5))["bottleneck"]["sentence"]
    assert "waiting" in sentence and "link" not in sentence


def test_the_cut_is_the_one_that_bounds_it() -> None:
    topology = find_topology("dgx1")
    one = entry(af.schedule("all_gather", "ring", 8), topology, 2**30)
    cut, links = one["cut"], {link["name"]: link for link in one["links"]}
    assert cut["ranks"] == [1, 2, 3, 4, 5, 6, 7] and len(cut["links"]) == 4
    assert sum(links[name]["bandwidth"] for name in cut["links"]) == cut["bandwidth"] == 150e9
    assert cut["seconds"] == one["modelled"]["least"] == pytest.approx(7 / 8 * 2**30 / 150e9)
    assert "ranks 1–7 can send no more than 150 GB/s to the rest: 4 links" in cut["sentence"]


def test_what_a_search_wrote_down_has_no_source() -> None:
    found = af.find("all_gather", "dgx1", 2**20, method="greedy", chunks=1, seconds=float("inf"))  # it ends by itself
    page = page_of(found.schedule, "dgx1", 2**20, follow="cut", table_ranks=[])
    assert page["state"]["follow"] == "cut" and page["entries"][0]["code"] is None
    assert len(page["entries"]) > 1  # something to race against


def test_the_source_goes_with_the_steps() -> None:
    found = entry(af.schedule("all_reduce", "ring", 4))
    text = found["code"]["text"].splitlines()
    assert found["code"]["file"] == "ring.py" and found["also"] == []
    assert [text[line - 1].strip().split("(")[0] for line in found["lines"]] == [
        *["yield from ring_reduce_scatter"] * 3,
        *["yield from ring_all_gather"] * 3,
    ]
    assert {source["file"] for source in found["sources"]} == {"ring.py"}
    assert all("yield [" in text[source["line"] - 1] for source in found["sources"])


def test_an_algorithm_made_of_others_shows_its_own_file_first() -> None:
    found = entry(af.schedule("all_reduce", "hierarchical", 8))
    assert found["code"]["file"] == "hierarchical.py"
    assert [file["file"] for file in found["also"]] == ["compose.py"]
    text = found["code"]["text"].splitlines()
    assert all("yield from" in text[line - 1] for line in found["lines"])


def test_a_namesake_does_not_show_the_source_of_another() -> None:
    def ring(ranks: int) -> Iterator[list[af.Move]]:
        yield from find_algorithm("all_reduce", "naive").function(ranks)

    found = entry(af.schedule("all_reduce", ring, 4))
    assert found["code"]["file"] == "naive.py" and "lines" not in found
    elsewhere = Schedule.from_json(
        json.dumps(af.schedule("all_reduce", "ring", 4).to_json()).replace("ring.py", "my.py")
    )
    assert entry(elsewhere)["code"] is None


def test_wrong_schedules_are_blamed_at_their_place() -> None:
    space: dict[str, Callable[..., object]] = {}
    exec(compile(WRONG, "wrong.py", "exec"), space)
    schedule, error = schedule_up_to_error("reduce_scatter", space["early"], 4)
    proof = entry(schedule, error=error)["proof"]
    assert error is None and not proof["ok"]
    assert (proof["rank"], proof["chunk"], proof["step"]) == (0, 0, 1) and "site" not in proof
    assert "rank 0 chunk 0 lacks ranks 1, 2 and 3 (nothing was ever moved there)" in proof["message"]
    schedule, error = schedule_up_to_error("all_reduce", space["outside"], 4)
    proof = entry(schedule, error=error)["proof"]
    assert schedule.steps == 1 and proof["step"] == 1 and proof["site"] == "wrong.py:11"
    schedule, error = schedule_up_to_error("all_reduce", space["raising"], 4)
    assert schedule.steps == 1 and "raised LookupError at step 2" in entry(schedule, error=error)["proof"]["message"]


def test_a_recording_begins_at_its_beginning() -> None:
    event = {"call": 3, "memory": "private", "rank": 0, "waited": 100, "worked": 400}
    events = [{**event, "start": 10**15}, {**event, "start": 10**15 + 200, "rank": 1, "worked": 1000}]
    recording = {"format": "allfold-trace", "version": 1, "events": events}
    page = page_of(af.schedule("all_reduce", "ring", 2), None, 8, others=[], recording=recording)
    assert [one["start"] for one in page["entries"][0]["recording"]["events"]] == [0, 200]
    assert page["state"]["clock"] == "measured"
    (point,) = page["measured"]
    assert point["size"] == 8 and point["seconds"] == pytest.approx(1300e-9)


# The document --------------------------------------------------------------------------------------------------------


def test_the_document_has_what_the_page_expects() -> None:
    page = page_of(af.schedule("all_reduce", "ring", 8), table_ranks=[])
    assert json.loads(json.dumps(page)) == page
    assert list(page) == [
        "format",
        "version",
        "mode",
        "state",
        "catalogue",
        "entries",
        "table",
        "topologies",
        "measured",
    ]
    assert page["state"] == {
        "collective": "all_reduce",
        "algorithm": "ring",
        "ranks": 8,
        "root": None,
        "topology": "hosts:ranks_per_host=4",
        "size": 2**20,
        "step": 0,
        "view": "holds",
        "clock": "modelled",
        "rivals": None,
        "follow": None,
        "values": None,
        "op": "sum",
        "against": None,
    }
    assert page["entries"][0]["schedule"]["algorithm"] == "ring"
    assert {one["schedule"]["algorithm"] for one in page["entries"]} == set(af.algorithms("all_reduce"))
    assert [(row["collective"], row["algorithm"]) for row in page["catalogue"]] == EVERY
    assert all(row["summary"] and row["rooted"] == COLLECTIVES[row["collective"]].rooted for row in page["catalogue"])
    assert [one["name"] for one in page["topologies"]] == ["hosts:ranks_per_host=4"]


def test_a_file_holds_its_schedules_as_allfold_export_writes_them() -> None:
    page = page_of(af.schedule("all_reduce", "ring", 4), table_ranks=[])
    assert len(page["entries"]) > 5
    for one in page["entries"]:
        assert one["msccl"] == {"text": write_msccl(Schedule.from_json(one["schedule"]))}
    (large,) = page_of(af.schedule("all_reduce", "ring", 33), others=[], table_ranks=[])["entries"]
    assert "allfold export ring --collective all_reduce --ranks 33 --to msccl-xml" in large["msccl"]["error"]
    (none,) = page_of(af.schedule("scan", "hillis_steele", 4), others=[], table_ranks=[])["entries"]
    with pytest.raises(af.UsageError) as error:
        write_msccl(af.schedule("scan", "hillis_steele", 4))
    assert none["msccl"] == {"error": str(error.value)}


def test_a_page_of_two_schedules_opens_with_their_comparison(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "two.html"
    status, _, complaint = call("show", "ring", "tree", "--ranks", "4", "--compare", "--html", str(path))
    assert status == 0, complaint
    page = Page(path.read_text(encoding="utf-8")).document()
    assert page["state"]["against"] == "tree"
    assert [one["schedule"]["algorithm"] for one in page["entries"]] == ["ring", "tree"]
    for one in page["entries"]:
        parts = one["timeline"]["parts"]
        assert sum(parts.values()) == pytest.approx(one["timeline"]["duration"], abs=1e-9)


def test_a_comparison_needs_two(call: Call, tmp_path: Path) -> None:
    page = str(tmp_path / "two.html")
    for given, sentence in [
        (["ring", "tree", "--compare"], "add --html FILE"),
        (
            ["ring", "--compare", "--html", page],
            "--compare takes two algorithms, or one with --measure or --recording FILE; got 1",
        ),
        (["ring", "tree", "naive", "--compare", "--html", page], "got 3"),
        (["ring", "ring", "--compare", "--html", page], "are both called ring"),
    ]:
        status, _, complaint = call("show", *given)
        assert status == 2 and sentence in complaint, complaint


def test_the_docs_name_every_view() -> None:
    docs = " ".join((ROOT / "docs/studio.md").read_text().split())
    assert all(view["title"].lower() in docs for view in views())
    assert f"where the page opens: {', '.join(view['name'] for view in views())} |" in docs


def test_the_page_gets_what_its_views_draw() -> None:
    page = page_of(af.schedule("all_reduce", "ring", 4), others=[])
    there = {*page, *page["entries"][0]}
    assert {key for view in views() for key in view["needs"]} <= there
    links = page["entries"][0]["links"]
    assert links[0]["place"] == {"rank": 0, "way": "out"} and links[-1]["place"] == {"host": 0}


def test_a_view_that_is_none_is_refused() -> None:
    with pytest.raises(af.UsageError, match="no view 'upside'; known: holds, time, bytes, race, wins, code"):
        page_of(af.schedule("all_reduce", "ring", 4), None, others=[], view="upside")


def test_a_wrong_schedule_opens_where_it_is_wrong() -> None:
    def twice(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.reduce(0, 1, 0)]
        yield [af.reduce(0, 1, 0)]

    page = page_of(af.schedule("all_reduce", twice, 2), others=[])
    assert page["state"]["step"] == 2 and page["state"]["clock"] == "steps"
    assert "rank 0 chunk 0 has rank 1 twice" in page["entries"][0]["proof"]["message"]


def test_large_schedules_come_alone() -> None:
    assert len(document([entry(af.schedule("all_reduce", "tree", 128))])["entries"]) == 1
    assert len(page_of(af.schedule("all_reduce", "tree", 128), None, table_ranks=[2])["entries"]) == 1


def test_who_wins_is_what_plan_says() -> None:
    (case,) = table("all_reduce", TOPOLOGY, [4])
    assert (case["collective"], case["topology"], case["ranks"]) == ("all_reduce", TOPOLOGY, 4)
    times = {one["name"]: one["times"] for one in case["algorithms"]}
    for place, size in enumerate(case["sizes"]):
        planned = plan("all_reduce", find_topology(TOPOLOGY, 4), 4, size)
        assert case["winners"][place] == planned.winner.algorithm
        for cost in planned.costs:
            assert times[cost.algorithm][place] == pytest.approx(cost.time, rel=1e-8)


def test_the_page_has_one_time_for_an_algorithm() -> None:
    page = page_of(af.schedule("all_reduce", "ring", 8), TOPOLOGY, 2**20, table_ranks=[8])
    (case,) = page["table"]
    times = {one["name"]: one["times"][case["sizes"].index(2**20)] for one in case["algorithms"]}
    for one in page["entries"]:
        assert one["modelled"]["seconds"] == pytest.approx(times[one["schedule"]["algorithm"]], rel=1e-8)


def test_what_was_found_is_compared_with_the_others() -> None:
    found = af.find("all_gather", "dgx1", 2**26, method="greedy", chunks=1, seconds=float("inf"))  # it ends by itself
    cases = page_of(found.schedule, find_topology("dgx1"), 2**26)["table"]
    assert [case["ranks"] for case in cases] == [2, 4, 8]  # as many as it has room for
    row = next(one for one in cases[-1]["algorithms"] if one["name"] == found.schedule.algorithm)
    assert row["times"][cases[-1]["sizes"].index(2**26)] == pytest.approx(found.time, rel=1e-8)


def test_without_a_topology_only_what_if_is_known() -> None:
    (case,) = table("all_gather", None, [4])
    assert case["winners"] == [] and all(one["times"] == [] and one["flat"]["steps"] for one in case["algorithms"])


def test_the_topologies_of_gpu_servers_are_on_offer() -> None:
    names = {one["name"] for one in topologies(8)}
    assert {"dgx1", "dgx2", "dgx_a100", "dgx_h100", "mi250", "ndv2", "mesh", "hypercube", "torus"} <= names


def test_every_topology_on_offer_has_room() -> None:
    for one in topologies(12):
        assert len(one["topology"]["host"]) == 12 and one["summary"]
        json.dumps(one, allow_nan=False)


# The file ------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def document(self) -> Any:
        """What the page draws; files have it deflated."""
        return json.loads(zlib.decompress(base64.b64decode(self.scripts[0])))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data


@pytest.mark.parametrize("trick", ["</script><script>alert(1)//", "<!--<script>", "\u2028\u2029", "&lt;&amp;", '"\\'])
def test_nothing_in_the_data_ends_it(trick: str) -> None:
    text = html.as_data({"name": trick, trick: [trick]})
    assert json.loads(text) == {"name": trick, trick: [trick]}
    assert not re.search("[<>&\u2028\u2029]", text)


def test_the_file_holds_everything_and_loads_nothing() -> None:
    schedule = af.schedule("all_reduce", "ring", 4)
    text = schedule.to_html(others=[])
    page = Page(text)
    assert [attributes.get("id") for tag, attributes in page.elements if tag == "script"] == ["allfold-data", None]
    data = page.document()
    assert Schedule.from_json(data["entries"][0]["schedule"]) == schedule
    assert data == page_of(schedule, others=[])
    script, style = html.bundle()
    assert page.scripts[1].strip() == script and style in text
    assert not any({"src", "href"} & set(attributes) for tag, attributes in page.elements if tag != "link")
    assert [one["href"][:19] for tag, one in page.elements if tag == "link" and one["href"]] == ["data:image/svg+xml,"]
    (policy,) = (one["content"] for _, one in page.elements if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert html.policy(script) == policy
    # Names of XML namespaces are not addresses that anything is loaded from.
    assert not re.findall(r"https?://(?!www\.w3\.org/(?:2000/svg|1999/xhtml|1999/xlink|1998/Math/MathML)\b)", text)
    assert "@import" not in style and "url(" not in style


def test_the_file_says_nothing_about_this_machine() -> None:
    text = af.schedule("all_reduce", "ring", 4).to_html(table_ranks=[])
    page = Page(text)
    text = text.replace(page.scripts[0].strip(), json.dumps(page.document()))
    # The page's own parts and their hashes are the same everywhere; a short host name may be in them by chance.
    for part in (*html.bundle(), *re.findall(r"'sha256-[^']*'", text)):
        text = text.replace(part, "")
    for secret in (str(ROOT), os.path.expanduser("~") + "/", os.uname().nodename):
        assert secret not in text


def test_the_page_is_small() -> None:
    assert sum(len(part.encode()) for part in html.bundle()) < 340_000


def test_a_hostile_name_stays_a_name(call: Call, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    out = tmp_path / "page.html"
    status, _, err = call("show", f"{tmp_path / 'wrong.py'}:raising", "--collective", "all_reduce", "--html", str(out))
    assert status == 1 and "raised LookupError at step 2" in err
    page = Page(out.read_text(encoding="utf-8"))
    assert len(page.scripts) == 2 and "alert(1)" not in page.scripts[1]
    first = page.document()["entries"][0]
    assert "</script><script>alert(1)" in first["proof"]["message"] and first["code"]["file"] == "wrong.py"
    assert str(tmp_path) not in out.read_text(encoding="utf-8")


def test_a_cell_of_a_notebook_carries_the_page_and_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed; outside a kernel nobody knows of other cells. `make test-notebook` runs a notebook."""
    schedule = af.schedule("all_reduce", "ring", 2)
    text = schedule._repr_html_()
    assert text is not None
    assert [tag for tag, _ in Page(text).elements] == ["div", "script"] and "allow-same-origin" not in text
    page, data = (zlib.decompress(base64.b64decode(one)).decode() for one in re.findall(r'unpacked\("(.+?)"\)', text))
    assert json.loads(data) == page_of(schedule)
    title = "all_reduce by ring, 2 ranks"
    whole = page.replace("@allfold-data@", html.packed(data)).replace("allfold</title>", f"{title}</title>")
    whole = whole.replace("draws allfold;", f"draws {title};")
    whole = whole.replace('og:title" content="allfold"', f'og:title" content="{title}"')
    assert whole == schedule.to_html()
    assert af.schedule("all_reduce", "naive", 150)._repr_html_() is None
    monkeypatch.setattr(html, "files", lambda _: Path("/nowhere"))
    assert schedule._repr_html_() is None
    with pytest.raises(af.AllfoldError, match="make web builds it"):
        schedule.to_html()


# The command ---------------------------------------------------------------------------------------------------------


def test_show_writes_the_page(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    words = ("ring", "tree", "--ranks", "3", "--topology", "one_host:ranks=4,bandwidth=400Gb/s", "--size", "64K")
    assert call("show", *words, "--html", str(out))[0] == 0
    data = Page(out.read_text(encoding="utf-8")).document()
    assert [one["key"].split("/", 4)[1:] for one in data["entries"]] == [
        ["ring", "3", "null", "one_host:ranks=4,bandwidth=400Gb/s/65536"],
        ["tree", "3", "null", "one_host:ranks=4,bandwidth=400Gb/s/65536"],
    ]
    assert data["state"]["topology"] == "one_host:ranks=4,bandwidth=400Gb/s" and data["state"]["rivals"] == ["tree"]


def test_show_puts_a_recording_in(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert call("show", "tree", "--ranks", "2", "--size", "4K", "--measure", "--html", str(out))[0] == 0
    first = Page(out.read_text(encoding="utf-8")).document()["entries"][0]
    events = first["recording"]["events"]
    assert {event["rank"] for event in events} == {0, 1} and min(event["start"] for event in events) == 0
    assert {event["algorithm"] for event in events} == {"tree"} and len({event["call"] for event in events}) == 1


def _traced(communicator: Any, path: str) -> None:
    array = np.ones(1024, np.float32)
    with communicator.trace() as trace:
        for algorithm in ("tree", "ring", "ring", "ring"):
            communicator.all_reduce(array, algorithm=algorithm)
    if communicator.rank == 0:
        trace.save(path)
        trace.save(f"{path}.chrome", chrome=True)


@pytest.fixture(scope="module")
def saved_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.json"
    af.spawn(_traced, ranks=3, args=(str(path),))
    return path


def test_show_compares_a_simulation_with_a_saved_trace(call: Call, saved_trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    words = ("--ranks", "3", "--size", "4K", "--recording", str(saved_trace), "--compare", "--html", str(out))
    status, _, complaint = call("show", "ring", *words)
    assert status == 0, complaint
    page = Page(out.read_text(encoding="utf-8")).document()
    assert (page["state"]["against"], page["state"]["clock"]) == ("measured", "measured")
    events = page["entries"][0]["recording"]["events"]
    assert {event["rank"] for event in events} == {0, 1, 2} and min(event["start"] for event in events) == 0
    assert {event["algorithm"] for event in events} == {"ring"} and len({event["call"] for event in events}) == 1
    # Of the three calls, the fastest.
    recorded = [one for one in json.loads(saved_trace.read_text())["events"] if one["algorithm"] == "ring"]

    def took(of: list[dict[str, Any]]) -> int:
        ends = [one["start"] + one["waited"] + one["worked"] for one in of]
        return int(max(ends) - min(one["start"] for one in of))

    calls = {
        number: took([one for one in recorded if one["call"] == number]) for number in {one["call"] for one in recorded}
    }
    assert len(calls) == 3 and took(events) == min(calls.values())


def test_a_recording_must_fit(call: Call, saved_trace: Path, tmp_path: Path) -> None:
    text = saved_trace.read_text()
    strange = json.loads(text)
    for event in strange["events"]:
        event["peers"] = [7 for _ in event["peers"]]
    (tmp_path / "strange.json").write_text(json.dumps(strange))
    (tmp_path / "broken.json").write_text(text.replace('"rank": 0', '"rank": "none"'))
    trace = str(saved_trace)
    for algorithm, ranks, size, path, sentence in [
        (
            "naive",
            "3",
            "4K",
            trace,
            "no call of all_reduce by naive with 3 ranks; it has all_reduce by ring with 3 ranks",
        ),
        ("ring", "4", "4K", trace, "no call of all_reduce by ring with 4 ranks"),
        ("ring", "3", "8K", trace, "and --size 8192 is simulated; they must agree"),
        ("ring", "3", "4K", f"{trace}.chrome", "is not a trace as trace.save(…) writes it"),
        ("ring", "3", "4K", str(tmp_path / "strange.json"), "reads from [7]; there are 3 ranks"),
        ("ring", "3", "4K", str(tmp_path / "broken.json"), "rank is 'none'; expected a whole number"),
        ("ring", "3", "4K", str(tmp_path / "missing.json"), "cannot be read: No such file"),
    ]:
        page = str(tmp_path / "page.html")
        words = ("--ranks", ranks, "--size", size, "--recording", path, "--html", page)
        status, _, complaint = call("show", algorithm, *words)
        assert status == 2 and sentence in complaint, complaint


def test_a_function_of_a_file_is_measured_too(call: Call, tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(STAR)
    out = tmp_path / "page.html"
    words = ("--collective", "all_reduce", "--ranks", "3", "--size", "4K", "--measure", "--html", str(out))
    assert call("show", f"{tmp_path / 'star.py'}:star", *words)[0] == 0
    first = Page(out.read_text(encoding="utf-8")).document()["entries"][0]
    assert {event["rank"] for event in first["recording"]["events"]} == {0, 1, 2}
    assert first["code"]["text"] == STAR and first["lines"] == [5, 6]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--html", "/nowhere/page.html"], "cannot be written"),
        (["--html", "x.html", "--topology", "nowhere"], "unknown topology"),
        (["--html", "x.html", "--size", "many"], "expected a number of bytes"),
        (["--measure"], "--measure puts a recording into the page; add --html"),
        (["--recording", "run.json"], "--recording puts a recording into the page; add --html"),
        (["--recording", "run.json", "--measure", "--html", "x.html"], "leave out either"),
        (["tree", "--recording", "run.json", "--compare", "--html", "x.html"], "got 2 with --recording"),
        (["--columns", "3"], "add --svg"),
        (["--animate", "--speed", "0"], "--speed 0"),
        (["tree", "--json"], "name one algorithm"),
    ],
)
def test_bad_usage_is_a_sentence(
    words: list[str], expected: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call("show", "ring", *words)
    assert status == 2 and expected in err and not out


def test_a_film_has_a_frame_a_step(call: Call) -> None:
    schedule = af.schedule("all_reduce", "ring", 3)
    shown = [[line.plain for line in frame] for frame in frames(draw(schedule, 100))]
    assert len(shown) == schedule.steps + 1
    assert {tuple(frame[:3]) for frame in shown} == {tuple(shown[0][:3])} and shown[0][3] == "at the start"
    assert [frame[3].split("  ")[0] for frame in shown[1:]] == [f"step {step}" for step in range(1, 5)]
    assert shown[-1][-1].count("✓") == 3
    plain, animated = (call("show", "ring", "--ranks", "3", *more)[1] for more in ((), ("--animate",)))
    assert plain == animated  # this is not a terminal


def test_a_page_does_not_begin_where_there_is_no_step() -> None:
    ring = af.schedule("all_reduce", "ring", 8)
    assert page_of(ring, others=[], table_ranks=[], step=14)["state"]["step"] == 14
    for step in (-1, 15):
        with pytest.raises(af.UsageError, match=f"cannot begin with {step} steps done; there are 14"):
            ring.to_html(others=[], table_ranks=[], step=step)


def test_a_page_shows_the_numbers_of_the_command_line(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "ring.html"
    assert call("show", "ring", "--values", "1 2.5 3; 4 5 6; 7 8 1e300", "--op", "mean", "--html", str(page))[0] == 0
    state = Page(page.read_text(encoding="utf-8")).document()["state"]
    assert (state["ranks"], state["values"], state["op"]) == (3, "1 2.5 3; 4 5 6; 7 8 1.0000000000000001e+300", "avg")
