"""Running something on several ranks of this machine: a function, a command, or this process as one of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import os
import pickle
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from allfold import _native
from allfold.communicator.timeouts import check_timeout
from allfold.engines.choose import VARIABLE, named
from allfold.engines.engine import DEFAULT_TIMEOUT, Processes
from allfold.errors import UsageError
from allfold.files import explain_open_files
from allfold.launch.environment import Place, in_this_thread, launched_place, place_from_environment, with_meeting_point
from allfold.launch.outcome import also, check_outcome, late, result_of, say
from allfold.launch.supervise import SECONDS_TO_OBEY, Child, Supervisor
from allfold.launch.template import Template, private_file
from allfold.registry import algorithms_of_script

if TYPE_CHECKING:
    from allfold.communicator.communicator import Communicator
    from allfold.fabrics.board import Board

Handle = TypeVar("Handle")
Result = TypeVar("Result")

TIMED_OUT = 124  # the exit status that timeout(1) gives
DEBUGGING = "ALLFOLD_PDB"  # the variable that names the rank in the debugger
_A_DAY = 86_400.0


def init(timeout: float = DEFAULT_TIMEOUT, *, engine: str | None = None) -> Communicator:
    """The communicator of all ranks that a launcher started together with this process; alone, a communicator of one.

    Understands the environment of `allfold run`, torchrun, mpirun (Open MPI, MPICH) and srun. `engine` is the name of the
    engine that runs the calls, the same on every rank: `shared_memory` or `islands`. Without one, ALLFOLD_ENGINE names it,
    or allfold chooses it by the hosts that the ranks are on. In a thread that is a rank (`spawn(…, ranks_are="threads")`,
    `allfold run --threads`), it is the communicator of that rank.

    >>> comm = af.init()  # started plainly: a communicator of one
    >>> comm.rank, comm.size
    (0, 1)
    >>> comm.close()
    """
    if (communicator := _of_this_thread()) is None:
        return _joined(place_from_environment(), timeout, engine)
    check_timeout("init", timeout)
    if engine is not None:
        raise UsageError(f"init: the engine {engine!r} was named too late; threads that are ranks have theirs already")
    communicator.timeout = communicator.engine.timeout = timeout
    return communicator


def _of_this_thread() -> Communicator | None:
    found: Communicator | None = in_this_thread.communicator
    return found


def _joined(place: Place, timeout: float, engine: str | None = None) -> Communicator:
    from allfold.communicator.communicator import join

    if DEBUGGING in os.environ:
        timeout = max(timeout, _A_DAY)  # calls wait for the rank at its prompt

    def board() -> Board:
        from allfold.fabrics.table import board_from_environment

        return board_from_environment(with_meeting_point(os.environ), place.rank, place.size, timeout)

    return join(Processes(place.rank, place.size, place.key, board, place.spread), timeout, named(engine))


def spawn(
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    prefix_output: bool = False,
    survive: bool = False,
    hosts: int | Sequence[int] | None = None,
    engine: str | None = None,
    ranks_are: str = "processes",
) -> list[Result]:
    """Run `work(communicator, *args)` in one process per rank; the results, by rank.

    Works from scripts without an `if __name__` guard and from notebooks: the processes are forked from a fresh
    interpreter, not from this process, and functions travel by value where they cannot be imported. When a rank raises
    or dies, the whole run ends and RankFailed names it. `timeout` limits the whole run, in seconds; None means no
    limit. With `prefix_output` this process prints every line that a rank prints, with the rank in front of it. With
    `survive` a rank that raises or dies does not end the others, which may go on without it (`Communicator.shrink`);
    its result is None, and RankFailed is raised only if no rank finished. `hosts` simulates this many hosts, or
    hosts with this many ranks each: ranks share memory with their own host only, and reach the others by the fabric
    (docs/hosts.md). `engine` is the name of the engine that the ranks use (see `init`).

    With `ranks_are="threads"`, ranks are threads of this process: nothing is pickled, debuggers, profilers and coverage see
    all ranks, and it works on every system, without the engine in C++. The engine `reference`, in Python and NumPy, then
    makes the calls. It is slow. Threads cannot be ended: a rank that makes no more calls after a failure or the timeout
    keeps running until this process ends. They share this process's variables, folder and random generators
    (docs/testing.md).

    >>> def work(comm, factor):
    ...     x = np.full(1000, comm.rank * factor)
    ...     comm.all_reduce(x)
    ...     return int(x[0])
    >>> af.spawn(work, ranks=4, args=(10,))
    [60, 60, 60, 60]
    >>> af.spawn(work, ranks=4, args=(10,), ranks_are="threads")
    [60, 60, 60, 60]
    """
    __tracebackhide__ = True  # pytest then shows the test, and the traceback of the rank
    if check_kind(ranks_are, prefix_output=prefix_output, hosts=hosts):
        from allfold.launch.threads import spawn_threads

        return spawn_threads(work, ranks, args=args, timeout=timeout, survive=survive, engine=engine)
    return run_everywhere(
        connected,
        work,
        ranks,
        args=args,
        timeout=timeout,
        prefix_output=prefix_output,
        survive=survive,
        hosts=hosts,
        engine=engine,
    )


def start(
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    prefix_output: bool = False,
    survive: bool = False,
    hosts: int | Sequence[int] | None = None,
    engine: str | None = None,
    ranks_are: str = "processes",
) -> Result:
    """Run `work(communicator, *args)` in this process if a launcher started it as a rank; otherwise `spawn` the ranks.

    A script that ends with this can be started on its own, or by `allfold run`, torchrun, mpirun or srun. A launcher
    says how many ranks there are (perhaps one) and has options of its own: `ranks` and all options but `args` are for
    spawned ranks. Under a launcher, what the work raises is raised here unchanged.

    The result is what the work returned on this rank. A process that spawned the ranks gets the result of rank 0, or
    None if rank 0 was lost and `survive` is set. For the results of all ranks there is `spawn`.

    >>> def work(comm):
    ...     return f"rank {comm.rank} of {comm.size}"
    >>> af.start(work, ranks=2)
    'rank 0 of 2'
    """
    __tracebackhide__ = True
    check_ranks(ranks)
    check_work("start", work, args)
    if (communicator := _of_this_thread()) is not None:
        return work(communicator, *args)
    place = launched_place()
    if place is None:
        options: dict[str, Any] = {"timeout": timeout, "prefix_output": prefix_output, "survive": survive}
        return spawn(work, ranks, args=args, hosts=hosts, engine=engine, ranks_are=ranks_are, **options)[0]
    with connected(place) as communicator:
        return work(communicator, *args)


@contextlib.contextmanager
def connected(place: Place) -> Iterator[Communicator]:
    communicator = _joined(place, DEFAULT_TIMEOUT)
    yield communicator
    # Not after an error: its report (under a launcher, the end of its process) must be on its way before the others
    # notice that this rank is gone.
    communicator.close()


def run_everywhere(
    enter: Callable[[Place], AbstractContextManager[Handle]],
    work: Callable[..., Result],
    ranks: int,
    *,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    prefix_output: bool = False,
    survive: bool = False,
    hosts: int | Sequence[int] | None = None,
    engine: str | None = None,
) -> list[Result]:
    """Like `spawn`, but the work gets whatever `enter` makes of a place instead of a communicator."""
    __tracebackhide__ = True
    supervisor = supervised(
        enter,
        work,
        ranks,
        args=args,
        timeout=timeout,
        prefix_output=prefix_output,
        survive=survive,
        hosts=hosts,
        engine=engine,
    )
    check_outcome(supervisor, timeout, survive)
    return [None if child.has_failed else result_of(child) for child in supervisor.children]  # type: ignore[misc]


def supervised(
    enter: Callable[[Place], AbstractContextManager[Handle]],
    work: Callable[..., Any],
    ranks: int,
    *,
    args: Sequence[Any],
    timeout: float | None,
    prefix_output: bool,
    survive: bool = False,
    hosts: int | Sequence[int] | None,
    engine: str | None = None,
    call: str = "spawn",
    modules: Sequence[str] = (),
    tolerates_death: bool = False,
    was_meant_to_die: Callable[[Child], bool] = lambda _: False,
    make_template: Callable[..., Template] | None = None,
    seconds_to_obey: float = SECONDS_TO_OBEY,
) -> Supervisor:
    """Run the work on every rank until all have ended; the supervisor then knows how each did.

    `call` is the name of the function that users called, for errors. `modules` are imported before the ranks are forked,
    with those that every rank needs. `make_template` makes the process that ranks are forked from; without it, this run has
    one of its own.
    """
    __tracebackhide__ = True
    _native.require_engine(call)
    check_ranks(ranks)
    check_timeout(call, timeout)
    check_work(call, work, args)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            f"{call}: multiprocessing is importing this script in a process that it has started; "
            "put what starts ranks under if __name__ == '__main__':"
        )
    named(engine)  # here, and not once by every rank
    places = _simulated(ranks, hosts)
    _open_streams()
    pickled = _pickled(call, enter, work, args)
    # The path is pickled separately: the work can only be imported with it.
    with (
        _enough_files(ranks),
        private_file(pickle.dumps((sys.path, *_script(), _pickled_algorithms(), pickled))) as descriptor,
        _store(places) as store,
        Supervisor(
            prefix_output,
            survive,
            tolerates_death=tolerates_death,
            was_meant_to_die=was_meant_to_die,
            make_template=make_template,
            seconds_to_obey=seconds_to_obey,
        ) as supervisor,
    ):
        common = _common_variables(ranks, supervisor.passes_on, engine)
        own = _own_variables(ranks, places, store)
        supervisor.start_work(descriptor, [*_modules(work, pickled, places, common), *modules], common, own)
        supervisor.watch(timeout)
    return supervisor


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    prefix_output: bool = False,
    timeout: float | None = None,
    survive: bool = False,
    hosts: int | Sequence[int] | None = None,
    pdb: int | None = None,
    engine: str | None = None,
) -> int:
    """Run a command once for every rank, and say on stderr which ranks failed; the exit status of the run.

    0 on success, otherwise the status of the rank that failed first (for a signal, 128 + the number of the signal), 124
    after the timeout, and 128 + the number of a signal to the launcher itself. With `survive` a rank that fails does
    not end the others, and the run succeeds if one of them does. `pdb` is a rank that has the terminal, for `breakpoint()`
    in it; the others skip theirs, and wait for it as long as it takes. `engine` is the name of the engine that the ranks
    use (see `init`).
    """
    _native.require_engine("a run of several ranks")
    check_ranks(ranks)
    named(engine)  # here, and not once by every rank
    places = _simulated(ranks, hosts)
    _open_streams()
    if pdb is not None and not 0 <= pdb < ranks:
        raise UsageError(f"pdb: there is no rank {pdb} among {ranks}")
    if not command:
        raise UsageError("launch: expected a command, the list is empty")
    if shutil.which(command[0]) is None:
        raise UsageError(f"launch: there is no executable command {command[0]!r}")
    try:
        with (
            _enough_files(ranks),
            _signals() as interrupts,
            _store(places) as store,
            Supervisor(prefix_output, survive, terminal=pdb or 0, is_debugging=pdb is not None) as supervisor,
        ):
            common = _common_variables(ranks, prefix_output, engine)
            if pdb is not None:
                common[DEBUGGING] = str(pdb)
            for rank, own in enumerate(_own_variables(ranks, places, store)):
                skips = {} if pdb in (None, rank) else {"PYTHONBREAKPOINT": "0"}
                supervisor.start_command(rank, command, common | own | skips)
            supervisor.watch(timeout, interrupts)
    except BrokenPipeError:  # the reader of our output has gone, as in `allfold run … | head`
        return 128 + signal.SIGPIPE
    if supervisor.interrupted is not None:
        return 128 + supervisor.interrupted
    failed = [child for child in supervisor.ended if child.has_failed and not child.was_told_to_end]
    if failed:
        first, *others = failed
        say(first.how_it_ended() + also([(child.rank, child.end) for child in others]))
        survived = survive and any(not child.has_failed for child in supervisor.children)
        return 0 if survived else first.shell_status
    if supervisor.late:
        say(f"{late(supervisor)} after {timeout:g} s; all ranks were ended")
        return TIMED_OUT
    return 0


# Before: what every rank gets -----------------------------------------------------------------------------------------


def check_ranks(ranks: int) -> None:
    __tracebackhide__ = True
    if isinstance(ranks, bool) or not isinstance(ranks, SupportsIndex) or ranks.__index__() < 1:
        raise UsageError(f"expected a whole number of ranks, at least 1; got {ranks!r}")
    if ranks > _native.MOST_RANKS:
        raise UsageError(f"{ranks} ranks are too many for one machine; the maximum is {_native.MOST_RANKS}")


def check_kind(ranks_are: str, *, prefix_output: bool = False, hosts: object = None) -> bool:
    """True if ranks are threads; raises for what threads cannot do."""
    __tracebackhide__ = True
    if ranks_are not in ("processes", "threads"):
        raise UsageError(f"ranks_are must be 'processes' or 'threads', not {ranks_are!r:.40}")
    if ranks_are == "processes":
        return False
    if prefix_output:
        raise UsageError("ranks that are threads share this process's output: it cannot have their numbers in front")
    if hosts is not None:
        raise UsageError("ranks that are threads cannot simulate hosts, which share no memory; use processes")
    return True


def _simulated(ranks: int, hosts: int | Sequence[int] | None) -> list[int]:
    """The number of ranks on each simulated host; empty without simulated hosts."""
    __tracebackhide__ = True
    return [] if hosts is None else ranks_per_host(ranks, hosts)


def ranks_per_host(ranks: int, hosts: int | Sequence[int]) -> list[int]:
    """From a number of hosts, or from the number of ranks on each."""
    __tracebackhide__ = True
    given: list[Any] = [*hosts] if isinstance(hosts, Iterable) else [hosts]
    whole = all(isinstance(one, SupportsIndex) and not isinstance(one, bool) for one in given)
    counts = [one.__index__() for one in given] if whole else []
    if not counts or min(counts) < 1:
        raise UsageError(f"hosts: expected a number of hosts, or the number of ranks on each, not {hosts!r}")
    if not isinstance(hosts, Iterable):
        many = counts[0]
        if many > ranks:
            raise UsageError(f"hosts: {ranks} ranks are too few for {many} hosts")
        return [len(range(host, ranks, many)) for host in range(many)]
    if sum(counts) != ranks:
        raise UsageError(f"hosts: {'+'.join(map(str, counts))} is {sum(counts)} ranks, and the run has {ranks}")
    return counts


def _open_streams() -> None:
    """Open /dev/null where the shell has closed a stream (`<&-`): pipes would get its number, and ranks mix them up."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


