"""Transfers that share links: each gets as much as possible without taking from one that has less (max-min fairness).

`fair_rates` computes this for a given set of transfers. `FairFlows` keeps the transfers that are under way in a simulation
and computes new rates only where something has changed. A link that all its transfers together cannot fill slows none
of them down. So a change spreads only through the other links, and mostly not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Two times, or two rates, are the same if they differ by less than this fraction."""

_MANY = 48  # from this many flows on, arrays are faster than lists


def fair_rates(routes: NDArray[np.integer], bandwidth: Floats, limit: Floats, share: Floats | None = None) -> Floats:
    """The max-min fair rate of every flow: row i of `routes` holds its links, `limit[i]` is the most it can take.

    Rows are padded with a link of infinite bandwidth; a link that appears twice in a row is crossed twice. `share`, in the
    shape of `routes`, says how much of each flow crosses each of its links (all of it unless given). All links
    that are the bottleneck of every one of their flows are settled in one round, so that independent parts of a network
    do not wait for each other.
    """
    rate, left, waiting = limit.astype(np.float64), bandwidth.astype(np.float64), np.arange(len(limit))
    links, width = len(bandwidth), routes.shape[1]
    while len(waiting):
        rows, most = routes[waiting], limit[waiting]
        crossed = rows.ravel()
        count = np.bincount(crossed, minlength=links)
        wanted = count if share is None else np.bincount(crossed, share[waiting].ravel(), links)
        offered = (left / np.where(count, wanted, 1))[rows]
        least = offered.min(axis=1)
        level = np.minimum(least, most)
        held_here = offered <= (level * (1 + ROUNDING))[:, None]
        narrowest = np.bincount(crossed, weights=held_here.ravel(), minlength=links) == count
        settled = (most <= least) | (held_here & narrowest[rows]).any(axis=1)
        rate[waiting[settled]] = level[settled]
        each = np.repeat(level[settled], width)
        each = each if share is None else each * share[waiting[settled]].ravel()
        taken = np.bincount(rows[settled].ravel(), weights=each, minlength=links)
        left = np.maximum(left - taken, 0.0)
        waiting = waiting[~settled]
    return rate


class _Flow:
    __slots__ = ("left", "limit", "number", "rate", "route", "share", "since", "stamp")

    def __init__(
        self, number: int, route: Sequence[int], left: float, limit: float, since: float, share: Sequence[float] | None
    ) -> None:
        self.number, self.route, self.left, self.limit, self.since = number, route, left, limit, since
        self.share = share  # how much of it crosses each link; None: all of it crosses all
        self.rate, self.stamp = 0.0, 0

    def demands(self) -> Sequence[float]:
        """The load that it would put on each link alone."""
        if self.share is None:
            return [self.limit] * len(self.route)
        return [self.limit * share for share in self.share]

    def go_on(self, rate: float, now: float) -> float:
        """Change to another rate; return the time at which it will finish."""
        self.left = left = max(0.0, self.left - self.rate * (now - self.since))
        self.rate, self.since = rate, now
        self.stamp += 1
        return now + left / rate


