from allfold import copy, reduce


def seats(ranks):
    """The ranks of the players (2, 4, 8, … of them), and the pairs (host, guest)."""
    count = 1
    while 2 * count <= ranks:
        count *= 2
    guests = [(2 * i, 2 * i + 1) for i in range(ranks - count)]
    return [rank for rank in range(ranks) if rank not in [guest for _, guest in guests]], guests


def doubling(ranks):
    """Pairs exchange whole buffers, then pairs of pairs, and so on."""
    players, guests = seats(ranks)
    yield [reduce(chunk=0, source=guest, destination=host) for host, guest in guests]
    distance = 1
    while distance < len(players):
        yield [reduce(chunk=0, source=rank, destination=players[i ^ distance]) for i, rank in enumerate(players)]
        distance *= 2
    yield [copy(chunk=0, source=host, destination=guest) for host, guest in guests]


def halve_and_double(ranks):
    """Partners split the work: a half, a quarter, an eighth; then the same exchanges backwards hand it out."""
    players, guests = seats(ranks)
    count = len(players)  # also the number of chunks
    yield [reduce(chunk=c, source=guest, destination=host) for host, guest in guests for c in range(count)]
    distance = 1
    while distance < count:
        yield [
            reduce(chunk=c, source=players[i], destination=players[i ^ distance])
            for i in range(count)
            for c in range(count)
            if c % (2 * distance) == (i ^ distance) % (2 * distance)
        ]
        distance *= 2
    while distance > 1:
        distance //= 2
        yield [
            copy(chunk=c, source=players[i], destination=players[i ^ distance])
            for i in range(count)
            for c in range(count)
            if c % (2 * distance) == i % (2 * distance)
        ]
    yield [copy(chunk=c, source=host, destination=guest) for host, guest in guests for c in range(count)]
