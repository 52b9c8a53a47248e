"""From amounts to pieces: how many pieces every demand is cut into, and which route each piece takes.

What a resource is given to do is not all that decides when it has done it: steps have heads and tails (`uses.py`). So
of a *window*, the steps of one resource with at least some head and some tail, all pieces together take no less than
that head, their own time and that tail. Pieces are moved to other routes until the longest window is as short as can
be: resources on which routes begin or end are then given more to do than those amid long routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Demand, shapes_of
from einc.exchange.synthesis.packing import Packing
from einc.exchange.synthesis.routes import Route
from einc.exchange.synthesis.uses import Floats, Ints, Pool, Uses

_SQUARINGS = (3, 6)
"""A window counts with its time squared so often: first all that are long matter, then the longest alone."""

_SWEEPS = 4
_WINDOWINGS = 6
"""How often pieces are moved, each time with more windows in view."""

_MANY = 500
"""Groups of pieces above which they are moved once, by what resources have to do alone."""

_LONG = 0.93
"""Windows of so much of the longest one's time are added."""


class Router:
    """Chooses routes for demands that are packed, however many pieces they are in."""

    def __init__(self, demands: Sequence[Demand], packing: Packing, network: Network) -> None:
        self.demands = demands
        self.resources = len(network.rates)
        self.known: list[tuple[Pool, Floats, list[int]]] = []  # with the amounts, and the demands that choose from it
        for shape, positions in shapes_of(demands).items():
            routes, amounts = zip(*packing.routes[shape], strict=True)
            self.known.append((Pool(routes, network), np.array(amounts), positions))

    def choose(self, pieces: Sequence[int]) -> list[list[Route]]:
        """For every demand the routes of so many pieces, near the amounts of the packing, then evened out."""
        groups: list[_Group] = []
        for pool, amounts, positions in self.known:
            alike: dict[tuple[int, int], list[int]] = {}
            for position in positions:
                alike.setdefault((self.demands[position].size, pieces[position]), []).append(position)
            for (size, count), own in alike.items():
                groups.append(_Group(pool.routes, pool.uses(size / count), _rounded(amounts, count * len(own)), own))
        assigned: list[list[Route]] = [[] for _ in self.demands]
        for group, counts in zip(groups, _evened_out(groups, self.resources), strict=True):
            for turn, route in enumerate(_in_turns(counts)):
                assigned[group.demands[turn % len(group.demands)]].append(group.routes[route])
        return assigned


_Window = tuple[int, float, float]
"""A resource, and the least head and tail in ms."""


class _Group(NamedTuple):
    """Pieces of one size with the same routes to choose from, how many take each, and the demands that they are of."""

    routes: Sequence[Route]
    uses: Uses
    counts: Ints
    demands: Sequence[int]


def _rounded(amounts: Floats, total: int) -> Ints:
    """Whole numbers in proportion to the amounts that add up to the total: the largest remainders are rounded up."""
    exact = amounts * (total / amounts.sum()) if amounts.sum() else np.full(len(amounts), total / len(amounts))
    counts: Ints = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _in_turns(counts: Ints) -> list[int]:
    """So many of each, spread evenly."""
    places = [((turn + 0.5) / count, route) for route, count in enumerate(counts) for turn in range(count)]
    return [route for _, route in sorted(places)]


def _evened_out(groups: Sequence[_Group], resources: int) -> list[Ints]:
    """Move single pieces to other routes while that shortens the longest windows; returns the counts."""
    uses = [group.uses for group in groups]
    all_windows = _Windows(uses)
    windows = [(resource, 0.0, 0.0) for resource in range(resources)]
    tables = [_table(own, windows) for own in uses]
    counts = [group.counts.copy() for group in groups]
    best, least = counts, np.inf
    for _ in range(_WINDOWINGS if len(groups) <= _MANY else 1):
        _descend(counts, tables, windows)
        longest = all_windows.longest(counts)
        most = max(time for time, _ in longest)
        if most < least * (1 - 1e-9):
            best, least = [own.copy() for own in counts], most
        more = [window for time, window in longest if time >= _LONG * most and window not in windows]
        if not more:
            break
        windows += more
        tables = [np.hstack((table, _table(own, more))) for own, table in zip(uses, tables, strict=True)]
    return best


