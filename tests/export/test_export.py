"""Exports: each file keeps the rules of its format, comes back, and does what the schedule does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import Call, assert_printed

import allfold as af
from allfold import registry
from allfold.cli import choose, main
from allfold.collectives import COLLECTIVES
from allfold.export import perfetto
from allfold.export.chakra import chakra
from allfold.export.chakra.wire import decode
from allfold.export.equivalence import check_equivalent
from allfold.export.msccl import msccl
from allfold.export.msccl import xml as msccl_xml
from allfold.export.msccl.lower import lower
from allfold.export.msccl.xml import check_limits, parse
from allfold.export.mscclpp import mscclpp
from allfold.export.mscclpp import plan as mscclpp_plan

EVERY = [
    (collective, name) for collective in COLLECTIVES for name in af.algorithms(collective) if collective != "barrier"
]
RANKS = [2, 3, 4, 5, 8]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    known = {collective: dict(found) for collective, found in registry._registry.items()}

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    registry._registry.update(known)
    choose._load.cache_clear()


def cases(collective: str, name: str, ranks: int) -> list[af.Schedule]:
    roots = [0, ranks - 1] if COLLECTIVES[collective].rooted else [None]
    return [af.schedule(collective, name, ranks, root) for root in roots]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (("all_reduce", "ring", 4), ("all_reduce", "ring", 5), "ranks is 5 and was 4"),
        (("all_reduce", "ring", 4), ("all_reduce", "halving_doubling", 4), "rank 0 sends"),
        (("all_reduce", "naive", 4), ("all_reduce", "rotate", 4), "sends|another result"),
        (("reduce_scatter", "ring", 3), ("reduce_scatter", "direct", 3), "sends|another result"),
    ],
)
def test_what_differs_is_not_equivalent(first: tuple[str, str, int], second: tuple[str, str, int], says: str) -> None:
    check_equivalent(af.schedule(*first), af.schedule(*first))
    with pytest.raises(af.ScheduleError, match=says):
        check_equivalent(af.schedule(*first), af.schedule(*second))


# MSCCL XML, out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize("ranks", [1, *RANKS])
def test_msccl_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    for plan in cases(collective, name, ranks):
        text = msccl.write(plan)
        algorithm = parse(text)
        check_limits(algorithm)
        assert algorithm.to_xml() == text
        facts = af.verify(plan)
        for in_place in [True, False] if algorithm.in_place else [False]:
            again = msccl.read(text, root=plan.root, in_place=in_place)
            check_equivalent(plan, again)
            proof = af.verify(again)
            assert (proof.same_bits, proof.rank_order) == (facts.same_bits, facts.rank_order)


@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize(("fused", "aside", "share"), [(False, False, None), (False, True, None), (True, False, 3)])
def test_msccl_in_every_form(collective: str, name: str, fused: bool, aside: bool, share: int | None) -> None:
    plan = af.schedule(collective, name, 5)
    text = lower(plan, fused, aside, share).to_xml()
    check_equivalent(plan, msccl.read(text, root=plan.root))


def test_msccl_ring_is_the_ring_that_everybody_runs() -> None:
    """One thread block per rank: send, combine and forward, forward, receive; no waits between thread blocks."""
    for rank, gpu in enumerate(parse(msccl.write(af.schedule("all_reduce", "ring", 4))).gpus):
        (block,) = gpu.blocks
        assert (block.send, block.receive) == ((rank + 1) % 4, (rank - 1) % 4)
        assert [step.type for step in block.steps] == ["s", "rrcs", "rrcs", "rrcs", "rcs", "rcs", "r"]
        assert gpu.scratch_chunks == 0


def test_msccl_uses_more_channels_where_thread_blocks_get_too_long() -> None:
    algorithm = parse(msccl.write(af.schedule("all_reduce", "ring", 40)))
    assert algorithm.channels == 2
    assert max(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks) <= 64


def test_msccl_sends_neighbours_together() -> None:
    """Within its group of three, a rank of two_level sends four of twelve chunks at a time."""
    first = parse(msccl.write(af.schedule("all_reduce", "two_level", 5))).gpus[0]
    to_next = next(block for block in first.blocks if block.send == 1)
    assert [step.count for step in to_next.steps if step.type == "s"] == [4, 4, 4, 4]


def test_msccl_leaves_the_input_alone() -> None:
    for collective, name in EVERY:
        for gpu in parse(msccl.write(af.schedule(collective, name, 4))).gpus:
            for block in gpu.blocks:
                written = [step.destination for step in block.steps if step.type not in ("s", "rrs", "nop")]
                assert all(buffer in ("o", "s") for buffer, _ in written)


def test_msccl_lays_aside_what_would_deadlock() -> None:
    """Eight ranks exchange four chunks in one step, before any chunk is free: no connection has room for that."""
    plan = af.schedule("all_to_all", "bruck", 8)
    with pytest.raises(af.ScheduleError, match=r"deadlock: .* has no room to send until"):
        msccl.read(lower(plan, fused=False).to_xml())
    check_equivalent(plan, msccl.read(msccl.write(plan)))


def test_what_msccl_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.UsageError, match="MSCCL XML has no barrier"):
        msccl.write(af.schedule("barrier", "dissemination", 4))
    with pytest.raises(af.UsageError, match="rank 0 has 39 peers to send on a channel, and at most 32 fit"):
        msccl.write(af.schedule("all_reduce", "naive", 40))
    monkeypatch.setattr(msccl_xml, "MOST_STEPS", 10)
    with pytest.raises(af.UsageError, match="has 15 steps, and at most 10 are taken"):
        msccl.write(af.schedule("all_reduce", "ring", 8))
    monkeypatch.setattr(msccl_xml, "MOST_NODES", 10)
    with pytest.raises(af.UsageError, match="rank 0 has 13 elements, and the parser keeps 10"):
        msccl.write(af.schedule("all_reduce", "ring", 4))


def test_msccl_refuses_a_wrong_schedule() -> None:
    def nobody(ranks: int) -> Iterator[list[af.Move]]:
        yield [af.copy(0, 0, 1)]

    with pytest.raises(af.ScheduleError, match="lacks"):
        msccl.write(af.schedule("all_reduce", nobody, 2))


# MSCCL XML, in --------------------------------------------------------------------------------------------------------


def xml(*gpus: str, head: str = "") -> str:
    """Two GPUs that all_reduce two chunks, out of place unless told otherwise."""
    attributes = {"name": "mine", "proto": "LL", "nchannels": "1", "nchunksperloop": "2", "ngpus": str(len(gpus))}
    attributes |= {"coll": "allreduce", "inplace": "0", "outofplace": "1"}
    attributes |= dict(pair.split("=") for pair in head.split())
    words = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f"<algo {words}>" + "".join(gpus) + "</algo>"


def gpu(rank: int, *blocks: str, sizes: tuple[int, int, int] = (2, 2, 2)) -> str:
    inputs, outputs, scratch = sizes
    inner = "".join(block.replace("TB", str(number)) for number, block in enumerate(blocks))
    return f'<gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">{inner}</gpu>'


def block(send: int, receive: int, *steps: str, channel: int = 0) -> str:
    """Steps as `type source destination [count] [waits thread-block.step] [!]`, `!` if another step waits for it."""
    lines = []
    for number, step in enumerate(steps):
        kind, source, target, *rest = step.split()
        count = next((word for word in rest if word.isdecimal()), "1")
        depid, deps = next((word.split(".") for word in rest if "." in word), ("-1", "-1"))
        lines.append(
            f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
            f'dstoff="{target[1:]}" cnt="{count}" depid="{depid}" deps="{deps}" hasdep="{int("!" in rest)}"/>'
        )
    return f'<tb id="TB" send="{send}" recv="{receive}" chan="{channel}">{"".join(lines)}</tb>'


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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=100, deadline=None)
def test_noise_raises_nothing_but_our_own(text: str) -> None:
    with pytest.raises(af.AllfoldError):
        msccl.read("<" + text)


# MSCCL++ --------------------------------------------------------------------------------------------------------------

PLANNED = [(collective, name) for collective, name in EVERY if collective in mscclpp_plan.COLLECTIVES.values()]


@pytest.mark.parametrize(("collective", "name"), PLANNED)
@pytest.mark.parametrize("ranks", [1, *RANKS])
def test_mscclpp_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    plan = af.schedule(collective, name, ranks)
    text = mscclpp.write(plan)
    check_equivalent(plan, mscclpp.read(text))
    document = json.loads(text)
    mscclpp_plan.check_plan(document)
    for gpu in document["gpus"]:
        assert all(len(block["ops"]) <= 64 for block in gpu["threadblocks"])


def test_mscclpp_cuts_a_long_line_into_thread_blocks() -> None:
    document = json.loads(mscclpp.write(af.schedule("all_reduce", "ring", 16)))
    first = document["gpus"][0]
    assert len(first["threadblocks"]) > 1 and len(first["semaphores"]) == len(first["threadblocks"]) - 1
    assert first["threadblocks"][0]["ops"][-1]["name"] == "sem_release"
    assert first["threadblocks"][1]["ops"][0]["name"] == "sem_acquire"


def test_what_mscclpp_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.UsageError, match="not for broadcast"):
        mscclpp.write(af.schedule("broadcast", "tree", 4))
    with pytest.raises(af.UsageError, match="has 19 peers, and a thread block has 16"):
        mscclpp.write(af.schedule("all_reduce", "naive", 20))
    monkeypatch.setattr(mscclpp_plan, "MOST_SEMAPHORES", 1)
    with pytest.raises(af.UsageError, match="needs 3 semaphores, and there are 1"):
        mscclpp.write(af.schedule("all_reduce", "ring", 16))


def damaged(change: Callable[[list[dict[str, object]]], object]) -> str:
    """A plan of two ranks with changed operations of the first rank."""
    document = json.loads(mscclpp.write(af.schedule("all_reduce", "ring", 2)))
    change(document["gpus"][0]["threadblocks"][0]["ops"])
    return json.dumps(document)


def without(name: str) -> Callable[[list[dict[str, object]]], object]:
    return lambda operations: operations.pop(next(i for i, one in enumerate(operations) if one["name"] == name))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (without("signal"), af.ScheduleError, "is posted .* times and awaited otherwise"),
        (without("wait"), af.ScheduleError, "is posted .* times and awaited otherwise"),
        (without("nop"), af.UsageError, "without a nop between"),
        (lambda operations: operations.insert(0, {"name": "dance"}), af.UsageError, "dance"),
        (lambda operations: operations.extend([{"name": "nop"}] * 64), af.UsageError, "64 are taken"),
        (lambda operations: operations.reverse(), af.AllfoldError, "ring|plan"),
    ],
)
def test_wrong_plans_are_found_wrong(change: Callable[..., object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        mscclpp.read(damaged(change))


def test_a_put_that_nobody_waits_for_is_a_race() -> None:
    document = json.loads(mscclpp.write(af.schedule("all_gather", "direct", 2)))
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            kept = [one for one in block["ops"] if one["name"] not in ("signal", "wait")]
            block["ops"] = [*kept, {"name": "nop"}, {**kept[-1], "name": "nop"}]
            block["ops"] = [{"name": "nop"}, *(one for one in block["ops"] if one["name"] != "nop"), {"name": "nop"}]
            block["ops"].append(
                {
                    "name": "copy",
                    "src_buff": [{"type": "o", "index": 1 - gpu["id"], "size": 1}],
                    "dst_buff": [{"type": "o", "index": gpu["id"], "size": 1}],
                }
            )
    with pytest.raises(af.ScheduleError, match="race"):
        mscclpp.read(json.dumps(document))


# Chakra ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize("ranks", [1, *RANKS])
def test_chakra_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    for plan in cases(collective, name, ranks):
        files = chakra.write(plan, 1 << 20)
        assert len(files) == ranks
        check_equivalent(plan, chakra.read(files))


def proto() -> dict[str, type]:
    """The messages of the published et_def.proto that a trace is made of, in the real protobuf library."""
    kinds = descriptor_pb2.FieldDescriptorProto
    published = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, bool, str]) -> None:
        made = published.message_type.add(name=name)
        for field, number, kind, repeated, type_name in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = made.field.add(name=field, number=number, type=kind, label=label)
            if type_name:
                added.type_name = f".ChakraProtoMsg.{type_name}"
            if name == "AttributeProto" and field.endswith("_val"):
                added.oneof_index = 0
        if name == "AttributeProto":
            made.oneof_decl.add(name="value")

    types = published.enum_type.add(name="NodeType")
    for name, number in (("INVALID_NODE", 0), ("COMP_NODE", 4), ("COMM_SEND_NODE", 5), ("COMM_RECV_NODE", 6)):
        types.value.add(name=name, number=number)
    message(
        "AttributeProto",
        ("name", 1, kinds.TYPE_STRING, False, ""),
        ("int32_val", 7, kinds.TYPE_INT32, False, ""),
        ("int64_val", 9, kinds.TYPE_INT64, False, ""),
        ("uint64_val", 13, kinds.TYPE_UINT64, False, ""),
        ("bool_val", 27, kinds.TYPE_BOOL, False, ""),
        ("string_val", 29, kinds.TYPE_STRING, False, ""),
    )
    message(
        "GlobalMetadata",
        ("version", 1, kinds.TYPE_STRING, False, ""),
        ("attr", 2, kinds.TYPE_MESSAGE, True, "AttributeProto"),
    )
    message(
        "Node",
        ("id", 1, kinds.TYPE_UINT64, False, ""),
        ("name", 2, kinds.TYPE_STRING, False, ""),
        ("type", 3, kinds.TYPE_ENUM, False, "NodeType"),
        ("ctrl_deps", 4, kinds.TYPE_UINT64, True, ""),
        ("data_deps", 5, kinds.TYPE_UINT64, True, ""),
        ("attr", 10, kinds.TYPE_MESSAGE, True, "AttributeProto"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(published)
    names = ("AttributeProto", "GlobalMetadata", "Node")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in names
    }


def varint_messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[at : at + length]
        at += length


def test_the_real_library_reads_the_traces() -> None:
    classes = proto()
    plan = af.schedule("all_reduce", "halving_doubling", 6)
    for rank, data in enumerate(chakra.write(plan, 6000)):
        head, *rest = varint_messages(data)
        about = classes["GlobalMetadata"].FromString(head)
        assert about.version == "0.0.4"
        ours = decode(data)[1]
        assert len(rest) == len(ours)
        for raw, node in zip(rest, ours, strict=True):
            real = classes["Node"].FromString(raw)
            assert real.SerializeToString(deterministic=True) == raw  # nothing unknown, nothing out of order
            assert (real.id, real.name, real.type) == (node.id, node.name, node.type)
            assert tuple(real.data_deps) == node.needs and not real.ctrl_deps
            values = {attribute.name: getattr(attribute, attribute.WhichOneof("value")) for attribute in real.attr}
            assert values == node.attributes
            kinds = {attribute.name: attribute.WhichOneof("value") for attribute in real.attr}
            if real.type in (5, 6):  # what ASTRA-sim's feeder asks for, in the types that the older one insists on
                assert {kinds["comm_src"], kinds["comm_dst"], kinds["comm_tag"]} == {"int32_val"}
                assert kinds["comm_size"] == "int64_val" and values["comm_size"] % 1500 == 0
                assert values["comm_src" if real.type == 5 else "comm_dst"] == rank


def test_every_message_has_its_own_tag() -> None:
    plan = af.schedule("all_reduce", "ring", 5)
    sends = [node for data in chakra.write(plan, 1000) for node in decode(data)[1] if node.type == 5]
    assert len({node.attributes["comm_tag"] for node in sends}) == len(sends) == plan.counts.messages
    assert sum(int(node.attributes["comm_size"]) for node in sends) == plan.counts.bytes * 1000


def test_wrong_traces_are_found_wrong() -> None:
    files = chakra.write(af.schedule("all_reduce", "ring", 3), 300)
    with pytest.raises(af.UsageError, match="all ranks"):
        chakra.read(files[:2])
    other = chakra.write(af.schedule("all_reduce", "ring", 3), 600)
    with pytest.raises(af.ScheduleError, match=r"is never received|was never sent"):
        chakra.read([files[0], other[1], files[2]])
    for cut in (1, 7, len(files[0]) - 3):
        with pytest.raises(af.AllfoldError):
            chakra.read([files[0][:cut], *files[1:]])
    with pytest.raises(af.UsageError, match="no data"):
        chakra.write(af.schedule("barrier", "dissemination", 4), 100)


# Perfetto and JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("collective", "name"), [*EVERY, *(("barrier", name) for name in af.algorithms("barrier"))])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_perfetto_comes_back_as_the_same(collective: str, name: str, ranks: int) -> None:
    plan = af.schedule(collective, name, ranks)
    document = json.loads(perfetto.write(plan))
    perfetto.check_trace(document)
    again = perfetto.read(document)
    assert [sorted(move[:5] for move in step) for step in again] == [sorted(move[:5] for move in step) for step in plan]
    check_equivalent(plan, again)
    starts = [row for row in document["traceEvents"] if row["ph"] == "s"]
    assert len(starts) == plan.counts.messages


def test_perfetto_on_the_modelled_clock(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = (
        "export",
        "ring",
        "--ranks",
        "4",
        "--to",
        "perfetto",
        "--topology",
        "one_host",
        "--size",
        "1M",
        "-o",
        str(path),
    )
    status, out, err = call(*words)
    assert status == 0, err
    document = json.loads(path.read_text())
    perfetto.check_trace(document)
    assert sum(row["ph"] == "s" for row in document["traceEvents"]) == 24 and "checked" in out


def test_slices_that_overlap_are_refused() -> None:
    document = perfetto.to_chrome(af.schedule("all_reduce", "ring", 3))
    for row in document["traceEvents"]:
        if row["ph"] == "X":
            row["dur"] *= 2
    with pytest.raises(af.UsageError, match="overlap"):
        perfetto.check_trace(document)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json", "perfetto", "json"])
def test_to_a_file_and_to_the_terminal(form: str, call: Call, tmp_path: Path) -> None:
    status, out, _ = call("export", "ring", "--ranks", "3", "--to", form)
    assert status == 0
    path = tmp_path / "there" / "file"
    status, said, _ = call("export", "ring", "--ranks", "3", "--to", form, "-o", str(path))
    assert status == 0 and path.read_text() == out
    assert said == f"{path}: all_reduce ring(ranks=3) as {form}, {len(out.encode())} bytes, proved\n"


def test_chakra_writes_a_file_a_rank(call: Call, tmp_path: Path) -> None:
    words = ("export", "tree", "--collective", "broadcast", "--ranks", "3", "--to", "chakra", "--size", "3K")
    assert call(*words)[0] == 2
    assert call(*words, "-o", str(tmp_path / "b"))[0] == 0
    plan = chakra.read([(tmp_path / f"b.{rank}.et").read_bytes() for rank in range(3)])
    check_equivalent(af.schedule("broadcast", "tree", 3), plan)


@pytest.mark.parametrize("suffix", ["xml", "json"])
def test_show_and_verify_take_what_was_exported(suffix: str, call: Call, tmp_path: Path) -> None:
    path = str(tmp_path / f"plan.{suffix}")
    form = "msccl-xml" if suffix == "xml" else "json"
    assert call("export", "ring", "--ranks", "4", "--to", form, "-o", path)[0] == 0
    status, out, err = call("verify", path, "--ranks", "4")
    assert status == 0 and out.startswith("all_reduce ring(ranks=4) is right"), err
    assert "24 messages" in call("show", path, "--ranks", "4", "--moves-only")[1]
    status, _, err = call("show", path, "--ranks", "5")
    assert status == 2 and "is a schedule for 4 ranks: say --ranks 4" in err
    assert call("verify", path, "--collective", "broadcast", "--ranks", "4")[0] == 2
    assert call("export", path, "--ranks", "4", "--to", "mscclpp-json")[0] == 0


def test_a_wrong_file_has_exit_status_one(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "wrong.xml"
    path.write_text(xml(gpu(0, block(1, 1, "r i0 o0", "s i0 o0")), gpu(1, block(0, 0, "r i0 o0", "s i0 o0"))))
    status, _, err = call("verify", str(path), "--ranks", "2")
    assert status == 1 and "deadlock" in err
    assert call("verify", str(tmp_path / "missing.xml"), "--ranks", "2")[0] == 2
    path.write_text("<algo")
    status, _, err = call("verify", str(path), "--ranks", "2")
    assert status == 2 and f"{path}: this is not XML" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "msccl"), "did you mean 'msccl-xml'?"),
        (("--to", "json", "--size", "1M"), "--size does not concern --to json"),
        (("--to", "perfetto", "--size", "1M"), "--size needs --topology"),
        (("--to", "perfetto", "--segments", "2"), "--segments needs --topology"),
        (("--to", "json", "--segments", "2"), "--segments does not concern --to json"),
        (("--to", "chakra", "--size", "0", "-o", "x"), "at least 1 byte"),
        (("--to", "chakra", "--size", "900000000G", "-o", "x"), "at most 2**56"),
        (("--to", "chakra", "-o", "."), "expected a prefix"),
        (("--to", "chakra", "-o", ".."), "expected a prefix"),
        (("--to", "chakra", "-o", "/"), "expected a prefix"),
        ((), "--to"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], says: str, call: Call) -> None:
    status, _, err = call("export", "ring", "--ranks", "3", *words)
    assert status == 2 and says in err


def test_the_example_of_the_help_is_real(call: Call) -> None:
    status, out, _ = call("export", "--help")
    assert status == 0
    example = out.split("example:\n")[1].split("\nexit status")[0]
    for part in example.split("  $ allfold ")[1:]:
        words, *quoted = part.rstrip().splitlines()
        if quoted:
            assert_printed([line[2:] for line in quoted], call(*words.split())[1], words)


def test_the_output_in_the_document_is_real(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    count = 0
    for part in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for command in part.split("$ allfold ")[1:]:
            words, *quoted = command.splitlines()
            _, out, err = call(*words.split())
            assert_printed(quoted, out + err, words)
            count += 1
    assert count >= 6
