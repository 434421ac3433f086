"""The page as one HTML file that opens from disk and loads nothing.

The document lies in the file as JSON, deflated and in base64: a quarter of its size, and nothing in it (a name, a line of
source code) can end the element it lies in. The studio sends it as it is, with every `<` written `\\u003c`. A content
security policy inside the file allows its own script, by hash, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from ..errors import AllfoldError
from .tokens import TOKENS

_FILE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="allfold">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<meta property="og:title" content="{title}">
<meta property="og:description" content="An algorithm of collective communication, step by step.">
<link rel="icon" href="{icon}">
<style>{style}</style>
</head>
<body>
<div id="allfold"></div>
<noscript>This page draws {title}; it needs JavaScript, and loads nothing from anywhere.</noscript>
<script type="application/json" id="allfold-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page_as_html(document: dict[str, Any]) -> str:
    """The whole page in one file."""
    state = document["state"]
    title = escape(f"{state['collective']} by {state['algorithm']}, {state['ranks']} ranks")
    own_python = document["mode"] == "site"
    if own_python:
        title = "allfold: write a collective, proved as you type"
    data = packed(as_data(document)) if document["mode"] == "file" else as_data(document)
    return page_around(data, title, "'self'" if document["mode"] == "studio" else "'none'", own_python)


def page_around(data: str, title: str, connect: str = "'none'", own_python: bool = False) -> str:
    """The page around a document that is written already."""
    script, style = bundle()
    allowed = policy(script, connect, own_python)
    return _FILE.format(
        policy=allowed, title=title, style=style, data=data, script=script, icon="data:image/svg+xml," + quote(icon())
    )


def icon() -> str:
    """A cell that holds the parts of four ranks."""
    colors = TOKENS["ranks"]["light"][:4]
    parts = "".join(f"<path d='M{4 + 6 * at} 4h6v24h-6z' fill='{color}'/>" for at, color in enumerate(colors))
    return f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>{parts}</svg>"


def packed(text: str) -> str:
    """Deflated, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def as_data(document: Any) -> str:
    """JSON that stays data inside a script element, whatever strings it holds."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(script: str, connect: str = "'none'", own_python: bool = False) -> str:
    """The content security policy: run its own script, show pictures it makes itself, and connect only to `connect`.

    With `own_python`, the page may also load scripts beside it (`file:` is for a page that was opened from disk), and run
    WebAssembly in workers that it makes itself.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'" + (" 'self' file: blob: 'wasm-unsafe-eval'" if own_python else ""),
        **({"worker-src": "blob:"} if own_python else {}),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": connect,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def built(name: str) -> str:
    """The text of a file that `web/` builds."""
    try:
        return (files("allfold.view") / "static" / name).read_text(encoding="utf-8")
    except OSError:
        raise AllfoldError(f"the page is not built: view/static has no {name}; make web builds it") from None


def bundle() -> tuple[str, str]:
    """The script and the style sheet of the page."""
    script, style = built("page.js"), built("page.css")
    # In JavaScript strings these escapes mean the same, and none of them ends the element.
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script.strip(), style.replace("</style", "<\\/style").strip()
