"""Signatures: Python's and the extension's are the same, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from each import each

import allfold as af
from allfold import _native
from allfold.collectives import COLLECTIVES
from allfold.dtypes import DTYPES
from allfold.engines.engine import Call
from allfold.engines.signature import ON_THE_GPU, STAGED, Signature, difference
from allfold.ops import OPS
from allfold.proved import schedule_of
from allfold.registry import algorithms

BASE = Signature("reduce", "float32", 1000, "sum", 0, 2, "ring", 0x1122334455667788)
OTHERS: dict[str, Any] = {
    "collective": "broadcast",
    "dtype": "int32",
    "elements": 2**40,
    "op": "max",
    "custom": 0xFEDCBA9876543210,
    "root": 1023,
    "algorithm": "a name of twenty-seven long",
    "schedule": 2**64 - 1,
    "counts": 2**32 - 1,
    "place": ON_THE_GPU + 77,
}


def changed(field: str) -> Signature:
    """The base, with another value of one field."""
    one = BASE._replace(**{field: OTHERS[field]})
    return one._replace(op="") if field == "collective" else one


def everything() -> Iterator[Signature]:
    yield BASE
    for field in Signature._fields:
        yield changed(field)
    for collective, promise in COLLECTIVES.items():
        op = "sum" if promise.reduces and promise.carries_data else ""
        yield Signature(collective, "uint8", 0, op, root=3 * promise.rooted)
        yield Signature(collective, "float64", 7, op, root=3 * promise.rooted, algorithm="größer()")
    for dtype in DTYPES:
        yield BASE._replace(dtype=dtype)
    for op in OPS:
        yield BASE._replace(op=op)
    yield BASE._replace(op="my operation ok", custom=1)


@each("one", [*everything()])
def test_the_extension_has_the_same_digest_and_words(one: Signature) -> None:
    packed = one.packed()
    assert Signature.unpacked(packed) == one
    assert _native.signature_digest(packed) == one.digest
    if not one.place:  # the extension compares no calls on GPUs
        assert _native.signature_words(packed) == one.words


def test_every_field_is_compared_and_named() -> None:
    assert set(OTHERS) == set(Signature._fields)
    for field in Signature._fields:
        one = changed(field)
        assert one.digest != BASE.digest
        said = difference({0: BASE, 1: one, 2: BASE})
        assert "ranks 0 and 2 called" in said and ", rank 1 " in said and "earlier" not in said
        if not one.place:
            assert _native.difference([BASE.packed(), one.packed(), BASE.packed()]) == said


def test_the_sentence() -> None:
    def said(*calls: Signature | None) -> str:
        known = {rank: call for rank, call in enumerate(calls) if call is not None}
        absent = [rank for rank, call in enumerate(calls) if call is None]
        text = difference(known, absent)
        assert text == _native.difference([None if call is None else call.packed() for call in calls])
        return text

    long, short = (Signature("all_reduce", "float64", length, "sum") for length in (1001, 1000))
    named = Signature("barrier", algorithm="tree")
    assert said(short, long) == "all_reduce: rank 0 called it with float64[1000] sum, rank 1 with float64[1001] sum"
    assert said(short, BASE, Signature("barrier"), None) == (
        "mismatched calls: rank 0 called all_reduce(float64[1000] sum), rank 1 called reduce(float32[1000] sum root 2 by "
        "ring), rank 2 called barrier(), rank 3 did not arrive"
    )
    assert (
        said(named, Signature("barrier")) == "mismatched calls: rank 0 called barrier(by tree), rank 1 called barrier()"
    )
    assert (
        said(short, short) == "all_reduce: ranks 0 and 1 called it with float64[1000] sum, but an earlier call differed"
    )
    mine = short._replace(op="mine", custom=0x1_0000_000A)
    assert said(mine, mine._replace(custom=11)) == (
        "all_reduce: rank 0 called it with float64[1000] custom operation mine (operation 0000000a), "
        "rank 1 with float64[1000] custom operation mine (operation 0000000b)"
    )
    by_ring = short._replace(algorithm="ring", schedule=1)
    assert said(by_ring, by_ring._replace(schedule=2)) == (
        "all_reduce: rank 0 called it with float64[1000] sum by ring (schedule 00000001), "
        "rank 1 with float64[1000] sum by ring (schedule 00000002)"
    )


def test_a_place_is_named() -> None:
    places = [Signature("broadcast", "int8", 3, place=place) for place in (STAGED, ON_THE_GPU, ON_THE_GPU + 1)]
    assert [one.arguments for one in places] == [
        "int8[3] root 0 through main memory",
        "int8[3] root 0 on the GPU",
        "int8[3] root 0 on the GPU in memory of allfold.torch.empty (place 0x3)",
    ]


def test_names_are_cut_between_characters() -> None:
    op = af.op(lambda a, b: a, commutative=True, name="überüberüberü")
    call = Call("all_reduce", op=op, algorithm="ä" * 20)
    made = Signature.of(call, DTYPES["int8"], 5, None)
    assert (made.op, made.algorithm) == ("überüberüberü"[:12], "ä" * 13)
    assert Signature.unpacked(made.packed()) == made


def test_it_is_made_of_the_call_and_the_schedule() -> None:
    schedule = schedule_of("reduce", algorithms("reduce")[0], 4, 1)
    made = Signature.of(
        Call("reduce", op=OPS["max"], root=1, algorithm=schedule, timeout=3.0), DTYPES["float16"], 9, schedule
    )
    assert made == Signature(
        "reduce", "float16", 9, "max", 0, 1, f"{schedule.algorithm}()", int.from_bytes(schedule.digest[:8], "little")
    )
    assert Signature.of(Call("barrier", root=3), DTYPES["uint8"], 0, None).root == 0
