"""Pictures of schedules: text, SVG, the interactive page."""

WIDTH = 100  # columns of text, unless a terminal says otherwise
TOPOLOGY = "hosts:ranks_per_host=4"  # of the page, unless another is asked for