def _table(uses: Uses, windows: Sequence[_Window]) -> Floats:
    """How long one piece on each route takes the resource of each window, inside of it."""
    resource, head, tail = (np.array(column) for column in zip(*windows, strict=True))
    inside = (uses.resource[:, None] == resource) & (uses.head[:, None] >= head) & (uses.tail[:, None] >= tail)
    table: Floats = np.add.reduceat(uses.time[:, None] * inside, np.flatnonzero(np.diff(uses.route, prepend=-1)))
    return table


def _descend(counts: list[Ints], tables: Sequence[Floats], windows: Sequence[_Window]) -> None:
    """Change the counts, piece by piece, while the powers of the windows' times grow less."""
    load: Floats = np.array([head + tail for _, head, tail in windows])
    used: list[tuple[Ints, Floats]] = []
    for count, table in zip(counts, tables, strict=True):
        load += count @ table
        columns = np.flatnonzero(table.any(0))
        used.append((columns, table[:, columns]))
    for squarings in _SQUARINGS:
        for _ in range(_SWEEPS):
            moved = False
            scale = load.max()
            for count, (columns, table) in zip(counts, used, strict=True):
                now = load[columns] / scale
                steps = table / scale
                for route in np.flatnonzero(count):
                    while count[route]:
                        cost: Floats = now - steps[route] + steps
                        for _ in range(squarings):
                            cost *= cost
                        total = cost.sum(1)
                        cheapest = int(total.argmin())
                        if not total[cheapest] < total[route] * (1 - 1e-6):
                            break
                        count[route] -= 1
                        count[cheapest] += 1
                        now = now - steps[route] + steps[cheapest]
                        moved = True
                load[columns] = now * scale
            if not moved:
                break


class _Windows:
    """All windows, whatever the counts: for every resource the heads and tails there are, and where each use stands."""

    def __init__(self, uses: Sequence[Uses]) -> None:
        first = np.cumsum([0, *(own.route[-1] + 1 for own in uses[:-1])])  # routes are numbered through all groups
        route = np.concatenate([own.route + start for own, start in zip(uses, first, strict=True)])
        resource, time, head, tail = (
            np.concatenate([getattr(own, name) for own in uses]) for name in ("resource", "time", "head", "tail")
        )
        self._found = []
        for one in np.unique(resource):
            here = np.flatnonzero(resource == one)
            heads, row = np.unique(head[here], return_inverse=True)
            tails, column = np.unique(tail[here], return_inverse=True)
            ends = heads[:, None] + tails
            self._found.append((int(one), route[here], time[here], row * len(tails) + column, heads, tails, ends))

    def longest(self, counts: Sequence[Ints]) -> list[tuple[float, _Window]]:
        """For every resource in use its longest window, with the ms that it takes."""
        many = np.concatenate(counts)
        longest = []
        for resource, route, time, place, heads, tails, ends in self._found:
            pieces = many[route]
            if pieces.any():
                sums = np.bincount(place, time * pieces, ends.size).reshape(ends.shape)
                sums = sums[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
                windows = np.where(sums > 0, sums + ends, 0.0)
                head, tail = np.unravel_index(int(windows.argmax()), windows.shape)
                longest.append((float(windows[head, tail]), (resource, float(heads[head]), float(tails[tail]))))
        return longest


def pieces_for(
    demands: Sequence[Demand],
    family: Mapping[str, str],
    packing: Packing,
    actions: int,
    most: int,
    limits: Mapping[str, int],
) -> dict[str, int]:
    """The number of pieces of every family of atoms, equal bytes each as far as can be, for about so many actions.

    No family is cut into more than `most` pieces, and those in `limits` into no more than stands there.
    """
    steps: dict[str, float] = {}
    size: dict[str, int] = {}
    for demand in demands:
        name = family[demand.aggregate[0]]
        routes = packing.routes[demand.shape]
        carried = sum(amount for _, amount in routes)
        mean = sum(len(route) * amount for route, amount in routes) / carried if carried else 1.0
        steps[name] = steps.get(name, 0.0) + mean
        size[name] = demand.size

    most_each = np.array([min(most, limits.get(name, size[name]), size[name]) for name in size])
    bytes_each = np.array([size[name] for name in size], np.float64)
    steps_each = np.array([steps[name] for name in size])

    def count(grain: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        wanted: np.ndarray[Any, np.dtype[np.float64]] = np.rint(bytes_each / grain).clip(1.0, most_each)
        return wanted

    fine, coarse = 1.0, float(max(size.values())) * 2
    for _ in range(60):
        grain = (fine * coarse) ** 0.5
        if float(count(grain) @ steps_each) > actions:
            fine = grain
        else:
            coarse = grain
    return dict(zip(size, map(int, count(coarse)), strict=True))
