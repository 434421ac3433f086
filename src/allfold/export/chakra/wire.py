"""The wire format of Chakra execution traces.

A file is a sequence of protocol buffers (`et_def.proto` of mlcommons/chakra), each preceded by its length as a varint:
first a `GlobalMetadata`, then the `Node`s. That is simple enough to implement here; the tests read it with the real
library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import UsageError

COMP, SEND, RECEIVE = 4, 5, 6  # NodeType of et_def.proto
VERSION = "0.0.4"

Value = int | bool | str


@dataclass(frozen=True)
class Node:
    """One node of a trace: what it does, and the nodes of the same trace that it comes after."""

    id: int
    name: str
    type: int
    needs: tuple[int, ...]
    attributes: dict[str, Value]


def encode(about: dict[str, Value], trace: list[Node]) -> bytes:
    """A trace as the bytes of its file."""
    head = _bytes(1, VERSION.encode()) + b"".join(_bytes(2, _attribute(*one)) for one in about.items())
    return b"".join(_varint(len(part)) + part for part in (head, *map(_node, trace)))


def _node(node: Node) -> bytes:
    packed = b"".join(map(_varint, node.needs))
    return b"".join(
        (
            _number(1, node.id),
            _bytes(2, node.name.encode()),
            _number(3, node.type),
            _bytes(5, packed) if packed else b"",
            *(_bytes(10, _attribute(*one)) for one in node.attributes.items()),
        )
    )


def _attribute(name: str, value: Value) -> bytes:
    """An AttributeProto. Ranks and tags are int32, sizes uint64 and other numbers int64: older feeders require it."""
    if isinstance(value, str):
        content = _bytes(29, value.encode())
    elif isinstance(value, bool):
        content = _varint(27 << 3) + _varint(int(value))
    elif name in ("comm_src", "comm_dst", "comm_tag"):
        content = _varint(7 << 3) + _varint(value)
    else:
        content = _varint((13 if name == "tensor_size" else 9) << 3) + _varint(value)
    return _bytes(1, name.encode()) + content


def _number(key: int, value: int) -> bytes:
    return _varint(key << 3) + _varint(value) if value else b""


def _bytes(key: int, value: bytes) -> bytes:
    return _varint(key << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


# Reading it back ------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> tuple[dict[str, Value], list[Node]]:
    """The metadata and the nodes of a file that `encode` wrote. Anything else raises a `UsageError`."""
    try:
        head, *rest = list(_messages(data))
        about = dict(_read_attribute(part) for key, part in _fields(head) if key == 2 and isinstance(part, bytes))
        return about, [_read_node(part) for part in rest]
    except (IndexError, KeyError, ValueError) as error:
        raise UsageError(f"this is not a Chakra trace as it is written here: {error}") from None


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _read_varint(data, at)
        if at + length > len(data):
            raise ValueError("the file ends within a message")
        yield data[at : at + length]
        at += length


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2 and at + value <= len(data):
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"a field of kind {tag & 7}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _read_attribute(data: bytes) -> tuple[str, Value]:
    fields = dict(_fields(data))
    name = fields.pop(1, b"")
    if not isinstance(name, bytes) or len(fields) != 1:
        raise ValueError("an attribute without a name or a value")
    ((key, value),) = fields.items()
    if isinstance(value, bytes):
        return name.decode(), value.decode()
    return name.decode(), bool(value) if key == 27 else value


def _read_node(data: bytes) -> Node:
    number = type_ = 0
    name = ""
    needs: list[int] = []
    attributes: dict[str, Value] = {}
    for key, value in _fields(data):
        if key == 1 and isinstance(value, int):
            number = value
        elif key == 2 and isinstance(value, bytes):
            name = value.decode()
        elif key == 3 and isinstance(value, int):
            type_ = value
        elif key == 5 and isinstance(value, bytes):
            at = 0
            while at < len(value):
                need, at = _read_varint(value, at)
                needs.append(need)
        elif key == 10 and isinstance(value, bytes):
            attributes.update([_read_attribute(value)])
    return Node(number, name, type_, tuple(needs), attributes)
