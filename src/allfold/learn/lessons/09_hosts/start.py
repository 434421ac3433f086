from allfold import copy, reduce


def two_hosts(ranks):
    """Ranks below `half` are on the first host, the others on the second. At most 2 S from host to host."""
    half = (ranks + 1) // 2
    # This is the driver: everybody sends to rank 0, also from the other host.
    yield [reduce(chunk=0, source=r, destination=0) for r in range(1, ranks)]
    yield [copy(chunk=0, source=0, destination=r) for r in range(1, ranks)]


def leaders_first(comm, array):
    """An all_reduce of `array` over two hosts: up to the leader, across, down again. Some wait in vain: repair it."""
    half = (comm.size + 1) // 2
    hosts = [host for host in (list(range(half)), list(range(half, comm.size))) if host]
    mine = next(host for host in hosts if comm.rank in host)
    own = comm.group(mine)
    leaders = None
    if comm.rank == mine[0]:
        leaders = comm.group([host[0] for host in hosts])
    own.reduce(array, root=0)  # the leader is rank 0 of its group
    if leaders is not None:
        leaders.all_reduce(array)
    own.broadcast(array, root=0)
