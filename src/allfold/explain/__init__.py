"""Explains why a distributed run hangs: takes records of its calls, gives one sentence and its details.

`calls.py` is the model: calls of ranks in groups. Readers fill it (`read.py` chooses one per file), and
`findings.findings(run)` works on nothing else. For records of another kind, write a reader that makes `RunFacts`.
"""
