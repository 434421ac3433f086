"""The studio: the page with a local server behind it that computes, proves and measures whatever is asked for."""
