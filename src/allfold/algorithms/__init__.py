"""Every algorithm that ships with allfold, one family per file; `table.py` lists them."""
