"""MSCCL XML from anywhere: what is read is proved, or refused with a reason."""

from __future__ import annotations

import pytest
from export_cases import block, gpu, xml
from hypothesis import given
from hypothesis import strategies as st

import allfold as af
from allfold.export.msccl import msccl


def test_a_hand_written_file() -> None:
    """Each rank owns one chunk: it receives the other's part into scratch, adds it, and sends the sum back."""
    text = xml(
        gpu(0, block(1, 1, "s i1 o0", "r i0 s0", "cpy i0 o0", "re s0 o0", "s o0 o0", "r i0 o1")),
        gpu(1, block(0, 0, "s i0 o0", "rrc i1 o1", "s o1 o0", "r i0 o0")),
    )
    plan = msccl.read(text)
    assert (plan.algorithm, plan.collective, plan.ranks, plan.chunks) == ("mine", "all_reduce", 2, 2)
    proof = af.verify(plan)
    assert proof.same_bits and proof.counts.messages == 4
    assert plan.where(0).startswith("gpu ")


def test_sums_that_are_kept_nowhere() -> None:
    """rrs adds and forwards. The ring as other generators write it, on two channels, in place and out of place."""
    for in_place in (0, 1):
        out = "i" if in_place else "o"
        gpus = []
        for rank in range(4):
            blocks = []
            for channel in range(2):
                chunk = [2 * ((rank - step) % 4) + channel for step in range(8)]
                steps = [f"s i{chunk[1]} o0", *(f"rrs i{chunk[step]} o0" for step in (2, 3))]
                steps += [f"rrcs i{chunk[4]} {out}{chunk[4]}", *(f"rcs i0 {out}{chunk[step]}" for step in (5, 6))]
                steps += [f"r i0 {out}{chunk[7]}"]
                blocks.append(block((rank + 1) % 4, (rank - 1) % 4, *steps, channel=channel))
            gpus.append(gpu(rank, *blocks, sizes=(8, 0 if in_place else 8, 0)))
        head = f"nchunksperloop=8 nchannels=2 inplace={in_place} outofplace={1 - in_place}"
        plan = msccl.read(xml(*gpus, head=head))
        proof = af.verify(plan)
        ring = af.schedule("all_reduce", "ring", 4).counts
        assert (proof.counts.steps, proof.counts.bytes, plan.scratch) == (ring.steps, ring.bytes, 0)


def test_a_sum_that_is_kept_nowhere_while_its_operand_is_still_needed() -> None:
    """Rank 1 adds its part to what it forwards, and keeps its own content, which it sends to rank 0 afterwards."""
    text = xml(
        gpu(0, block(1, 2, "s i0 o0", "r i0 o0"), sizes=(1, 1, 0)),
        gpu(1, block(2, 0, "rrs i0 o0"), block(-1, 2, "r i0 o0"), sizes=(1, 1, 0)),
        gpu(2, block(0, 1, "rrcs i0 o0"), block(1, -1, "s o0 o0 0.0"), sizes=(1, 1, 0)),
        head="nchunksperloop=1",
    ).replace(
        'type="rrcs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"',
        'type="rrcs" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"',
    )
    assert af.verify(msccl.read(text)).same_bits


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        (  # both wait for the other's first message
            (gpu(0, block(1, 1, "r i0 o0", "s i0 o0")), gpu(1, block(0, 0, "r i0 o0", "s i0 o0"))),
            r"deadlock: gpu 0 tb 0 step 0 \(r\) waits until gpu 1 tb 0 step 1",
        ),
        (  # what is received is forwarded by another thread block that does not wait for it
            (gpu(0, block(-1, 1, "r i0 o0"), block(1, -1, "s o0 o0")), gpu(1, block(0, 0, "s i0 o0", "r i0 o0"))),
            r"race: gpu 0 tb [01] step 0 and gpu 0 tb [01] step 0 both use chunk 0",
        ),
        (  # the awaited step never signals that it is done
            (
                gpu(0, block(-1, 1, "r i0 o0"), block(1, -1, "s o0 o0 0.0")),
                gpu(1, block(0, 0, "s i0 o0", "r i0 o0")),
            ),
            r"gpu 0 tb 1 step 0 waits for step 0 of thread block 0, which never says",
        ),
        ((gpu(0, block(1, -1, "s i0 o0")), gpu(1)), "gpu 0 sends 1 chunks to gpu 1 on channel 0, which receives 0"),
        (
            (gpu(0, block(1, -1, "s i0 o0 2")), gpu(1, block(-1, 0, "r i0 o0", "r i0 o1"))),
            "sends 2 chunks, and gpu 1 tb 0 step 0 receives 1",
        ),
        (
            (gpu(0, block(1, -1, "s i0 o0"), block(1, -1, "s i1 o0")), gpu(1, block(-1, 0, "r i0 o0", "r i0 o1"))),
            "two thread blocks",
        ),
        (
            (gpu(0, block(1, 1, "s i0 o0", "r i0 o0")), gpu(1, block(0, 0, "s i0 o0", "r i0 o0"))),
            "output is never written",
        ),
    ],
)
def test_wrong_algorithms_are_found_wrong(gpus: tuple[str, ...], says: str) -> None:
    with pytest.raises(af.ScheduleError, match=says):
        msccl.read(xml(*gpus))


