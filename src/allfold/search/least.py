"""The lower bound on the time, its reason, and its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..price.cost.bounds import least_distance, least_spread, most_useful, shared_by_all
from ..price.cost.certificate import Certificate, LinkPrices, facts_of_prices
from ..price.cost.cuts import TightestCut, least_leaving, tightest_cut
from ..price.cost.program import least_by_program
from ..price.topology.network import network_of
from ..price.topology.sizes import at_best
from ..wording import counted
from .found import Task
from .paths.flows import prices_of_flows

_SAME = 1 + Fraction(1, 10**6)
_ROUNDING = 1 - Fraction(1, 10**9)
"""Distances are added up in floats."""
_SECONDS = 2.0  # of a linear program


@dataclass(frozen=True, eq=False)
class Least:
    certificate: Certificate
    why: str
    cut: TightestCut | None = None

    @property
    def time(self) -> float:
        return self.certificate.bound


def least_of(task: Task) -> Least:
    """The largest of all known bounds. Among equal ones, the most informative."""
    best_figures = at_best(task.topology, most_useful(task.collective, task.ranks, task.size))
    if best_figures is not task.topology:
        task = replace(task, topology=best_figures, network=network_of(best_figures, task.ranks))
    best = _least(
        task, "nothing", Fraction(0), "there is nobody to send to" if task.ranks == 1 else "nothing limits it"
    )
    for other in _known(task) if task.ranks > 1 else ():
        if other.certificate.seconds > best.certificate.seconds * _SAME:
            best = other
    return best


def _known(task: Task) -> Iterator[Least]:
    for bound in _by_links(task):
        if bound is not None:
            yield _least(task, "links", bound.per_byte * task.size, bound.why, bound)
    promise, folds = task.promise, bool(task.topology.folding)
    if not folds and promise.takes_op and task.topology.reduction != float("inf"):
        combined = (
            Fraction(promise.combinations(task.ranks), task.ranks) * task.size / Fraction(task.topology.reduction)
        )
        yield _least(task, "combining", combined, "ranks cannot combine faster")
    why = "data cannot reach all ranks sooner"
    if not folds:
        seconds, among = least_spread(task.topology, task.ranks)
        yield _least(task, "spread", Fraction(seconds) * _ROUNDING, why, facts={"among": among})
    seconds, start, end = least_distance(task.collective, task.topology, task.ranks, task.root)
    why = f"{why}: rank {end} is that far from rank {start}"
    yield _least(task, "distance", Fraction(seconds) * _ROUNDING, why, facts={"from": start, "to": end})


def _least(
    task: Task,
    kind: str,
    seconds: Fraction,
    why: str,
    bound: LinkPrices | None = None,
    facts: dict[str, int] | dict[str, str] | None = None,
) -> Least:
    told = dict(facts or {}) if bound is None else facts_of_prices(bound)
    certificate = Certificate(
        task.collective, task.topology.name, task.ranks, task.root, task.size, kind, seconds, told
    )
    return Least(certificate, why, None if bound is None else bound.cut)


def _by_links(task: Task) -> Iterator[LinkPrices | None]:
    if not task.promise.carries_data:
        return
    cut = tightest_cut(task.collective, task.network, task.root)
    yield None if cut is None else cut.prices(task.collective, task.root)
    if not task.topology.folding:  # messages that fold pay once for many
        yield from _by_groups(task)
        yield shared_by_all(task.collective, task.topology, task.ranks, task.root)
        task.say("bounding by a linear program")
        yield least_by_program(task.collective, task.topology, task.ranks, task.root, min(_SECONDS, task.left / 4))
    if task.flows is not None:
        yield prices_of_flows(task, task.flows)


def _by_groups(task: Task) -> Iterator[LinkPrices | None]:
    """Groups of ranks that the topology names, such as hosts, and single ranks.

    For an all_reduce, what all of them send each other. For the others, on networks that are too large for the tightest
    cut, what the first and the last group must send or receive.
    """
    ranks, network = task.ranks, task.network
    named = [(cut.name, cut.group[:ranks]) for cut in task.topology.cuts]
    if task.promise.round_trip:
        for name, group in named:
            groups = np.unique(group)
            if not 1 < len(groups) < ranks:
                continue
            leaving = [least_leaving(network, group == one) for one in groups]
            if all(edges is not None for edges in leaving):
                links = dict.fromkeys(network.link[np.concatenate(leaving)].tolist(), 1)  # type: ignore[arg-type]
                why = f"what {counted(len(groups), 'group')} send each other must cross the {name}"
                yield LinkPrices(task.topology, links, (), Fraction(2 * (len(groups) - 1)), why)
    if tightest_cut(task.collective, network, task.root) is not None:
        return
    for group in [*(one for _, one in named), np.arange(ranks, dtype=np.int32)]:
        for one in {int(group[0]), int(group[-1])}:
            for inside in (group == one, group != one):
                edges = least_leaving(network, inside)
                if edges is not None and inside.any() and not inside.all():
                    vertices = np.zeros(network.vertices, bool)
                    vertices[:ranks] = inside
                    yield TightestCut(network, vertices, edges, 1.0).prices(task.collective, task.root)
