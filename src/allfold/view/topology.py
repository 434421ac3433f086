"""Drawings of a machine: as a tree, as boxes of text, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from ..price.topology.this_machine import Cache, Core, Machine, MemoryNode
from ..wording import ranges
from .svg_elements import (
    ACCENT_GROUND,
    EMPTY,
    FONT,
    GOOD_GROUND,
    PAPER,
    QUIET,
    RULE,
    SENTENCE,
    SURFACE,
    element,
    picture,
    text,
    width_of,
)

_Tree = tuple[str, list["_Tree"]]


def amount(size: int) -> str:
    """`2 MiB`, `23.5 GiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B" if size else "unknown size"


def rate(speed: float | None) -> str:
    return "speed unknown" if speed is None else f"{speed * 8 / 1e9:g} Gb/s"


def tree_of(machine: Machine) -> Iterator[str]:
    """The machine as a tree, one line per branch. Cores that are alike share one line."""
    branches: list[_Tree] = []
    for package in sorted({core.package for core in machine.cores}):
        mine = [core for core in machine.cores if core.package == package]
        branches.append(
            (f"processor {package}: {machine.processor}", [_node(machine, *pair) for pair in by_node(machine, mine)])
        )
    if machine.limit is not None:
        branches.append((f"container: at most {machine.limit:g} CPUs of time", []))
    branches += [
        (f"GPU {gpu.number}: {gpu.name}", [(_reached(gpu.links), [])] if gpu.links else []) for gpu in machine.gpus
    ]
    branches += [(f"network card {card.name}: {card.kind}, {rate(card.speed)}", []) for card in machine.cards]
    branches += [(sentence, []) for sentence in machine.absent]
    yield "this machine"
    yield from _lines(branches, "")


def by_node(machine: Machine, cores: Sequence[Core]) -> list[tuple[MemoryNode | None, list[Core]]]:
    """Cores by the memory node that is nearest to them."""
    near = [(node, [core for core in cores if core.cpus[0] in node.cpus]) for node in machine.nodes]
    found: list[tuple[MemoryNode | None, list[Core]]] = [(node, mine) for node, mine in near if mine]
    return found or [(None, list(cores))]


def _node(machine: Machine, node: MemoryNode | None, cores: list[Core]) -> _Tree:
    cpus = {cpu for core in cores for cpu in core.cpus}
    shared = [cache for cache in machine.caches if len(own_cores(cache, cores)) > 1]
    own = [cache for cache in machine.caches if len(own_cores(cache, cores)) == 1 and set(cache.cpus) <= cpus]
    below: list[_Tree] = [
        (f"L{cache.level} {amount(cache.size)}, shared by CPUs {ranges(list(cache.cpus))}", [])
        for cache in sorted(shared, key=lambda cache: -cache.level)
    ]
    kinds: dict[str, list[Core]] = {}
    for core in cores:
        mine = sorted((cache for cache in own if set(cache.cpus) & set(core.cpus)), key=lambda cache: -cache.level)
        words = "".join(f", L{cache.level} {amount(cache.size)}" for cache in mine)
        threads = f", {len(core.cpus)} hardware threads" if len(core.cpus) > 1 else ""
        kinds.setdefault(threads + words, []).append(core)
    for words, alike in kinds.items():
        numbers = ranges([cpu for core in alike for cpu in core.cpus])
        many = f"{len(alike)} cores" if len(alike) > 1 else "1 core"
        below.append((f"{many}, CPUs {numbers}{words}{' each' if len(alike) > 1 and words else ''}", []))
    return _node_title(machine, node), below


def _node_title(machine: Machine, node: MemoryNode | None) -> str:
    return f"memory, {amount(machine.memory)}" if node is None else f"memory node {node.number}, {amount(node.memory)}"


def own_cores(cache: Cache, cores: Sequence[Core]) -> list[Core]:
    """The cores among these that use the cache."""
    return [core for core in cores if set(core.cpus) & set(cache.cpus)]


def _lines(branches: list[_Tree], before: str) -> Iterator[str]:
    for place, (words, below) in enumerate(branches):
        last = place == len(branches) - 1
        yield f"{before}{'└─ ' if last else '├─ '}{words}"
        yield from _lines(below, before + ("   " if last else "│  "))


def _reached(links: dict[int, str]) -> str:
    ways: dict[str, list[int]] = {}
    for other, word in links.items():
        ways.setdefault(word, []).append(other)
    return "reaches " + ", ".join(f"GPU {ranges(others)} by {word}" for word, others in ways.items())


# Boxes ----------------------------------------------------------------------------------------------------------------


def drawing_as_text(machine: Machine, columns: int) -> list[str]:
    """Memory nodes as boxes that contain their cores, GPUs and network cards below, the shared bus in between."""
    inner = columns - 4
    lines: list[str] = []
    for node, cores in by_node(machine, machine.cores):
        title = f" {_node_title(machine, node)} "
        body = [*_shared_lines(machine, cores, inner), *_core_lines(machine, cores, inner)]
        lines.append(f"┌─{title}{'─' * max(0, columns - len(title) - 3)}┐")
        lines += [f"│ {line.ljust(inner)} │" for line in body]
        lines.append(f"└{'─' * (columns - 2)}┘")
    devices = [[f"GPU {gpu.number}", gpu.name[:18]] for gpu in machine.gpus]
    devices += [[card.name[:18], rate(card.speed)] for card in machine.cards]
    if devices:
        lines.append("  │".ljust(columns))
        lines += ["  " + line for line in _boxes(devices, columns - 2)]
    return [line.rstrip() for line in lines]


def _shared_lines(machine: Machine, cores: Sequence[Core], inner: int) -> list[str]:
    shared = [cache for cache in machine.caches if len(own_cores(cache, cores)) > 1]
    return [
        f" L{cache.level} {amount(cache.size)} ".center(inner, "░")
        for cache in sorted(shared, key=lambda one: -one.level)
    ]


def _core_lines(machine: Machine, cores: Sequence[Core], inner: int) -> Iterator[str]:
    alike, boxes = _core_boxes(machine, cores)
    yield from [alike] if alike else []
    yield from _boxes(boxes, inner)


def _core_boxes(machine: Machine, cores: Sequence[Core]) -> tuple[str, list[list[str]]]:
    """The text in the box of every core; if there are many, what they have in common is said once, before them."""
    boxes = [_core_box(machine, core) for core in cores]
    if len(boxes) <= 8 or len({tuple(box[1:]) for box in boxes}) > 1:
        return "", boxes
    return f"{len(boxes)} cores, by CPU; each: {', '.join(boxes[0][1:])}", [[ranges(list(core.cpus))] for core in cores]


def _core_box(machine: Machine, core: Core) -> list[str]:
    own = [cache for cache in machine.caches if set(cache.cpus) <= set(core.cpus)]
    caches = [f"L{cache.level} {amount(cache.size)}" for cache in sorted(own, key=lambda cache: -cache.level)]
    return [f"core, CPU {ranges(list(core.cpus))}", *caches]


def _boxes(texts: Sequence[Sequence[str]], columns: int) -> Iterator[str]:
    """Boxes side by side, as many as fit in a row."""
    if not texts:
        return
    wide = max(len(line) for text in texts for line in text) + 4
    each = max(1, (columns + 1) // (wide + 1))
    for start in range(0, len(texts), each):
        row = texts[start : start + each]
        high = max(len(text) for text in row)
        yield " ".join(f"┌{'─' * (wide - 2)}┐" for _ in row)
        for line in range(high):
            yield " ".join(f"│ {(text[line] if line < len(text) else '').ljust(wide - 4)} │" for text in row)
        yield " ".join(f"└{'─' * (wide - 2)}┘" for _ in row)


def drawing_as_svg(machine: Machine) -> str:
    """The same boxes as a picture."""
    wide, gap = 760, 12
    parts: list[str] = []
    y = 52
    for node, cores in by_node(machine, machine.cores):
        alike, texts = _core_boxes(machine, cores)
        core_wide = max([78 if alike else 150, *(_room(line) for lines in texts for line in lines)])
        each = max(1, (wide - 3 * gap) // (core_wide + gap))
        shared = [cache for cache in machine.caches if len(own_cores(cache, cores)) > 1]
        core_high = max(map(len, texts), default=1) * 18 + 14
        rows = -(-len(texts) // each)
        high = 30 + len(shared) * 30 + (24 if alike else 0) + rows * (core_high + gap) + 4
        parts += _box(gap, y, wide - 2 * gap, high, PAPER, [_node_title(machine, node)], bold=True)
        at = y + 30
        for cache in sorted(shared, key=lambda one: -one.level):
            parts += _box(2 * gap, at, wide - 4 * gap, 24, ACCENT_GROUND, [f"L{cache.level} {amount(cache.size)}"])
            at += 30
        if alike:
            parts.append(text(alike, x=2 * gap, y=at + 14))
            at += 24
        for place, lines in enumerate(texts):
            x = 2 * gap + place % each * (core_wide + gap)
            parts += _box(x, at + place // each * (core_high + gap), core_wide, core_high, SURFACE, lines)
        y += high + gap
    devices = [([f"GPU {gpu.number}", gpu.name], GOOD_GROUND) for gpu in machine.gpus]
    devices += [([card.name, f"{card.kind}, {rate(card.speed)}"], EMPTY) for card in machine.cards]
    across = (wide - 4 * gap) // 3
    for place, (lines, color) in enumerate(devices):
        parts += _box(gap + place % 3 * (across + gap), y + place // 3 * (50 + gap), across, 50, color, lines)
    y += -(-len(devices) // 3) * (50 + gap)
    for sentence in machine.absent:
        parts.append(text(sentence, x=gap, y=y + 14, fill=QUIET))
        y += 22
    ground = element("rect", width=wide, height=y + gap, fill=SURFACE)
    heading = text(machine.processor, x=gap, y=32, font_size=SENTENCE, font_weight="600")
    return picture(wide, y + gap, [ground, heading, *parts], **FONT)


def _room(line: str) -> int:
    """The width that a box needs for a line; system fonts are wider than Helvetica."""
    return ceil(1.2 * width_of(line, 13)) + 20


def _box(x: int, y: int, wide: int, high: int, fill: str, lines: Sequence[str], bold: bool = False) -> list[str]:
    top = y + min(19, (high + 10) // 2)  # a low box has its line in the middle
    return [
        element("rect", x=x, y=y, width=wide, height=high, rx=6, fill=fill, stroke=RULE),
        *(
            text(line, x=x + 10, y=top + 18 * place, font_weight="600" if bold and place == 0 else None)
            for place, line in enumerate(lines)
        ),
    ]
