"""Why a distributed run hangs: records of calls in, one sentence and its details out.

`calls.py` is the model: calls of ranks in groups. Readers fill it (`read.py` chooses one per file), and
`findings.findings(run)` works on nothing else. Whoever has records of another kind makes a `Run` of them.
"""