@contextlib.contextmanager
def _store(places: list[int]) -> Iterator[str]:
    """A file in which the ranks on simulated hosts meet."""
    if not places:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="allfold-") as folder:
        yield os.path.join(folder, "store")


def _common_variables(ranks: int, prefix_output: bool, engine: str | None) -> dict[str, str]:
    """The environment that all ranks have."""
    inherited = dict(os.environ)
    if engine is not None:
        inherited[VARIABLE] = engine
    for name in os.environ:
        # The variables of an outer torchrun would make torch look for the outer run's store.
        if name.startswith("TORCHELASTIC_"):
            del inherited[name]
    # If every rank had a thread pool as large as the machine, they would all fight for the same cores.
    inherited.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    if prefix_output:
        # Into a pipe Python writes in blocks, and a block arrives long after its lines were printed.
        inherited.setdefault("PYTHONUNBUFFERED", "1")
    return inherited


def _own_variables(ranks: int, places: list[int], store: str) -> list[dict[str, str]]:
    """The environment variables of each rank, by rank."""
    key, port = secrets.token_hex(16), _free_port()
    seats = [(host, seat, count) for host, count in enumerate(places) for seat in range(count)]
    variables = []
    for rank in range(ranks):
        simulated = {}
        if seats:
            host, seat, count = seats[rank]
            simulated = {"ALLFOLD_HOSTID": f"host{host}", "ALLFOLD_STORE": store}
            simulated |= {"LOCAL_RANK": str(seat), "LOCAL_WORLD_SIZE": str(count)}
        named = {
            "ALLFOLD_RANK": str(rank),
            "ALLFOLD_SIZE": str(ranks),
            "ALLFOLD_KEY": key,
            # For scripts that know torch.distributed and not us.
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        variables.append(named | simulated)
    return variables


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def check_work(call: str, work: object, args: object) -> None:
    __tracebackhide__ = True
    if not callable(work):
        raise UsageError(f"{call}: expected a function that every rank calls, got {work!r}")
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes)):
        raise UsageError(
            f"{call}: args must be a tuple of the arguments after the communicator, as in args=({args!r:.40},)"
        )
    plain = work.func if isinstance(work, functools.partial) else work
    if not inspect.isroutine(plain) and not inspect.isclass(plain):
        plain = type(plain).__call__
    if inspect.iscoroutinefunction(plain):
        raise UsageError(f"{call}: {_name(plain)} is async, and calling it runs nothing; wrap it in asyncio.run")
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise UsageError(f"{call}: {_name(plain)} is a generator, and calling it runs nothing; return a list")


