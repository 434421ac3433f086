"""The page in the cells of a notebook. The page itself, 200 kB, comes once; other cells carry their document only.

All outputs of a notebook lie in one HTML document, also when it is saved, opened again or exported. So the output of the
first cell leaves the page there, by its hash, and each output takes it from there. Where that output was removed, the
others say what to do: run the cell again. A cell that is run again carries the page itself, so that this always helps.

Page and documents are compressed. Each is shown in a frame of its own, so that its styles and its script do not mix with
those of the notebook.
"""

from __future__ import annotations

import hashlib
import sys
from html import escape
from typing import Any

from .html import as_data, packed, page_around

HEIGHT = 760  # pixels
_DATA = "@allfold-data@"
# Waits for the page: where outputs are drawn as one scrolls, that of the first cell may come later.
_CELL = """\
<div class="allfold-{name}" data-page="{page}">{title}: an interactive picture. If it does not appear, run this cell again \
(in a notebook from somebody else, trust it first).</div>
<script>(() => {{
const pages = window.allfoldPages ??= {{}};
const unpacked = (text) => new Response(new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]).stream()
  .pipeThrough(new DecompressionStream("deflate"))).text();
{carried}const data = unpacked("{data}");
const show = async () => {{
  const places = document.querySelectorAll(".allfold-{name}:not([data-shown])");
  if (!places.length || !pages["{page}"]) return places.length > 0 && setTimeout(show, 250);
  for (const place of places) place.dataset.shown = "";
  const page = await pages["{page}"], text = await data;
  for (const place of places) {{
    const frame = document.createElement("iframe");
    frame.title = "allfold";
    frame.sandbox = "allow-scripts allow-downloads";
    frame.style = "width:100%;height:{height}px;border:0";
    frame.srcdoc = page.replace("{marker}", () => text);
    place.replaceChildren(frame);
  }}
}};
show();
}})()</script>
"""

_runs: dict[str, int] = {}
"""The cells that have shown something, and the execution in which each did so last."""


def in_a_notebook(document: dict[str, Any], height: int = HEIGHT) -> str:
    """The output of the running cell for a document; with the page, if no other cell has left it in the notebook."""
    page, data = page_around(_DATA, "allfold"), as_data(document)
    name = hashlib.sha256(page.encode()).hexdigest()[:16]
    state = document["state"]
    return _CELL.format(
        name=hashlib.sha256(data.encode()).hexdigest()[:16],
        title=escape(f"{state['collective']} by {state['algorithm']}, {state['ranks']} ranks"),
        page=name,
        carried=f'pages["{name}"] ??= unpacked("{packed(page)}");\n' if _must_carry_the_page() else "",
        data=packed(data),
        marker=_DATA,
        height=height,
    )


def _must_carry_the_page() -> bool:
    """In the first cell of a session that shows something, and in one that is run again: its output is replaced.

    Always where outputs do not lie in one HTML document (Colab), or where nobody knows which cell is running.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel") or "google.colab" in sys.modules:
        return True
    request = shell.get_parent() or {}
    cell = (request.get("metadata") or {}).get("cellId") or (request.get("content") or {}).get("code", "")
    before, _runs[cell] = _runs.get(cell), shell.execution_count
    return len(_runs) == 1 if before is None else before != shell.execution_count