class FairFlows:
    """The transfers under way: what is left of each, its rate, and when it will finish."""

    def __init__(self, bandwidth: Sequence[float]) -> None:
        self._bandwidth = list(bandwidth)
        self._full = [value * (1 + ROUNDING) for value in bandwidth]
        self._demand = [0.0] * len(bandwidth)  # the sum of the limits of a link's flows
        self._tight = [False] * len(bandwidth)
        self._on: list[dict[int, _Flow]] = [{} for _ in bandwidth]
        self._flows: dict[int, _Flow] = {}
        self._finish: list[tuple[float, int, int]] = []  # a heap; an entry with an old stamp is no longer valid
        self._begun: list[_Flow] = []
        self._touched: set[int] = set()

    def start(
        self,
        number: int,
        route: Sequence[int],
        size: float,
        limit: float,
        now: float,
        share: Sequence[float] | None = None,
    ) -> None:
        """Begin a transfer of `size` bytes that can take at most `limit`. Its rate is known after the next `settle`."""
        self._flows[number] = flow = _Flow(number, route, size, limit, now, share)
        for link, demand in zip(route, flow.demands(), strict=True):
            self._on[link][number] = flow
            self._demand[link] += demand
        self._begun.append(flow)
        self._touched.update(route)

    def next(self) -> float:
        """The time at which the first of them will finish."""
        finish, flows = self._finish, self._flows
        while finish:
            time, number, stamp = finish[0]
            flow = flows.get(number)
            if flow is not None and flow.stamp == stamp:
                return time
            heappop(finish)
        return inf

    def take_finished(self, until: float) -> list[int]:
        """Remove and return the flows that have finished by then."""
        through = []
        while self.next() <= until:
            number = heappop(self._finish)[1]
            flow = self._flows.pop(number)
            for link, demand in zip(flow.route, flow.demands(), strict=True):
                on = self._on[link]
                on.pop(number, None)
                # Reset an empty link to exactly zero, so that rounding errors do not accumulate.
                self._demand[link] = self._demand[link] - demand if on else 0.0
            self._touched.update(flow.route)
            through.append(number)
        return through

    def settle(self, now: float) -> None:
        """Compute new rates for flows on links where a flow has started or ended."""
        if not self._touched:
            return
        tight, seeds = self._tight, []
        for link in self._touched:
            is_tight = self._demand[link] > self._full[link]
            if is_tight or tight[link]:
                seeds.append(link)
            tight[link] = is_tight
        if not seeds:
            concerned: dict[int, _Flow] = {}
        elif len(seeds) == 1 and self._share_one(seeds[0], now):
            concerned = self._on[seeds[0]]
        else:
            concerned = self._hangs_together(seeds)
            for flow, rate in zip(concerned.values(), self._share(list(concerned.values())), strict=True):
                self._set(flow, rate, now)
        for flow in self._begun:
            if flow.number not in concerned:
                self._set(flow, flow.limit, now)
        self._touched, self._begun = set(), []

    def _share_one(self, link: int, now: float) -> bool:
        """A fast path for the most frequent case: flows limited by one tight link and nothing else share it equally.

        When the first of them finishes, all of them come here again, so only its time is recorded.
        """
        on, tight = self._on[link], self._tight
        if not tight[link]:
            return False
        rate = self._bandwidth[link] / len(on)
        for flow in on.values():
            if flow.limit < rate or flow.share is not None or sum([tight[one] for one in flow.route]) != 1:
                return False
        first, number, stamp = inf, 0, 0
        for flow in on.values():
            finish = flow.go_on(rate, now)
            if finish < first:
                first, number, stamp = finish, flow.number, flow.stamp
        heappush(self._finish, (first, number, stamp))
        return True

    def _hangs_together(self, seeds: list[int]) -> dict[int, _Flow]:
        """The flows that share a link of `seeds`, or a tight link with one of those, and so on."""
        found: dict[int, _Flow] = {}
        seen, tight = set(seeds), self._tight
        while seeds:
            for number, flow in self._on[seeds.pop()].items():
                if number not in found:
                    found[number] = flow
                    for link in flow.route:
                        if tight[link] and link not in seen:
                            seen.add(link)
                            seeds.append(link)
        return found

    def _share(self, flows: list[_Flow]) -> list[float]:
        """Their fair rates: links that are not tight do not limit any of them."""
        tight, links = self._tight, dict[int, int]()
        routes = [[link for link in flow.route if tight[link]] for flow in flows]
        for route in routes:
            for link in route:
                links.setdefault(link, len(links))
        limit = [flow.limit for flow in flows]
        shares = None
        if any([flow.share is not None for flow in flows]):
            shares = [
                [1.0] * len(route)
                if flow.share is None
                else [share for link, share in zip(flow.route, flow.share, strict=True) if tight[link]]
                for flow, route in zip(flows, routes, strict=True)
            ]
        if len(flows) < _MANY:
            return _fill(routes, {link: self._bandwidth[link] for link in links}, limit, shares)
        width = max(1, *map(len, routes))
        table = [[links[link] for link in route] + [len(links)] * (width - len(route)) for route in routes]
        bandwidth = np.asarray([*(self._bandwidth[link] for link in links), inf])
        padded = None if shares is None else np.asarray([row + [1.0] * (width - len(row)) for row in shares])
        return fair_rates(np.asarray(table), bandwidth, np.asarray(limit), padded).tolist()  # type: ignore[no-any-return]

    def _set(self, flow: _Flow, rate: float, now: float) -> None:
        # Even where the rate stays the same: only the first of those that shared a link may have been recorded.
        heappush(self._finish, (flow.go_on(rate, now), flow.number, flow.stamp))


def _fill(
    routes: list[list[int]], left: dict[int, float], limit: list[float], shares: list[list[float]] | None = None
) -> list[float]:
    """`fair_rates` for a handful of flows: one level at a time, the lowest first."""
    rates = list(limit)
    every = [[1.0] * len(route) for route in routes] if shares is None else shares
    users, wanted = dict.fromkeys(left, 0), dict.fromkeys(left, 0.0)
    for route, share in zip(routes, every, strict=True):
        for link, part in zip(route, share, strict=True):
            users[link] += 1
            wanted[link] += part
    waiting = sorted(range(len(limit)), key=limit.__getitem__)
    while waiting:
        level = min((left[link] / wanted[link] for link in left if users[link]), default=inf)
        if limit[waiting[0]] <= level:
            level = limit[waiting[0]]
            settled = [flow for flow in waiting if limit[flow] <= level * (1 + ROUNDING)]
        else:
            low = {link for link in left if users[link] and left[link] / wanted[link] <= level * (1 + ROUNDING)}
            settled = [flow for flow in waiting if not low.isdisjoint(routes[flow])]
        for flow in settled:
            rates[flow] = level
            for link, part in zip(routes[flow], every[flow], strict=True):
                left[link] = max(0.0, left[link] - level * part)
                users[link] -= 1
                wanted[link] -= part
        done = set(settled)
        waiting = [flow for flow in waiting if flow not in done]
    return rates