def _name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _script() -> tuple[list[str], str | None]:
    """The arguments of this script, and its file: ranks have the same, as in multiprocessing."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return [*map(str, getattr(sys, "argv", []))], None if file is None else os.path.abspath(file)


@contextlib.contextmanager
def pickled_by_value(*modules: ModuleType) -> Iterator[None]:
    """Have functions and classes of these modules pickled by value: ranks then need not import them."""
    already = cloudpickle.list_registry_pickle_by_value()
    fresh = [module for module in modules if module.__name__ not in already]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)


def _pickled(call: str, enter: Callable[..., Any], work: Callable[..., Any], args: Sequence[Any]) -> bytes:
    __tracebackhide__ = True
    try:
        return cloudpickle.dumps((enter, work, tuple(args)))  # type: ignore[no-any-return]
    except Exception as error:
        function = users_function(work)
        advice = "create such objects inside the function"
        if inspect.ismethod(function):
            advice = f"{function.__qualname__} is a method, which brings its object along; use a function"
        raise UsageError(f"{call}: the work or its arguments cannot be pickled: {error}; {advice}") from error


def users_function(work: object) -> object:
    """The function that the user has given, without what is around it."""
    while isinstance(work, functools.partial):
        work = work.args[0] if work.args else work.func
    return work


def _pickled_algorithms() -> list[bytes]:
    """The algorithms that the script has registered, so that ranks find them by name.

    An algorithm that cannot be pickled is left out, and ranks that ask for it are told that there is none.
    """
    algorithms = []
    for one in algorithms_of_script():
        with contextlib.suppress(Exception):
            made = one.made is not None
            what = (one.made,) if made else (one.collective, one.name, one.chunks, one.function)
            algorithms.append(cloudpickle.dumps(what))
    return algorithms


def _modules(work: Callable[..., Any], pickled: bytes, places: list[int], common: Mapping[str, str]) -> list[str]:
    """Modules that all ranks are going to import, so that they are imported once. A wrong guess costs only time."""
    modules = ["allfold.launch.spawn", "allfold.communicator.communicator", "allfold.engines.shared_memory.engine"]
    modules.append("allfold.algorithms.table")
    crosses = places or common.get(VARIABLE) == "islands"
    if crosses:
        modules += ["allfold.engines.islands.engine", "allfold.fabrics.table", "allfold.fabrics.ucx"]
    if "torch" in sys.modules and _mentions_torch(work, pickled):
        modules.append("torch")
    return modules


def _mentions_torch(work: Callable[..., Any], pickled: bytes) -> bool:
    """True if the work seems to need torch. Work that is pickled by its name brings its whole module along."""
    name = getattr(work, "__module__", None)
    by_value = name == "__main__" or name in cloudpickle.list_registry_pickle_by_value()
    if b"torch" in pickled or by_value or name not in sys.modules:
        return b"torch" in pickled
    beside_it = vars(sys.modules[name]).values()
    homes = (getattr(one, "__module__", None) or getattr(one, "__name__", None) for one in beside_it)
    return any(isinstance(home, str) and home.startswith("torch") for home in homes)


@contextlib.contextmanager
def _enough_files(ranks: int) -> Iterator[None]:
    """Says what to do if the ranks need more open files than this process may have."""
    try:
        yield
    except OSError as error:
        explained = explain_open_files(error, ranks)
        if explained is None:
            raise
        raise UsageError(explained) from None


@contextlib.contextmanager
def _signals() -> Iterator[int | None]:
    """A descriptor from which to read the signals that would otherwise end this process.

    Not an exception from the handler: it could come between the start of a process and our recording it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None  # only the main thread may take signals, and there an interrupt still ends the whole process
        return
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A run under nohup goes on ignoring what it was told to ignore.
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda number, _: os.write(writing, bytes([number])))
        yield reading
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
