"""`allfold bench`: how fast collectives are here, compared with other libraries, measured in turns in one run."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _native
from ..bench import HOW_TO_GET
from ..bench.case import case_of_size
from ..bench.crew import AnyCrew, CrewFailed
from ..bench.environment import describe_environment, environment_lines
from ..bench.launched import LaunchedRanks, check_peer
from ..bench.measure import Rules, Subject, measure
from ..bench.peers import WantedPeer, parse_peers, start_ours, start_peer
from ..bench.report import FLOOR, LEGEND, BenchTable, CaseResult, Variant
from ..collectives import COLLECTIVES, find_collective
from ..dtypes import find_dtype
from ..errors import UsageError
from ..launch.environment import launched_place
from ..launch.spawn import check_ranks
from ..ops import check_average, check_supported, find_op
from ..registry import algorithms, find_algorithm
from ..schedules import Schedule, load
from ..wording import format_size, name_ranks, parse_size, size_row
from .terminal import write_json
from .usage.bench import LEAST_ROUNDS


def run(arguments: argparse.Namespace) -> int:
    _native.require_engine("allfold bench")
    place = launched_place()
    launched = place is not None and place.size > 1
    if arguments.what is not None:
        if arguments.collective not in (None, arguments.what):
            raise UsageError(f"{arguments.what} and --collective {arguments.collective}: name only one of them")
        arguments.collective = arguments.what
    found = _schedules(arguments)
    if arguments.ranks is None:
        arguments.ranks = place.size if place is not None and launched else found[0].ranks if found else 2
    elif place is not None and launched and arguments.ranks != place.size:
        raise UsageError(f"-n {arguments.ranks}: a launcher has started {place.size} ranks; leave -n out")
    if arguments.device == "cuda":
        arguments.torch = True
        _need_a_gpu()
    _check_schedules(arguments, found)
    rules = _rules(arguments)
    peers = parse_peers(arguments.peers, arguments.torch, arguments.device)
    tables = _tables(arguments, [peer.name for peer in peers])
    sizes = size_row(
        parse_size(arguments.begin),
        parse_size(arguments.end),
        arguments.factor,
        None if arguments.step is None else parse_size(arguments.step),
    )
    ranks = LaunchedRanks(place, arguments.torch, arguments.device) if place is not None and launched else None
    if ranks is not None and ranks.rank:
        ranks.serve()
        return 0
    output = _Output(arguments.json)
    document: dict[str, Any] = {"complete": False, "settings": _settings(arguments), "tables": []}
    crews: dict[str, AnyCrew] = {}
    status = 0
    try:
        crews["allfold"] = (
            ranks.start("allfold") if ranks else start_ours(arguments.ranks, arguments.torch, device=arguments.device)
        )
        document["missing_peers"] = _start_peers(peers, arguments, crews, output, ranks)
        versions = {name: crew.version for name, crew in crews.items() if name != "allfold" or arguments.torch}
        document["environment"] = describe_environment(arguments.ranks, versions)
        output.lines(environment_lines(document["environment"]))
        if ranks is not None:
            document["hosts"] = ranks.hosts
            output.lines([f"# hosts      {_describe_hosts(ranks.hosts)}"])
        output.lines(LEGEND)
        for table in tables:
            table.drop_peers(document["missing_peers"])
            _fill(table, sizes, crews, rules, output)
        document["complete"] = True
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
        output.lines(["# interrupted: the summary below covers the sizes above"])
        _finish_interrupted(tables, output)
    finally:
        output.clear()
        document["tables"] = [table.to_json() for table in tables if table.points]
        output.document(document)
        for crew in crews.values():
            with contextlib.suppress(KeyboardInterrupt):
                crew.close()
        if ranks is not None:
            ranks.close()
    return status or int(any(table.wrong for table in tables))


def _fill(table: BenchTable, sizes: Sequence[int], crews: dict[str, AnyCrew], rules: Rules, output: _Output) -> None:
    output.lines(table.heading())
    case = table.case
    cases = [case_of_size(case.collective, size, case.ranks, case.dtype, case.op, case.root) for size in sizes]
    subjects = [variant.subject() for variant in table.variants]
    subjects += [Subject(FLOOR, "allfold", {"memcpy": True})] if case.kind.carries_data else []
    subjects += [Subject(peer, peer) for peer in table.peers]
    for one in dict.fromkeys(cases):  # small sizes may round to the same number of elements
        output.subject = f"{one.collective} {format_size(one.size)}: "
        timings = measure(one, subjects, crews, rules, output.progress)
        output.lines(table.add(CaseResult(one, timings)))
    output.lines(table.footer())
    table.is_finished = True


def _finish_interrupted(tables: Sequence[BenchTable], output: _Output) -> None:
    for table in tables:
        if table.points and not table.is_finished:
            output.lines(table.footer())


def _describe_hosts(hosts: Sequence[Sequence[int]]) -> str:
    if len(hosts) == 1:
        return "1, all ranks share memory"
    return f"{len(hosts)} that share no memory: {'; '.join(name_ranks(list(ranks)) for ranks in hosts)}"


def _need_a_gpu() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"--device cuda: torch is not installed; to get it: {HOW_TO_GET['gloo']}")
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "it finds none, or has no access"
        raise UsageError(f"--device cuda: torch {torch.__version__} has no GPU here ({why})")


def _start_peers(
    peers: Sequence[WantedPeer],
    arguments: argparse.Namespace,
    crews: dict[str, AnyCrew],
    output: _Output,
    ranks: LaunchedRanks | None,
) -> dict[str, str]:
    """Start the peers; returns those that could not be started, and why."""
    missing = {}
    for peer in peers:
        output.progress(f"starting {peer.name}")
        try:
            if ranks is not None:
                check_peer(peer)
            crews[peer.name] = (
                start_peer(peer, arguments.ranks, arguments.device) if ranks is None else ranks.start(peer.name)
            )
        except CrewFailed as error:
            missing[peer.name] = str(error)
            output.clear()
            sys.stderr.write(f"allfold bench: continuing without {error}\n")
    return missing


# What is asked for ---------------------------------------------------------------------------------------------------


def _rules(arguments: argparse.Namespace) -> Rules:
    check_ranks(arguments.ranks)
    if not 0 <= arguments.root < arguments.ranks:
        raise UsageError(f"--root {arguments.root}: expected a rank from 0 to {arguments.ranks - 1}")
    if not 0 < arguments.seconds < 3600:
        raise UsageError(f"--seconds {arguments.seconds:g}: expected a time above 0 and below an hour")
    if arguments.iterations is not None and arguments.iterations < 1:
        raise UsageError(f"--iterations {arguments.iterations}: expected at least 1")
    if arguments.torch and arguments.algo != "auto":
        raise UsageError(
            "--algo with --torch: torch.distributed has no way to name an algorithm; leave one of them out"
        )
    if arguments.warmup < 0:
        raise UsageError(f"--warmup {arguments.warmup}: expected at least 0")
    if arguments.rounds < LEAST_ROUNDS:
        raise UsageError(f"--rounds {arguments.rounds}: expected at least {LEAST_ROUNDS} rounds")
    if arguments.fresh and arguments.device == "cuda":
        raise UsageError("--fresh with --device cuda: it writes arrays in main memory; leave one of them out")
    return Rules(
        arguments.seconds, arguments.rounds, arguments.iterations, arguments.warmup, arguments.check, arguments.fresh
    )


def _tables(arguments: argparse.Namespace, peers: Sequence[str]) -> list[BenchTable]:
    dtype, op = find_dtype(arguments.dtype), find_op(arguments.op)
    # All that there are: torch has no prefixes, and an average is not defined for them.
    known = [one.name for one in COLLECTIVES.values() if not (one.has_order and (arguments.torch or op.averages))]
    named = known if arguments.collective == "all" else arguments.collective.split(",")
    memories = (False, True) if arguments.both else (arguments.shared,)
    tables = []
    for name in named:
        kind = find_collective(name.strip())
        if kind.takes_op:
            check_supported(op, dtype)
            check_average(kind, op)
        case = case_of_size(kind.name, 0, arguments.ranks, dtype.name, op.name, arguments.root)
        chosen = _chosen_algorithms(kind.name, arguments.algo)
        # A barrier has no arrays, hence none of another kind.
        kinds = memories if kind.carries_data else (False,)
        variants = [Variant(one, shared, file) for one, file in chosen for shared in kinds]
        tables.append(BenchTable(case, variants, peers, arguments.fresh))
    return tables


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _schedules(arguments: argparse.Namespace) -> list[Schedule]:
    """The schedules that --algo names. They also give the collective and the root, unless options do."""
    found = [load(word) for word in _words(arguments.algo) if word.endswith(".json")]
    if arguments.collective is None:
        arguments.collective = found[0].collective if found else "all_reduce"
    if arguments.root is None:
        arguments.root = next((one.root for one in found if one.root is not None), 0)
    return found


def _check_schedules(arguments: argparse.Namespace, found: Sequence[Schedule]) -> None:
    for one in found:
        root = "" if one.root is None else f" --root {one.root}"
        asked = "" if one.root is None else f" --root {arguments.root}"
        serves = f"--collective {one.collective} -n {one.ranks}{root}"
        if serves != f"--collective {arguments.collective} -n {arguments.ranks}{asked}":
            raise UsageError(f"--algo: the schedule {one.algorithm} works only for {serves}")


def _chosen_algorithms(collective: str, text: str) -> list[tuple[str, str | None]]:
    """Names, and the files of schedules. A schedule with the name of another algorithm goes by its file name."""
    if text == "all":
        return [(name, None) for name in ("auto", *algorithms(collective))]
    words = dict.fromkeys(_words(text))
    names = {word for word in words if not word.endswith(".json")}
    chosen: list[tuple[str, str | None]] = []
    for word in words:
        if word == "auto":
            chosen.append((word, None))
        elif not word.endswith(".json"):
            chosen.append((find_algorithm(collective, word).name, None))
        else:
            name = load(word).algorithm
            name = word if name in names else name
            names.add(name)
            chosen.append((name, str(Path(word).absolute())))
    return chosen


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name not in ("what", "json")}


class _Output:
    """Writes the table, the progress and the JSON."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.subject = ""
        self.shows_progress = sys.stderr.isatty()

    def lines(self, lines: Sequence[str]) -> None:
        self.clear()
        if self.file != "-":
            sys.stdout.writelines(line + "\n" for line in lines)
            sys.stdout.flush()

    def progress(self, text: str) -> None:
        if self.shows_progress:
            sys.stderr.write(f"\r\x1b[K{self.subject}{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self.shows_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def document(self, document: dict[str, Any]) -> None:
        if self.file is not None:
            write_json(document, None if self.file == "-" else self.file)
