"""`allfold run --check`: compares every call on all ranks before it is made; if one differs, all raise an error."""
