from allfold import copy, reduce


def two_hosts(ranks):
    """Ranks below `half` are on the first host, the others on the second. At most 2 S from host to host."""
    half = (ranks + 1) // 2
    leader = [0 if r < half else half for r in range(ranks)]
    members = [r for r in range(ranks) if r != leader[r]]
    yield [reduce(chunk=0, source=r, destination=leader[r]) for r in members]
    if ranks > 1:
        yield [reduce(chunk=0, source=0, destination=half), reduce(chunk=0, source=half, destination=0)]
    yield [copy(chunk=0, source=leader[r], destination=r) for r in members]


def leaders_first(comm, array):
    """An all_reduce of `array` over two hosts: up to the leader, across the leaders, down again."""
    half = (comm.size + 1) // 2
    hosts = [host for host in (list(range(half)), list(range(half, comm.size))) if host]
    mine = next(host for host in hosts if comm.rank in host)
    own = comm.group(mine)
    leaders = comm.group([host[0] for host in hosts])  # everybody takes part; those that do not lead get None
    own.reduce(array, root=0)  # the leader is rank 0 of its group
    if leaders is not None:
        leaders.all_reduce(array)
    own.broadcast(array, root=0)
