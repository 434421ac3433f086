"""How wide text is in a figure: SVG has no layout, so the width must be known before drawing."""

from __future__ import annotations

# Helvetica's widths in thousandths of the font size; Arial and Liberation Sans have the same.
_WIDTHS = {
    222: "'ijl",
    278: " !,./:;I[\\]ft|·",
    333: "()-`r",
    389: "*",
    500: "Jcksvxyz",
    556: "#$0123456789?L_abdeghnopqu",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "@—→",
}
_WIDTH_OF = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
_ELSE, _BOLD = 600, 1.08


def width_of(text: str, size: float, bold: bool = False) -> float:
    """The width of a line of text, in the units of its font size."""
    thousandths = sum(_WIDTH_OF.get(letter, _ELSE) for letter in text)
    return thousandths / 1000 * size * (_BOLD if bold else 1.0)
