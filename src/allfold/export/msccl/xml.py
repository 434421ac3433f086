"""MSCCL XML as data: what a file says, and what the MSCCL runtimes accept of it.

An algorithm has one GPU per rank, a GPU has thread blocks, a thread block has steps that it runs one after the other. A
thread block sends to at most one peer and receives from at most one, over one channel; a step may wait for a step of
another thread block of the same GPU. The limits are those of msccl-executor-nccl (`msccl_parser.cc`, `msccl_struct.h`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

from ...errors import UsageError

_OURS = "all_reduce", "reduce", "broadcast", "gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"
COLLECTIVES = {ours.replace("_", ""): ours for ours in _OURS}
"""MSCCL's names of the collectives, and ours."""

PROTOCOLS = {"Simple": (2, 2 * 2**20), "LL": (8, 32 * 2**10), "LL128": (8, 576_000)}
"""By protocol: the messages that a connection holds before they are received, and the bytes of one. With NCCL's defaults: 8
buffers, of which Simple takes 4 per message."""

SENDS, RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs")
TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
BUFFERS = ("i", "o", "s")

MOST_STEPS = 64  # per thread block
MOST_COUNT = 71  # chunks per step
MOST_CHANNELS = 32
MOST_BLOCKS_A_CHANNEL = 32
MOST_BLOCKS = 128  # a dependency names a thread block in a signed byte
MOST_REDUCTIONS = 16  # in a row into one chunk: the runtime merges them, and has room for this many sources
MOST_OFFSET = 2**15 - 1
MOST_NODES = 4096  # elements that the parser stores for one GPU
MOST_CHILDREN = 1024
MOST_NAME = 254

_MOST_BYTES, _MOST_ELEMENTS = 64 * 2**20, 1_000_000  # limits for a file that is read here


@dataclass(slots=True)  # not frozen: there are tens of thousands, and frozen ones take four times as long to make
class XmlStep:
    """One step of a thread block. `waits` is the thread block, and its step, that must be done before, if any."""

    type: str
    source: tuple[str, int]
    destination: tuple[str, int]
    count: int = 1
    waits: tuple[int, int] | None = None
    awaited: bool = False


@dataclass(frozen=True)
class XmlBlock:
    """A thread block; −1 stands for no peer."""

    send: int
    receive: int
    channel: int
    steps: tuple[XmlStep, ...]


@dataclass(frozen=True)
class XmlGpu:
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[XmlBlock, ...]

    def chunks(self, buffer: str) -> int:
        return {"i": self.input_chunks, "o": self.output_chunks, "s": self.scratch_chunks}[buffer]


