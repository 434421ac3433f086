"""Programs with an error, on allfold and on Open MPI: what each says, and after how many seconds the run has ended.

    python tests/mpi4py/mpi_errors.py            the table of docs/howto-mpi.md, from runs of both
    python tests/mpi4py/mpi_errors.py truncated  one program

Open MPI is run through mpi4py, where `make .venv/.mpi` has installed them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 40  # seconds until a run is ended from outside
CALL_SECONDS = 5
BEGINNING = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, other = comm.rank, 1 - comm.rank
data, room = np.ones(1 << 20), np.zeros(1 << 20)
comm.Barrier()
if rank == 0:
    print(f"began {time.time()}", flush=True)
"""
PROGRAMS = {
    "exception": ("an exception on rank 1, a barrier on rank 0", "1 / (1 - rank)\ncomm.Barrier()"),
    "killed": ("rank 1 is killed", "os.kill(os.getpid(), signal.SIGKILL) if rank else None\ncomm.Barrier()"),
    "calls": ("`Bcast` on rank 0, `Allreduce` on rank 1", "comm.Allreduce(data, room) if rank else comm.Bcast(data)"),
    "lengths": ("`Allreduce` of different lengths", "comm.Allreduce(data[rank * 8 :], room[rank * 8 :])"),
    "types": ("`Allreduce` of different types", "comm.Allreduce(MPI.IN_PLACE, data.astype('df'[rank]))"),
    "roots": ("`Bcast` from different roots", "comm.Bcast(data, root=rank)"),
    "missing": ("`Recv` of a message that nobody sends", "comm.Recv(room, source=0, tag=3) if rank else None"),
    "receives": ("two ranks that both receive first", "comm.Recv(room, source=other)\ncomm.Send(data, dest=other)"),
    "sends": ("two ranks that both `Ssend` first", "comm.Ssend(data, dest=other)\ncomm.Recv(room, source=other)"),
    "truncated": (
        "a message longer than the buffer",
        "comm.Recv(room[:8], source=0) if rank else comm.Send(data, dest=1)",
    ),
    "leaves": ("rank 1 ends without the barrier of rank 0", "comm.Barrier() if rank == 0 else None"),
}


def run(command: list[str], more: dict[str, str] | None = None) -> tuple[float | None, int, list[str]]:
    """The seconds from the first barrier to the end (None: it was ended from outside), the exit status, the output."""
    with tempfile.TemporaryFile("w+") as log:
        started = subprocess.Popen(
            command, env={**os.environ, **(more or {})}, stdout=log, stderr=log, start_new_session=True
        )
        ended: float | None = None
        try:
            started.wait(PATIENCE)
            ended = time.time()
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGTERM)  # mpirun ends its ranks
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        log.seek(0)
        lines = log.read().splitlines()
    began = min((float(line.split()[1]) for line in lines if line.startswith("began ")), default=0.0)
    rest = [line for line in lines if not line.startswith("began ")]
    return ended and ended - began, started.returncode, rest


def main(names: list[str]) -> int:
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    for name in names or PROGRAMS:
        what, body = PROGRAMS[name]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(BEGINNING + body + "\n", encoding="utf-8")
            here = [sys.executable, "-m", "allfold", "run", "-n", "2", "--", sys.executable, "-m", "allfold.mpi4py"]
            mpis = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
            print(f"## {name}: {what}", flush=True)
            for title, command in (("allfold", here), ("Open MPI", mpis)):
                if title == "Open MPI" and not mpirun:
                    continue
                seconds, status, lines = run([*command, str(program)], {"ALLFOLD_MPI_TIMEOUT": str(CALL_SECONDS)})
                after = "did not end" if seconds is None else f"{seconds:.1f} s, exit status {status}"
                print(f"{title}: {after}\n    " + "\n    ".join(lines[-6:]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
