"""`allfold run --check`: ranks compare every call before they make it. An error on all of them says who differs, and where."""
