"""An explanation as a page: one HTML file that loads nothing and runs nothing, with the calls of every rank side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from ..view.html import built
from ..wording import counted, name_ranks
from .align import differences, line_of
from .calls import CallFacts, RunFacts
from .findings import Finding, summary

_MOST_COLUMNS = 40
_BEFORE = 8  # calls shown before the one that differs
_MOST_ROWS = 256
_MOST_FRAMES = 8
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 ui-sans-serif, system-ui, -apple-system,
  "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1320px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 20px; line-height: 1.4; font-weight: 600; margin: 0; max-width: 62em; overflow-wrap: anywhere; }
h2 { font-size: 15px; font-weight: 600; margin: 32px 0 8px; }
p { margin: 8px 0; max-width: 80em; overflow-wrap: anywhere; }
.kind { display: inline-block; font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 12px; margin-bottom: 12px;
  background: var(--bad-soft); color: var(--bad); }
.kind.good { background: var(--good-soft); color: var(--good); }
.soft { color: var(--ink-2); font-size: 13px; }
.card, .scroll { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 24px; box-shadow: var(--shadow); }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; }
.calls th, .calls td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap;
  vertical-align: top; font-size: 13px; }
.calls thead th { color: var(--ink-2); font-weight: 500; }
.calls tbody th { position: sticky; left: 0; background: var(--surface); border-right: 1px solid var(--line-2); }
.calls tr:last-child > * { border-bottom: 0; }
.calls td { border-left: 1px solid var(--line); }
.calls td b { font-weight: 600; display: block; }
.calls td span { color: var(--ink-2); display: block; font-size: 12px; }
.fault { background: var(--accent-soft); }
thead .fault { color: var(--accent); font-weight: 600; }
.calls td.bad { background: var(--bad-soft); box-shadow: inset 0 0 0 2px var(--bad); }
.calls td.bad b { color: var(--bad); }
.calls td.none { color: var(--bad);
  background: repeating-linear-gradient(135deg, var(--surface) 0 6px, var(--bad-soft) 6px 12px); }
.calls td.blank { color: var(--ink-3); background: var(--cell); }
.calls tr.culprit > th { color: var(--bad); box-shadow: inset 3px 0 0 var(--bad); }
.where { width: 100%; }
.where td, .where th { padding: 8px 16px 8px 0; border-bottom: 1px solid var(--line); vertical-align: top; text-align: left;
  font-size: 13px; overflow-wrap: anywhere; }
.where th { white-space: nowrap; font-weight: 600; }
code { font: 12px/1.6 ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre-wrap; }
"""


def page_of(run: RunFacts, found: Sequence[Finding]) -> str:
    main = found[0] if found else None
    sentence = main.sentence if main else f"Nothing wrong found in {summary(run)}"
    title = escape(sentence[:1].upper() + sentence[1:])
    body = [
        f'<div class="card"><div class="kind{"" if main else " good"}">{escape(main.kind if main else "nothing found")}</div>'
    ]
    body.append(f"<h1>{title}.</h1>")
    if main and run.lacks:
        body.append(f'<p class="soft">These records do not contain {escape(" or ".join(run.lacks))} of a call.</p>')
    body += [f"<p>Also: {escape(other.sentence)}.</p>" for other in found[1:6]]
    body += [f'<p class="soft">Note: {escape(note)}.</p>' for note in run.notes[:10]]
    body.append("</div>")
    body += _timeline(run, main)
    body += _places(run, main)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="allfold">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title[:120]}</title>\n<style>{_colours()}{_STYLE}</style>\n</head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body>\n</html>\n"
    )


def _colours() -> str:
    """The colours of the interactive page, light and dark."""
    css = built("page.css")
    light = re.search(r":root\s*\{([^}]*)\}", css)
    dark = re.search(r":root\[data-theme=\"?dark\"?\]\s*\{([^}]*)\}", css)
    assert light and dark
    return f":root {{{light[1]}}}\n@media (prefers-color-scheme: dark) {{ :root {{{dark[1]}}} }}\n"


