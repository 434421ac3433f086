"""The colours of figures: those of the page on a light ground, so that a thing looks the same everywhere.

A test holds them equal to the page's style sheet.
"""

INK, QUIET, RULE, EMPTY = "#20242a", "#59626e", "#cfccc5", "#e2e0db"
LANE = "#e4e2dd"  # of a rank in space and time
REDUCE, COPY = "#27313d", "#6f7d8d"  # moves have no hue: hues are for ranks and algorithms
WARM = "#a3480a"  # the critical path
ACCENT = "#2c66c4"  # what came just now
GOOD, GOOD_GROUND = "#19734f", "#e6f3ec"  # as promised
WRONG = "#c0352b"
