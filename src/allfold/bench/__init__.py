"""How fast collectives are: ours, and those of other libraries, measured in turns within one run."""