def test_a_dependency_orders_what_would_be_a_race() -> None:
    ordered = gpu(0, block(-1, 1, "r i0 o0 !"), block(1, -1, "s o0 o0 0.0"))
    plan = msccl.read(
        xml(ordered, gpu(1, block(0, 0, "s i0 o0", "r i0 o1")), head="coll=broadcast nchunksperloop=2"), 1, True
    )
    assert plan.steps == 2


def test_small_buffers_need_less_room() -> None:
    """Three chunks are three messages in large buffers, more than a connection holds; in small ones they are one."""
    gpus = [gpu(rank, block(1 - rank, 1 - rank, "s i0 o0 3", "rrc i0 o0 3"), sizes=(3, 3, 0)) for rank in range(2)]
    head = "nchunksperloop=3 proto=Simple inplace=1 outofplace=0"
    with pytest.raises(af.ScheduleError, match=r"deadlock: gpu 0 tb 0 step 0 \(s\) has no room to send"):
        msccl.read(xml(*gpus, head=head))
    assert af.verify(msccl.read(xml(*gpus, head=f"{head} maxBytes=32768"))).counts.steps == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<algo", "this is not XML"),
        ("", "cannot be read|not XML"),
        ("<a/>", "begins with <a>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><algo name="&b;"/>', "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/hostname"><algo/>', "document type"),
        (xml(gpu(0), gpu(1), head="coll=alltoallv"), "known here: allreduce"),
        (xml(gpu(0), gpu(1), head="proto=Fast"), "protocol 'Fast'"),
        (xml(gpu(0), gpu(0)), "describes the GPUs"),
        (xml(gpu(0), gpu(1), head="nchunksperloop=-3"), "nchunksperloop='-3'"),
        (xml(gpu(0), gpu(1), head="nchannels=1e3"), "nchannels='1e3'"),
        (xml(gpu(0, block(0, -1, "s i0 o0")), gpu(1)), "its own GPU as a peer"),
        (xml(gpu(0, block(1, -1, "r i0 o0")), gpu(1)), "has no peer"),
        (xml(gpu(0, block(1, -1, "x i0 o0")), gpu(1)), "type 'x'"),
        (xml(gpu(0, block(1, -1, "s i7 o0")), gpu(1, block(-1, 0, "r i0 o0"))), "chunk 7 of buffer i"),
        (xml(gpu(0, block(1, -1, "s i0 o0 32000")), gpu(1)), "names chunk"),
        (xml(gpu(0), gpu(1), head="coll=broadcast"), "which GPU is the root"),
    ],
)
def test_what_is_no_algorithm_is_refused(text: str, says: str) -> None:
    with pytest.raises(af.UsageError, match=says):
        msccl.read(text)


_GOOD = msccl.write(af.schedule("all_reduce", "recursive_doubling", 3))


@given(st.data())
def test_damaged_files_raise_nothing_but_our_own(data: st.DataObject) -> None:
    """Deleted, doubled and replaced pieces: the result is a schedule or one of our errors."""
    start = data.draw(st.integers(0, len(_GOOD)))
    end = data.draw(st.integers(start, min(len(_GOOD), start + 60)))
    piece = data.draw(st.sampled_from(["", "-1", "9", "rrs", "nop", '"', "<", _GOOD[start:end] * 2, "\x00", "é"]))
    try:
        plan = msccl.read("<" + (_GOOD[:start] + piece + _GOOD[end:]).lstrip("<"))
        af.verify(plan)
    except af.AllfoldError:
        pass


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_noise_raises_nothing_but_our_own(text: str) -> None:
    with pytest.raises(af.AllfoldError):
        msccl.read("<" + text)
