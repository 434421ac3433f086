"""Plain data from a pickle, without executing it.

A pickle is a program for a small machine. This machine has only the instructions that build plain data: dictionaries,
lists, tuples, strings, numbers, None. There is no instruction here that imports, calls or builds anything else, so nothing
in a file can be executed, whatever it holds. Python's own unpickler, even with `find_class` overridden, can be made to
reserve gigabytes by a pickle of twenty bytes; here, an instruction takes about a hundred bytes beyond those that it has in
the file, and the number of instructions is limited.
"""

from __future__ import annotations

import struct
from typing import Any

from ..documents import DocumentError

_MARK = object()
_CODES_THAT_RUN = {
    b"c": "GLOBAL",
    b"R": "REDUCE",
    b"b": "BUILD",
    b"i": "INST",
    b"o": "OBJ",
    b"\x81": "NEWOBJ",
    b"\x92": "NEWOBJ_EX",
    b"\x93": "STACK_GLOBAL",
    b"P": "PERSID",
    b"Q": "BINPERSID",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
}
_MOST_DIGITS = 64  # bytes of a whole number
_MOST_INSTRUCTIONS = 16_000_000  # a record of 20,000 calls with deep stacks has 5 million


def read_pickle(data: bytes) -> Any:
    """The value in a pickle that holds plain data only. Raises `DocumentError` for any other."""
    try:
        return _run(data)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise DocumentError("this pickle is damaged or cut off") from None


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at, size = 0, len(data)

    def pop_mark() -> list[Any]:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    def pop() -> Any:
        if marks and len(stack) <= marks[-1]:
            raise IndexError
        return stack.pop()

    for _ in range(_MOST_INSTRUCTIONS):
        code = data[at]
        at += 1
        if code == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif code == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif code == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
            at += 4
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif code == 0x28:  # MARK
            marks.append(len(stack))
        elif code == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif code == 0x4D:  # BININT2
            stack.append(struct.unpack_from("<H", data, at)[0])
            at += 2
        elif code == 0x4A:  # BININT
            stack.append(struct.unpack_from("<i", data, at)[0])
            at += 4
        elif code == 0x8A:  # LONG1
            length = data[at]
            if length > _MOST_DIGITS:
                raise DocumentError("a number in this pickle is too long")
            stack.append(int.from_bytes(data[at + 1 : at + 1 + length], "little", signed=True))
            at += 1 + length
        elif code in (0x58, 0x8C, 0x8D, 0x43, 0x42):  # strings and bytes, after their length
            width = {0x58: 4, 0x8C: 1, 0x8D: 8, 0x43: 1, 0x42: 4}[code]
            length = int.from_bytes(data[at : at + width], "little")
            at += width
            if length > size - at:
                raise IndexError
            piece = data[at : at + length]
            stack.append(piece.decode("utf-8", "surrogatepass") if code in (0x58, 0x8C, 0x8D) else piece)
            at += length
        elif code == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code == 0x75:  # SETITEMS
            _set_items(pop_mark(), stack[-1])
        elif code == 0x73:  # SETITEM
            value, key = pop(), pop()
            _set_items([key, value], stack[-1])
        elif code == 0x65:  # APPENDS
            items = pop_mark()
            _list(stack[-1]).extend(items)
        elif code == 0x61:  # APPEND
            value = pop()
            _list(stack[-1]).append(value)
        elif code in (0x85, 0x86, 0x87):  # TUPLE1 to TUPLE3
            items = [pop() for _ in range(code - 0x84)]
            stack.append(tuple(reversed(items)))
        elif code == 0x74:  # TUPLE
            stack.append(tuple(pop_mark()))
        elif code == 0x6C:  # LIST
            stack.append(pop_mark())
        elif code == 0x64:  # DICT
            items = pop_mark()
            stack.append({})
            _set_items(items, stack[-1])
        elif code == 0x4E:  # NONE
            stack.append(None)
        elif code in (0x88, 0x89):  # NEWTRUE, NEWFALSE
            stack.append(code == 0x88)
        elif code == 0x47:  # BINFLOAT
            stack.append(struct.unpack_from(">d", data, at)[0])
            at += 8
        elif code == 0x80:  # PROTO
            if data[at] > 5:
                raise DocumentError(f"this pickle has protocol {data[at]}; expected at most 5")
            at += 1
        elif code == 0x95:  # FRAME
            at += 8
        elif code == 0x30:  # POP
            pop()
        elif code == 0x2E:  # STOP
            return pop()
        else:
            name = bytes([code])
            if name in _CODES_THAT_RUN:
                raise DocumentError(
                    f"this pickle has the instruction {_CODES_THAT_RUN[name]} at byte {at - 1}, with which a pickle can "
                    "run code; a flight record has none, and nothing in this file was executed"
                )
            raise DocumentError(f"this is not a pickle of plain data: instruction 0x{code:02x} at byte {at - 1}")
    raise DocumentError(f"this pickle has more than {_MOST_INSTRUCTIONS:,} instructions")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DocumentError("this pickle is damaged: it appends to something that is not a list")
    return value


def _set_items(items: list[Any], into: Any) -> None:
    if type(into) is not dict or len(items) % 2:
        raise DocumentError("this pickle is damaged: it sets an item of something that is not a dictionary")
    for place in range(0, len(items), 2):
        key = items[place]
        if type(key) not in (str, int):  # hashing nested tuples can take forever
            raise DocumentError(f"this pickle has a key of type {type(key).__name__}; expected a text or a number")
        into[key] = items[place + 1]
