"""The studio: the page with a local server that computes, proves and measures on request."""
