"""The page as one HTML file that opens from disk and loads nothing.

The document lies in the file as JSON in which every `<` is written `\\u003c`, so that nothing in it (a name, a line of
source code) can end the element it lies in. A content security policy inside the file allows its own script, by hash,
and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from ..errors import AllfoldError

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
    return page_around(as_data(document), title, "'self'" if document["mode"] == "studio" else "'none'")


def page_around(data: str, title: str, connect: str = "'none'") -> str:
    """The page around a document that is written already."""
    script, style = bundle()
    return _FILE.format(policy=policy(script, connect), title=title, style=style, data=data, script=script)


def as_data(document: Any) -> str:
    """JSON that stays data inside a script element, whatever strings it holds."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(script: str, connect: str = "'none'") -> str:
    """The content security policy: run its own script, show pictures it makes itself, and connect only to `connect`."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
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
