"""From amounts to pieces: how many pieces every demand is cut into, and which route each piece takes.

What a resource is given to do is not all that decides when it has done it. On a route, what comes before a step (its
*head*) has to pass before the resource can begin with it, and what comes after (its *tail*) when it has ended. So of a
*window*, the steps of one resource with at least some head and some tail, all pieces together take no less than that
head, their own time and that tail. Pieces are moved to other routes until the longest window is as short as can be:
resources on which routes begin or end are then given more to do than those amid long routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from einc.exprog.synthesis.demands import Demand, shapes_of
from einc.exprog.synthesis.fabric import Fabric
from einc.exprog.synthesis.packing import Packing
from einc.exprog.synthesis.routes import Route, needs

_SQUARINGS = (3, 6)
"""A window counts with its time squared so often: first all that are long matter, then the longest alone."""

_SWEEPS = 4
_WINDOWINGS = 6
"""How often pieces are moved, each time with more windows in view."""

_MANY = 500
"""Groups of pieces above which they are moved once, by what resources have to do alone."""

_LONG = 0.93
"""Windows of so much of the longest one's time are added."""

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]


def choose_routes(
    demands: Sequence[Demand], pieces: Sequence[int], packing: Packing, fabric: Fabric
) -> list[list[Route]]:
    """For every demand the routes of its pieces, near the amounts of the packing, then evened out."""
    groups: list[_Group] = []
    members: list[list[int]] = []
    for shape, positions in shapes_of(demands).items():
        known = packing.routes[shape]
        pool = [route for route, _ in known]
        amounts = np.array([amount for _, amount in known])
        alike: dict[tuple[int, int], list[int]] = {}
        for position in positions:
            alike.setdefault((demands[position].size, pieces[position]), []).append(position)
        for (size, count), own in alike.items():
            counts = _rounded(amounts, count * len(own))
            groups.append(_Group(pool, size / count, counts))
            members.append(own)
    assigned: list[list[Route]] = [[] for _ in demands]
    for group, own, counts in zip(groups, members, _evened_out(groups, fabric), strict=True):
        for turn, route in enumerate(_in_turns(counts)):
            assigned[own[turn % len(own)]].append(group.pool[route])
    return assigned


_Window = tuple[int, float, float]
"""A resource, and the least head and tail in ms."""


class _Group(NamedTuple):
    """Pieces of `size` bytes with the same routes to choose from, and how many take each."""

    pool: list[Route]
    size: float
    counts: _Ints


def _rounded(amounts: _Floats, total: int) -> _Ints:
    """Whole numbers in proportion to the amounts that add up to the total: the largest remainders are rounded up."""
    exact = amounts * (total / amounts.sum()) if amounts.sum() else np.full(len(amounts), total / len(amounts))
    counts: _Ints = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _in_turns(counts: _Ints) -> list[int]:
    """So many of each, spread evenly."""
    places = [((turn + 0.5) / count, route) for route, count in enumerate(counts) for turn in range(count)]
    return [route for _, route in sorted(places)]


class _Uses:
    """What one piece on each route of a pool does: step by step, with the resource, the ms, the head and the tail."""

    def __init__(self, group: _Group, fabric: Fabric) -> None:
        found = [(number, *use) for number, route in enumerate(group.pool) for use in _uses(route, group.size, fabric)]
        table = np.array(found).reshape(-1, 5)
        self.route: _Ints = table[:, 0].astype(np.int64)
        self.resource: _Ints = table[:, 1].astype(np.int64)
        self.time, self.head, self.tail = table[:, 2], table[:, 3], table[:, 4]


def _uses(route: Route, size: float, fabric: Fabric) -> list[tuple[int, float, float, float]]:
    durations = [fabric.duration(step, size) for step in route]
    arrival: dict[tuple[int, int], float] = {}
    heads = []
    for step, duration in zip(route, durations, strict=True):
        heads.append(max(arrival.get(copy, 0.0) for copy in needs(step)))
        arrival[step.parts, step.destination] = heads[-1] + duration
    left: dict[tuple[int, int], float] = {}
    uses = []
    for step, duration, head in zip(reversed(route), reversed(durations), reversed(heads), strict=True):
        tail = left.get((step.parts, step.destination), 0.0)
        for copy in needs(step):
            left[copy] = max(left.get(copy, 0.0), tail + duration)
        # Rounded, so that equal heads and tails on different routes are equal here too.
        uses += [(resource, duration, round(head, 12), round(tail, 12)) for resource in fabric.crossed(step)]
    return uses


def _evened_out(groups: Sequence[_Group], fabric: Fabric) -> list[_Ints]:
    """Move single pieces to other routes while that shortens the longest windows; returns the counts."""
    uses = [_Uses(group, fabric) for group in groups]
    windows = [(resource, 0.0, 0.0) for resource in range(len(fabric.rates))]
    counts = [group.counts.copy() for group in groups]
    best, least = counts, np.inf
    for _ in range(_WINDOWINGS if len(groups) <= _MANY else 1):
        _descend(counts, uses, windows)
        longest = _longest(counts, uses)
        most = max(time for time, _ in longest)
        if most < least * (1 - 1e-9):
            best, least = [own.copy() for own in counts], most
        more = [window for time, window in longest if time >= _LONG * most and window not in windows]
        if not more:
            break
        windows += more
    return best


def _descend(counts: list[_Ints], uses: Sequence[_Uses], windows: Sequence[_Window]) -> None:
    """Change the counts, piece by piece, while the powers of the windows' times grow less."""
    resource, head, tail = (np.array(column) for column in zip(*windows, strict=True))
    tables: list[tuple[_Ints, _Floats]] = []
    load: _Floats = head + tail
    for own, count in zip(uses, counts, strict=True):
        inside = (own.resource[:, None] == resource) & (own.head[:, None] >= head) & (own.tail[:, None] >= tail)
        table: _Floats = np.zeros((len(count), len(windows)))
        np.add.at(table, own.route, own.time[:, None] * inside)
        load += count @ table
        columns = np.flatnonzero(table.any(0))
        tables.append((columns, table[:, columns]))
    for squarings in _SQUARINGS:
        for _ in range(_SWEEPS):
            moved = False
            scale = load.max()
            for count, (columns, table) in zip(counts, tables, strict=True):
                now = load[columns] / scale
                steps = table / scale
                for route in np.flatnonzero(count):
                    while count[route]:
                        cost: _Floats = now - steps[route] + steps
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


def _longest(counts: Sequence[_Ints], uses: Sequence[_Uses]) -> list[tuple[float, _Window]]:
    """For every resource in use its longest window, with the ms that it takes."""
    many = np.concatenate([count[own.route] for own, count in zip(uses, counts, strict=True)])
    taken = many > 0
    resource, time, head, tail = (
        np.concatenate([getattr(own, name) for own in uses])[taken] for name in ("resource", "time", "head", "tail")
    )
    time = time * many[taken]
    found = []
    for one in np.unique(resource):
        here = resource == one
        heads, row = np.unique(head[here], return_inverse=True)
        tails, column = np.unique(tail[here], return_inverse=True)
        sums: _Floats = np.zeros((len(heads), len(tails)))
        np.add.at(sums, (row, column), time[here])
        sums = sums[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
        windows = np.where(sums > 0, sums + heads[:, None] + tails, 0.0)
        first, second = np.unravel_index(int(windows.argmax()), windows.shape)
        found.append((float(windows[first, second]), (int(one), float(heads[first]), float(tails[second]))))
    return found


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
