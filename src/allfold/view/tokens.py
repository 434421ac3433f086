"""Colours and sizes that the page, the site, figures and the terminal have in common: `tokens.json`, which `web/` reads too."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

TOKENS: dict[str, Any] = json.loads((files("allfold.view") / "tokens.json").read_text(encoding="utf-8"))

TERMINAL: dict[str, str] = TOKENS["terminal"]
"""Styles of `rich` by what they say: names of colours, which every terminal shows legibly on its own background."""
