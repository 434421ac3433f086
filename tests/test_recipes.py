"""The recipes of CONTRIBUTING.md: each is carried out in a copy of the package, without the engine, and what it adds works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "allfold"
FROM_THE_COPY = """
import sys
# An editable installation would find the original first.
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in type(one).__module__]
sys.path.insert(0, sys.argv.pop(1))
from allfold.cli import main

def command(*words):
    status = main(words)
    assert status == 0, (words, status)

"""


class Package:
    """A copy of the package in `folder`, to be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The times of files are kept, so that what is compiled stays valid.
        shutil.copytree(SOURCE, folder / "allfold", ignore=shutil.ignore_patterns("_engine*", "*.so", "torch"))

    def write(self, file: str, text: str) -> None:
        path = self.folder / "allfold" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip())

    def add_line(self, file: str, after: str, line: str) -> None:
        """One line more in a table, after the line that begins one of its entries."""
        path = self.folder / "allfold" / file
        text = path.read_text()
        assert text.count(after) == 1, f"{file} has no place for {line!r}"
        path.write_text(text.replace(after, f"{after}{line}\n"))

    def run(self, code: str) -> str:
        words = [sys.executable, "-c", FROM_THE_COPY + dedent(code), str(self.folder)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ALLFOLD")}
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_an_algorithm(package: Package) -> None:
    package.write(
        "algorithms/recipe.py",
        '''
        """Chunks go around, backwards."""

        from __future__ import annotations

        from collections.abc import Iterator
        from fractions import Fraction

        import numpy as np

        from ..patterns import Pattern, copies
        from ..registry import Phase, algorithm
        from ..schedules import Move, copy


        def turns(ranks: int) -> Iterator[Pattern]:
            everyone = np.arange(ranks)
            if ranks > 1:
                yield copies(everyone, (everyone - 1) % ranks, 1 / ranks, ranks - 1)


        @algorithm(
            "all_gather",
            steps=lambda p: p - 1,
            port=lambda p: Fraction(p - 1, p),
            patterns=turns,
            phases=[Phase("hand on", "Every rank hands on what came last.", lambda p: p - 1)],
        )
        def recipe(ranks: int) -> Iterator[list[Move]]:
            """Every rank hands the chunk that came last to the rank before it. P − 1 steps."""
            for step in range(ranks - 1):
                yield [copy((rank + step) % ranks, rank, (rank - 1) % ranks) for rank in range(ranks)]
        ''',
    )
    package.add_line("algorithms/table.py", '    "neighbor",\n', '    "recipe",')
    said = package.run(
        """
        import allfold as af
        from allfold.price import find_topology, plan
        from allfold.registry import find_algorithm

        command("verify", "recipe", "--collective", "all_gather", "--ranks", "1-5")
        # Priced by its patterns, without a schedule.
        network = find_topology("hosts:ranks_per_host=1", 4096)
        assert plan("all_gather", network, 4096, 2**20, ["recipe"]).winner.steps == 4095
        command("show", "recipe", "--ranks", "4", "--svg", "recipe.svg")
        declared = find_algorithm("all_gather", "recipe")
        for ranks in (2, 5):
            counts = af.schedule("all_gather", "recipe", ranks).counts
            assert (counts.steps, counts.busiest_port_bytes) == (declared.steps(ranks), declared.port(ranks))
        """
    )
    assert "recipe" in said and "<svg" in (package.folder / "recipe.svg").read_text()


def test_a_topology(package: Package) -> None:
    machines = package.folder / "allfold" / "price" / "topology" / "machines.py"
    added = '''

    @named
    def recipe(ranks: int, bandwidth: float = 1e9) -> Topology:
        """Hosts of one rank under a switch."""
        return hosts(ranks, 1, bandwidth=bandwidth)
    '''
    machines.write_text(machines.read_text() + dedent(added))
    package.run(
        """
        import numpy as np
        from allfold.price import Topology, find_topology, plan
        from allfold.price.topology.pairs import every_pair

        made = find_topology("recipe:ranks=4,bandwidth=2e9")
        assert (made.routes(*every_pair(4)).lengths > 0).all() and 2e9 in made.bandwidth
        assert Topology.from_json(made.to_json()).to_json() == made.to_json()
        assert plan("all_reduce", find_topology("recipe", 4), 4, 2**20).winner.time > 0
        """
    )


def test_a_lesson(package: Package) -> None:
    folder = "learn/lessons/99_recipe"
    package.write(
        f"{folder}/lesson.toml",
        """
        title = "A recipe"
        minutes = 5
        about = "One rank tells another."

        [words]
        recipe = "what is followed here"

        [explore]
        collective = "broadcast"
        algorithms = ["driver", "tree"]
        ranks = 4
        size = "64 KiB"
        say = "Drag the ranks."

        [[prediction]]
        name = "messages"
        question = "How many messages does a broadcast between 4 ranks need?"
        answer = 'counts("broadcast", "driver", 4).messages'
        because = "One to each of the others."

        [[exercise]]
        function = "tell"
        task = "Rank 0 tells everybody."
        collective = "broadcast"
        goals = [{ measure = "steps", most = "1" }]
        hints = [{ say = "One list, with a move to each of the other ranks." }]
        """,
    )
    package.write(
        f"{folder}/text.md",
        "# A recipe\n\nA broadcast takes {{ counts('broadcast', 'driver', 4).messages }} messages.\n",
    )
    package.write(f"{folder}/after.md", "That was it.\n")
    beginning = "from allfold import copy\n\n\ndef tell(ranks, root):\n    "
    package.write(f"{folder}/start.py", f"{beginning}yield []\n")
    package.write(
        f"{folder}/solution.py",
        f"{beginning}yield [copy(chunk=0, source=root, destination=r) for r in range(ranks) if r != root]\n",
    )
    said = package.run(
        """
        from pathlib import Path
        from allfold.learn import checks
        from allfold.learn.lesson import lessons
        from allfold.learn.worker import judge_file

        checks.UP_TO, checks._TELLING = 4, (3, 4, 2, 1)

        lesson = lessons()[-1]
        for file, passes in (("start.py", False), ("solution.py", True)):
            Path(file).write_text("PREDICTIONS = {'messages': 3}\\n" + lesson.read(file))
            found = judge_file(lesson, Path(file))
            assert found["error"] is None and [one["passed"] for one in found["exercises"]] == [passes], found
            assert [one["right"] for one in found["predictions"]] == [True], found
        from allfold.studio.lessons import content

        assert content("recipe")["explore"]["algorithms"] == ["driver", "tree"]
        command("learn")
        """
    )
    assert "One rank tells another." in said


def test_a_command(package: Package) -> None:
    package.write(
        "cli/a_recipe.py",
        '''
        """`allfold a-recipe`."""

        from __future__ import annotations

        import argparse


        def run(arguments: argparse.Namespace) -> int:
            print("followed" * arguments.times)
            return 0
        ''',
    )
    package.write(
        "cli/usage/a_recipe.py",
        '''
        """The options of `allfold a-recipe`, and its help."""

        from __future__ import annotations

        import argparse

        SUMMARY = "Follows a recipe."


        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--times", type=int, default=1, help="how often")
        ''',
    )
    package.add_line("cli/__init__.py", "COMMANDS = {\n", '    "a-recipe": "follow a recipe",')
    said = package.run(
        """
        command("a-recipe", "--times", "2")
        command("a-recipe", "--help")
        command("--help")
        command("completion", "bash")
        """
    )
    assert "followedfollowed" in said and "Follows a recipe." in said and "follow a recipe" in said


def test_an_export(package: Package) -> None:
    package.write(
        "export/recipe.py",
        '''
        """A line per move."""

        from __future__ import annotations

        from ..schedules import Schedule
        from ..proof import verify


        def write(schedule: Schedule) -> str:
            verify(schedule, programs=False)
            return "".join(f"{move.source} {move.destination}\\n" for step in schedule for move in step)
        ''',
    )
    package.add_line("export/__init__.py", "FORMATS = {\n", '    "recipe": "a line per move",')
    package.add_line("cli/export.py", "WRITERS = {", '"recipe": "recipe", ')
    said = package.run('command("export", "ring", "--ranks", "3", "--to", "recipe")')
    assert said.startswith("0 1\n1 2\n2 0\n") and len(said.splitlines()) == 12


def test_an_engine(package: Package) -> None:
    package.write("engines/recipe/__init__.py", '"""An engine by the recipe."""\n')
    package.write(
        "engines/recipe/engine.py",
        '''
        """The reference engine under another name."""

        from __future__ import annotations

        from ..engine import Engine
        from ..engine import Processes
        from ..reference.engine import Reference
        from ..reference.meeting import Meeting


        def in_processes(ranks: Processes, timeout: float) -> Engine:
            assert ranks.size == 1
            return in_threads(1, timeout)[0]


        def in_threads(ranks: int, timeout: float) -> list[Engine]:
            meeting = Meeting(ranks, "the world")
            return [Recipe(rank, meeting, timeout) for rank in range(ranks)]


        class Recipe(Reference):
            """One rank's end of a group."""
        ''',
    )
    package.add_line("engines/table.py", "ENGINES = {\n", '    "recipe": ".recipe.engine",')
    package.run(
        """
        import numpy as np
        import allfold as af
        from allfold.launch.threads import run_threads

        def work(comm):
            assert type(comm.engine).__name__ == "Recipe"
            x = np.arange(5.0) + comm.rank
            comm.all_reduce(x)
            return x.tolist()

        assert run_threads(work, 3, timeout=60, engine="recipe") == [[3.0, 6.0, 9.0, 12.0, 15.0]] * 3
        assert work(af.init(engine="recipe")) == [0.0, 1.0, 2.0, 3.0, 4.0]
        """
    )


def test_a_collective(package: Package) -> None:
    """A scan from the last rank down: rank r ends with what ranks r to P−1 make together."""
    package.add_line(
        "collectives.py",
        "    return range(max(rank, 1))\n",
        '\n\ndef from_here(rank: int, ranks: int) -> range:\n    """The contributors of a suffix."""\n'
        "    return range(rank, ranks)\n",
    )
    package.add_line(
        "collectives.py",
        "    for collective in (\n",
        '        Collective("suffix", "buffers of ranks r to P−1 combined on rank r", WHOLE, WHOLE, _buffer_each, '
        "reduces=True, contributors=from_here),",
    )
    package.write(
        "algorithms/suffix.py",
        '''
        """Suffix reductions."""

        from __future__ import annotations

        from collections.abc import Iterator

        from ..registry import algorithm
        from ..schedules import Move, reduce


        @algorithm("suffix", "direct", steps=lambda p: 1, port=lambda p: p - 1)
        def direct(ranks: int) -> Iterator[list[Move]]:
            """Every rank sends its buffer to all ranks below it. 1 step, (P−1)·S through the busiest port."""
            if ranks > 1:
                yield [reduce(0, source, rank) for rank in range(ranks) for source in range(rank + 1, ranks)]


        @algorithm("suffix", "chain", steps=lambda p: p - 1, port=lambda p: min(1, p - 1))
        def chain(ranks: int) -> Iterator[list[Move]]:
            """From the last rank down. P − 1 steps, S through the busiest port."""
            for rank in reversed(range(1, ranks)):
                yield [reduce(0, rank, rank - 1)]
        ''',
    )
    package.add_line("algorithms/table.py", '    "neighbor",\n', '    "suffix",')
    package.add_line("communicator/communicator.py", "_NAMES = tuple(COLLECTIVES)\n(\n", "    _SUFFIX,")
    package.add_line(
        "communicator/communicator.py",
        "        self._leave(compares=kind is None)\n",
        '\n    def suffix(self, array: Array, op: str | Op = "sum", algorithm: Algorithm = None) -> Any:\n'
        '        """Combine the arrays of ranks r to P−1 on rank r."""\n'
        "        return self._call(_SUFFIX, None, array, op, 0, algorithm, False, None, None)\n",
    )
    said = package.run(
        """
        import numpy as np
        import allfold as af
        from allfold.launch.threads import run_threads
        from allfold.price import find_topology, plan

        for name in ("direct", "chain"):
            command("verify", name, "--collective", "suffix", "--ranks", "1-7")
            command("show", name, "--collective", "suffix", "--ranks", "4", "--svg", name + ".svg")
        assert plan("suffix", find_topology("hosts:ranks_per_host=1", 6), 6, 2**20).winner.time > 0
        command("list", "suffix")

        def work(comm):
            own = np.arange(5.0) * 3**comm.rank
            found = [own.copy() for _ in range(2)]
            comm.suffix(found[0])
            comm.suffix(found[1], algorithm="chain")
            return found

        for ranks in (1, 2, 5):
            for rank, found in enumerate(run_threads(work, ranks, timeout=60, engine="reference")):
                right = sum(np.arange(5.0) * 3**other for other in range(rank, ranks))
                assert all((one == right).all() for one in found), (ranks, rank, found)
        """
    )
    assert "suffix" in said and "<svg" in (package.folder / "chain.svg").read_text()
