"""Executes examples/notebook.ipynb, checks what its cells show, and exports it: what `web/browser/notebook.spec.ts` opens.

    python tests/view/notebooks.py FOLDER     with the Python of .venv-notebook, which has nbclient and ipykernel

Writes exported.html, the whole notebook, and lonely.html, in which the output of the first cell was cleared.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

ROOT = Path(__file__).parents[2]
PAGE = 90_000  # bytes: what the page takes, and a document for some ranks does not


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell shows: HTML, or its text."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        parts.append(data.get("text/html") or data.get("text/plain") or output.get("text") or output.get("evalue"))
    return "".join(parts)


def check(holds: bool, sentence: str) -> None:
    if not holds:
        sys.exit(sentence)


def execute(folder: Path) -> None:
    notebook = nbformat.read(ROOT / "examples/notebook.ipynb", 4)
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    places = {cell.id: at for at, cell in enumerate(notebook.cells)}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel():

        def run(name: str, source: str | None = None) -> str:
            cell = cells[name] if source is None else nbformat.v4.new_code_cell(source)
            return shown(client.execute_cell(cell, places[name]))

        found = {name: run(name) for name in cells}
        check(found["spawn"] == "[100.0, 100.0, 100.0, 100.0]", f"spawn from a cell: {found['spawn']}")
        check("star(ranks=4) is right" in found["star"], found["star"])
        check({*found["say"].splitlines()} == {"[0] rank 0 of 2", "[1] rank 1 of 2"}, found["say"])
        check(found["fails"].startswith("rank 1 failed: ZeroDivisionError"), found["fails"])
        check(len(found["ring"]) > PAGE > len(found["tree"]), "the first cell carries the page, and it alone")
        saved = copy.deepcopy(notebook)

        again = run("tree")
        check(len(again) > PAGE, "a cell that is run again carries the page")
        two = run(
            "ring", 'from IPython.display import display\nfor n in 2, 3: display(af.schedule("all_reduce", "ring", n))'
        )
        check(len(two) < 2 * PAGE and "all_reduce by ring, 3 ranks" in two, "two pictures in one cell")
        # Without prefix_output, what ranks print comes with the cell too: ipykernel watches the descriptors.
        plain = run("say", "af.spawn(greet, ranks=2);")
        check({*plain.splitlines()} == {"rank 0 of 2", "rank 1 of 2"}, f"print from a rank: {plain!r}")
        client.allow_errors = True
        locked = run("say", "import threading\nlock = threading.Lock()\naf.spawn(lambda comm: lock, ranks=2)")
        check("spawn" in locked and "cannot pickle" in locked, f"what cannot go to another process: {locked!r}")
        stop = "import os, signal, threading, time\nthreading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        stopped = run("say", stop + "af.spawn(lambda comm: time.sleep(100), ranks=2)")
        check(run("say", "print('on', flush=True)") == "on\n" and not stopped, f"an interrupted kernel: {stopped!r}")

    for name, one in (("exported", saved), ("lonely", copy.deepcopy(saved))):
        if name == "lonely":
            next(cell for cell in one.cells if cell.id == "ring").outputs = []
        (folder / f"{name}.html").write_text(HTMLExporter().from_notebook_node(one)[0], encoding="utf-8")
    print(f"first picture {len(found['ring'])} bytes, second {len(found['tree'])}")


if __name__ == "__main__":
    execute(Path(sys.argv[1]))
