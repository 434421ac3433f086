"""Judges of lesson 14."""

from itertools import accumulate

from allfold.learn.checks import Wrong, on_ranks

RECORDS = (5, 0, 7, 2, 11, 3, 1)


def check_begins_at(begins_at):
    for ranks in (3, 4, 2, 7, 1):
        many = RECORDS[:ranks]
        ends = list(accumulate(many))
        for rank, found in enumerate(on_ranks(lambda comm, many=many: begins_at(comm, many[comm.rank]), ranks)):
            right = ends[rank] - many[rank]
            if found != right:
                known = {"included": ends[rank], "everything": ends[-1]}
                kind = "rank_0" if rank == 0 else next((kind for kind, one in known.items() if one == found), "wrong")
                says = f"rank {rank} returns {found!r:.40}, and its records begin at {right}"
                raise Wrong(f"with {ranks} ranks, which have {list(many)} records, {says}", kind=kind)
    return "the right places on 1 to 7 ranks, also where a rank has no records"