@dataclass(frozen=True)
class XmlAlgorithm:
    name: str
    collective: str
    """Our name, not MSCCL's."""
    protocol: str
    channels: int
    chunks_per_loop: int
    in_place: bool
    out_of_place: bool
    gpus: tuple[XmlGpu, ...]
    least_bytes: int = 0
    most_bytes: int = 0

    @property
    def chunks_a_message(self) -> int:
        """Chunks per message for the largest buffer allowed; a step of more chunks is sent as several messages."""
        if not self.most_bytes:
            return 1
        chunk = -(-self.most_bytes // self.chunks_per_loop)
        return max(1, min(MOST_COUNT, PROTOCOLS[self.protocol][1] // chunk))

    def to_xml(self) -> str:
        """The file, for a name that `check_limits` accepts.

        No XML declaration and no tabs: the runtime's parser accepts neither.
        """
        word = next(word for word, ours in COLLECTIVES.items() if ours == self.collective)
        lines = [
            f'<algo name="{self.name}" proto="{self.protocol}" nchannels="{self.channels}" '
            f'nchunksperloop="{self.chunks_per_loop}" ngpus="{len(self.gpus)}" coll="{word}" '
            f'inplace="{int(self.in_place)}" outofplace="{int(self.out_of_place)}" '
            f'minBytes="{self.least_bytes}" maxBytes="{self.most_bytes}">'
        ]
        for rank, gpu in enumerate(self.gpus):
            lines.append(
                f'  <gpu id="{rank}" i_chunks="{gpu.input_chunks}" o_chunks="{gpu.output_chunks}" '
                f's_chunks="{gpu.scratch_chunks}">'
            )
            for number, block in enumerate(gpu.blocks):
                lines.append(
                    f'    <tb id="{number}" send="{block.send}" recv="{block.receive}" chan="{block.channel}">'
                )
                for position, step in enumerate(block.steps):
                    depid, deps = step.waits or (-1, -1)
                    lines.append(
                        f'      <step s="{position}" type="{step.type}" srcbuf="{step.source[0]}" '
                        f'srcoff="{step.source[1]}" dstbuf="{step.destination[0]}" dstoff="{step.destination[1]}" '
                        f'cnt="{step.count}" depid="{depid}" deps="{deps}" hasdep="{int(step.awaited)}"/>'
                    )
                lines.append("    </tb>")
            lines.append("  </gpu>")
        return "\n".join([*lines, "</algo>", ""])


# What the runtime accepts ---------------------------------------------------------------------------------------------


def check_limits(algorithm: XmlAlgorithm) -> None:
    """Raise `UsageError` with the reason if the runtime would reject this file, or misread it."""

    def refuse(reason: str) -> NoReturn:
        raise UsageError(f"{algorithm.name} cannot be written as MSCCL XML: {reason}")

    if len(algorithm.name) > MOST_NAME or not algorithm.name.isprintable() or {*algorithm.name} & {*"\"'<>&"}:
        refuse(f"its name must be at most {MOST_NAME} plain characters, and is {algorithm.name!r}")
    if not 1 <= algorithm.channels <= MOST_CHANNELS:
        refuse(f"it needs {algorithm.channels} channels, and NCCL has {MOST_CHANNELS}")
    for rank, gpu in enumerate(algorithm.gpus):
        nodes = 1 + len(algorithm.gpus) + len(gpu.blocks) + sum(len(block.steps) for block in gpu.blocks)
        if nodes > MOST_NODES or len(gpu.blocks) > MOST_CHILDREN or len(algorithm.gpus) > MOST_CHILDREN:
            refuse(f"rank {rank} has {nodes} elements, and the parser keeps {MOST_NODES}")
        if len(gpu.blocks) > MOST_BLOCKS:
            refuse(f"rank {rank} needs {len(gpu.blocks)} thread blocks, and a dependency can name {MOST_BLOCKS}")
        for side in ("send", "receive"):
            peers = [(block.channel, getattr(block, side)) for block in gpu.blocks if getattr(block, side) >= 0]
            if len(set(peers)) < len(peers):
                refuse(f"rank {rank} has two thread blocks that {side} over one connection")
            for channel in {channel for channel, _ in peers}:
                many = sum(one == channel for one, _ in peers)
                if many > MOST_BLOCKS_A_CHANNEL:
                    refuse(
                        f"rank {rank} has {many} peers to {side} on a channel, and at most {MOST_BLOCKS_A_CHANNEL} fit"
                    )
        for number, block in enumerate(gpu.blocks):
            if len(block.steps) > MOST_STEPS:
                peer = block.send if block.send >= 0 else block.receive
                refuse(
                    f"thread block {number} of rank {rank} (peer {peer}) has {len(block.steps)} steps, and at most "
                    f"{MOST_STEPS} are taken"
                )
            _check_steps(gpu, rank, number, block, refuse)


def _check_steps(gpu: XmlGpu, rank: int, number: int, block: XmlBlock, refuse: object) -> None:
    assert callable(refuse)
    chained = False
    row = 0  # of reductions that the runtime would merge
    for position, (before, step) in enumerate(zip((None, *block.steps), block.steps, strict=False)):
        same = before is not None and (before.destination, before.source[0]) == (step.destination, step.source[0])
        row = (row + 1 if same and step.waits is None else 1) if step.type == "re" else 0
        if row > MOST_REDUCTIONS:
            refuse(f"thread block {number} of rank {rank} has {row} reductions in a row, and {MOST_REDUCTIONS} fit")
        where = f"step {position} of thread block {number} of rank {rank}"
        if step.type == "nop":
            chained = chained or step.waits is not None
            continue
        if chained and step.waits is None:
            refuse(f"{where} follows steps that only wait, and must wait for something itself")
        chained = False
        if not 1 <= step.count <= MOST_COUNT:
            refuse(f"{where} handles {step.count} chunks, and at most {MOST_COUNT} are taken")
        for (buffer, offset), used in (
            (step.source, step.type in ("s", "rrs", "rrc", "rrcs", "cpy", "re")),
            (step.destination, step.type not in ("s", "rrs")),
        ):
            if used and not 0 <= offset <= min(gpu.chunks(buffer), MOST_OFFSET + 1) - step.count:
                refuse(f"{where} names chunk {offset + step.count - 1} of buffer {buffer}, which does not exist")


# Reading --------------------------------------------------------------------------------------------------------------


def parse(text: str | bytes) -> XmlAlgorithm:
    """The algorithm in an XML file. Anything that is not an MSCCL algorithm raises a `UsageError`."""
    if len(text) > _MOST_BYTES:
        raise UsageError(f"this MSCCL XML has {len(text)} bytes; at most {_MOST_BYTES} are read")
    root = _tree(text)
    if root.name != "algo":
        raise UsageError(f"this is not MSCCL XML: it begins with <{root.name}>, expected <algo>")
    word = root.text("coll")
    if word not in COLLECTIVES:
        raise UsageError(f"this MSCCL XML is for the collective {word!r}; known here: {', '.join(COLLECTIVES)}")
    protocol = root.attributes.get("proto", "Simple")
    if protocol not in PROTOCOLS:
        raise UsageError(f"this MSCCL XML has the protocol {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    ranks = root.number("ngpus", least=1, most=2**16)
    found = {gpu.number("id", least=0, most=ranks - 1): gpu for gpu in root.children if gpu.name == "gpu"}
    if len(found) != ranks or sum(gpu.name == "gpu" for gpu in root.children) != ranks:
        raise UsageError(f"this MSCCL XML says ngpus={ranks} and describes the GPUs {sorted(found)}")
    in_place = bool(root.number("inplace", 0, 1, default=0))
    return XmlAlgorithm(
        name=root.attributes.get("name", "algorithm") or "algorithm",
        collective=COLLECTIVES[word],
        protocol=protocol,
        channels=root.number("nchannels", 1, 2**15),
        chunks_per_loop=root.number("nchunksperloop", 1, 2**15),
        in_place=in_place,
        out_of_place=bool(root.number("outofplace", 0, 1, default=int(not in_place))),
        gpus=tuple(_gpu(found[rank], ranks) for rank in range(ranks)),
        least_bytes=root.number("minBytes", 0, 2**63, default=0),
        most_bytes=root.number("maxBytes", 0, 2**63, default=0),
    )


class _Element:
    __slots__ = ("attributes", "children", "line", "name")

    def __init__(self, name: str, attributes: dict[str, str], line: int) -> None:
        self.name, self.attributes, self.line = name, attributes, line
        self.children: list[_Element] = []

    def text(self, key: str) -> str:
        text = self.attributes.get(key)
        if text is None:
            raise UsageError(f"this MSCCL XML: <{self.name}> in line {self.line} has no {key}")
        return text

    def number(self, key: str, least: int, most: int, default: int | None = None) -> int:
        text = self.attributes.get(key)
        if text is None:
            if default is not None:
                return default
            text = self.text(key)
        number = _whole(text)
        if number is None or not least <= number <= most:
            raise UsageError(
                f"this MSCCL XML: {key}={text!r} of <{self.name}> in line {self.line}, expected {least} to {most}"
            )
        return number


@lru_cache(maxsize=2**12)
def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None


def _tree(text: str | bytes) -> _Element:
    """The elements. Only elements and comments are accepted: no document type, so no entities to expand or fetch."""
    top = _Element("", {}, 0)
    open_elements = [top]
    count = 0
    parser = expat.ParserCreate()

    def refuse(*_: object) -> NoReturn:
        raise UsageError("this MSCCL XML has a document type; only elements are read")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS or len(open_elements) > 8:
            raise UsageError("this MSCCL XML has too many elements, or too deep ones")
        element = _Element(name, attributes, parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: open_elements.pop()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise UsageError(f"this is not XML: {error}") from None
    except (UnicodeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"this is not XML: {error}") from None
    return top.children[0]


def _gpu(element: _Element, ranks: int) -> XmlGpu:
    blocks = [child for child in element.children if child.name == "tb"]
    found = {block.number("id", 0, 2**15): block for block in blocks}
    if len(found) != len(blocks) or sorted(found) != list(range(len(blocks))):
        raise UsageError(f"this MSCCL XML: the thread blocks in line {element.line} must be numbered 0, 1, 2, …")
    inputs, outputs, scratch = (element.number(key, 0, 2**20) for key in ("i_chunks", "o_chunks", "s_chunks"))
    rank = element.number("id", 0, ranks - 1)
    return XmlGpu(
        inputs,
        outputs,
        scratch,
        tuple(_block(found[number], rank, ranks) for number in range(len(blocks))),
    )


def _block(element: _Element, rank: int, ranks: int) -> XmlBlock:
    send, receive = (element.number(key, -1, ranks - 1) for key in ("send", "recv"))
    if rank in (send, receive):
        raise UsageError(f"this MSCCL XML: the thread block in line {element.line} has its own GPU as a peer")
    steps = [child for child in element.children if child.name == "step"]
    for position, step in enumerate(steps):
        if step.number("s", 0, 2**20) != position:
            raise UsageError(
                f"this MSCCL XML: the step in line {step.line} has s={step.text('s')}, expected {position}"
            )
    return XmlBlock(
        send, receive, element.number("chan", 0, 2**15), tuple(_step(step, send, receive) for step in steps)
    )


def _step(element: _Element, send: int, receive: int) -> XmlStep:
    kind = element.text("type")
    if kind not in TYPES:
        raise UsageError(f"this MSCCL XML: type {kind!r} in line {element.line}, expected one of {', '.join(TYPES)}")
    if (kind in SENDS and send < 0) or (kind in RECEIVES and receive < 0):
        raise UsageError(f"this MSCCL XML: the step {kind} in line {element.line} has no peer in its thread block")
    ends = []
    for name, offset in (("srcbuf", "srcoff"), ("dstbuf", "dstoff")):
        buffer = element.text(name)
        if buffer not in BUFFERS:
            raise UsageError(f"this MSCCL XML: {name}={buffer!r} in line {element.line}, expected i, o or s")
        ends.append((buffer, element.number(offset, -1, MOST_OFFSET)))
    depid, deps = element.number("depid", -1, 2**15), element.number("deps", -1, 2**20)
    if depid >= 0 and deps < 0:
        raise UsageError(
            f"this MSCCL XML: the step in line {element.line} waits for thread block {depid}, but for no step"
        )
    return XmlStep(
        type=kind,
        source=ends[0],
        destination=ends[1],
        count=element.number("cnt", 0, 2**15, default=1),
        waits=(depid, deps) if depid >= 0 else None,
        awaited=bool(element.number("hasdep", 0, 1, default=0)),
    )
