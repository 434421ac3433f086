"""Chakra traces: the real protobuf library reads them, and they come back as the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from each import each
from export_cases import EVERY, cases, grid
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import allfold as af
from allfold.export.chakra import chakra
from allfold.export.chakra.wire import decode
from allfold.export.equivalence import check_equivalent


@each(("collective", "name", "ranks"), grid(EVERY, (3,), (1, 2, 4, 5, 8)))
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


@pytest.mark.parametrize("size", [1001, 999, 7])
def test_messages_add_up_to_the_bytes_of_the_buffer(size: int) -> None:
    """Rank 0 sends every chunk once in a ring all_gather but that of its right neighbour; no message is rounded up."""
    plan = af.schedule("all_gather", "ring", 3)
    sends = [node for data in chakra.write(plan, size) for node in decode(data)[1] if node.type == 5]
    assert sum(int(node.attributes["comm_size"]) for node in sends) == 2 * size


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