def _timeline(run: RunFacts, main: Finding | None) -> Iterator[str]:
    """A row per rank and a column per call; calls with the same number in the same group share a column."""
    columns = _columns(run)
    if not columns:
        return
    fault = (
        columns.index((main.group, main.number)) if main and (main.group, main.number) in columns else len(columns) - 1
    )
    begin = max(0, fault - _BEFORE)
    shown = columns[begin : begin + _MOST_COLUMNS]
    yield "<h2>Calls of every rank, in the order in which they were made</h2>"
    left, right = begin, len(columns) - begin - len(shown)
    if left or right:
        yield f'<p class="soft">{left} earlier and {right} later calls are not shown.</p>'
    yield '<div class="scroll"><table class="calls"><thead><tr><th></th>'
    for group, number in shown:
        mark = ' class="fault"' if main and (group, number) == (main.group, main.number) else ""
        yield f"<th{mark}>call {number}<br>{escape(run.groups[group].label)}</th>"
    yield "</tr></thead><tbody>"
    ranks = sorted({*run.ranks, *run.missing()})
    first = [rank for rank in ranks if main and rank in (*main.ranks, *main.waiting)]
    rows = sorted([*first, *[rank for rank in ranks if rank not in first]][:_MOST_ROWS])
    held = {rank: _held(run, rank) for rank in rows}
    for rank in rows:
        is_culprit = bool(main and rank in main.ranks)
        mark = ' class="culprit"' if is_culprit else ""
        yield f"<tr{mark}><th>rank {rank}</th>"
        yield from (_cell(run, rank, key, held, main) for key in shown)
        yield "</tr>"
    yield "</tbody></table></div>"
    if len(ranks) > len(rows):
        yield f'<p class="soft">{counted(len(ranks) - len(rows), "more rank")} not shown.</p>'


def _columns(run: RunFacts) -> list[tuple[str, int]]:
    """All calls, by the time at which the first rank made them, or by their order on the ranks."""
    begun: dict[tuple[str, int], tuple[float, float]] = {}
    for rank in run.ranks.values():
        for call in rank.calls:
            if not call.is_point_to_point:
                key, moment = (call.group, call.number), (call.begun or 0.0, float(call.order))
                begun[key] = min(begun.get(key, moment), moment)
    return sorted(begun, key=lambda key: (begun[key], key))


def _held(run: RunFacts, rank: int) -> dict[tuple[str, int], CallFacts]:
    calls = run.ranks[rank].calls if rank in run.ranks else []
    return {(call.group, call.number): call for call in calls if not call.is_point_to_point}


def _cell(
    run: RunFacts,
    rank: int,
    key: tuple[str, int],
    held: dict[int, dict[tuple[str, int], CallFacts]],
    main: Finding | None,
) -> str:
    group, number = key
    is_fault = main is not None and key == (main.group, main.number)
    call = held[rank].get(key)
    column = " fault" if is_fault else ""
    if call is None:
        if rank not in run.groups[group].ranks:
            return f'<td class="blank{column}" title="not in this group"></td>'
        if rank not in run.ranks or not run.ranks[rank].has_record:
            return f'<td class="blank{column}">no record</td>'
        starts = run.ranks[rank].starts
        if number < starts.get(group, 1) or (group not in starts and "" in starts):
            return f'<td class="blank{column}" title="overwritten in the buffer">…</td>'
        return f'<td class="none{column}">not made</td>'
    others = [calls[key] for other, calls in held.items() if other != rank and key in calls]
    differs = sum(bool(differences(call, other)) for other in others) * 2 > len(others)
    bad = differs or (is_fault and main is not None and rank in main.ranks and main.kind != "circle")
    title = escape(f"{call.what}{call.where}", quote=True)
    return (
        f'<td class="{"bad" if bad else column.strip()}" title="{title}"><b>{escape(call.operation)}</b>'
        f"<span>{escape(_arguments(call))}</span><span>{escape(call.place)}</span></td>"
    )


def _arguments(call: CallFacts) -> str:
    return call.what[len(call.operation) :].strip("()")[:40]


def _places(run: RunFacts, main: Finding | None) -> Iterator[str]:
    """The call of each rank in the finding, with its stack and the errors that it reported."""
    ranks = [*main.ranks, *main.waiting][:16] if main else []
    if main is None or not ranks:
        return
    yield f"<h2>{name_ranks(sorted(ranks)).capitalize()} in detail</h2>"
    yield '<div class="card"><table class="where">'
    for rank in ranks:
        facts, call = run.ranks.get(rank), main.calls.get(rank)
        yield f"<tr><th>rank {rank}</th><td>"
        if call is not None:
            yield f"<div>{escape(call.what)}</div>"
            lines = [
                f"{frame.file}:{frame.line} in {frame.function}  {line_of(frame)}"
                for frame in call.stack[:_MOST_FRAMES]
            ]
            yield f"<code>{escape(chr(10).join(lines))}</code>"
        if facts is None or not facts.has_record:
            yield "<div>no record</div>"
        if facts is not None:
            if facts.at and (call is None or facts.at != call.stack):
                where = f"{facts.at[0].place} in {facts.at[0].function}"
                yield f"<div>when its record was written, it was at {escape(where)}</div>"
            if facts.ended:
                yield f"<div>it {escape(facts.ended)}</div>"
            yield from (f"<div>reported: {escape(said)}</div>" for said in facts.said)
        yield "</td></tr>"
    yield "</table></div>"
