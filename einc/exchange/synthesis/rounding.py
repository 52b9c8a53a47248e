"""From bytes to pieces: how many pieces every demand is cut into, and which route each piece takes.

On a route, the time before a step (its *head*) has to pass before a resource can begin with it, and the time after it
(its *tail*) once it has ended.

So a resource needs more than the sum of its steps. A *window* is the set of steps of one resource with at least a given
head and a given tail: all pieces together take no less than that head, their own time in the window and that tail.
Pieces are moved to other routes until the longest window is as short as possible. Resources on which routes begin or
end then get more to do than those in the middle of long routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.allocation import RouteAmounts
from einc.exchange.synthesis.demands import Demand, group_by_shape
from einc.exchange.synthesis.routes import Route, list_crossed, list_needed_copies, measure_step
from einc_runtime.dtypes import Floats, Ints


class ResourceUses(NamedTuple):
    """A row for every resource that a step of a route uses: the route's number, and times in ms for one piece."""

    route: Ints
    resource: Ints
    time: Floats
    head: Floats
    tail: Floats


class RoutePool:
    """Routes, and what is known of their steps for pieces of any size: for every route and position one entry."""

    def __init__(self, routes: Sequence[Route], network: Network) -> None:
        self.routes = routes
        length = max(map(len, routes))
        most_needed = max(len(list_needed_copies(step)) for route in routes for step in route)
        copies: Floats = np.zeros((len(routes), length))  # bytes that pass the slowest resource per byte of the piece
        rate: Floats = np.ones((len(routes), length))
        latency: Floats = np.zeros((len(routes), length))
        # The steps that bring what a step needs; `length` stands for what is there from the beginning.
        before: Ints = np.full((length, len(routes), most_needed), length)
        taken: list[tuple[int, int, int]] = []
        for number, route in enumerate(routes):
            brought = {(step.parts, step.destination): position for position, step in enumerate(route)}
            for position, step in reversed([*enumerate(route)]):
                entry = number, position
                copies[entry], rate[entry], latency[entry] = measure_step(step, network)
                for column, copy in enumerate(list_needed_copies(step)):
                    before[position, number, column] = brought.get(copy, length)
                taken += [(number, position, resource) for resource in list_crossed(step, network)]
        self._work = copies, rate, latency
        self._before = before
        self._taken: Ints = np.array(taken, np.int64).T

    def compute_uses(self, size: float) -> ResourceUses:
        """The resource uses of one piece of `size` bytes on each route."""
        copies, rate, latency = self._work
        durations = copies * size / rate + latency
        routes, length = durations.shape
        every = np.arange(routes)[:, None]
        heads: Floats = np.zeros((routes, length))
        ends: Floats = np.zeros((routes, length + 1))
        for position in range(length):
            heads[:, position] = ends[every, self._before[position]].max(1)
            ends[:, position] = heads[:, position] + durations[:, position]
        tails: Floats = np.zeros((routes, length + 1))
        for position in reversed(range(length)):
            needed = every, self._before[position]
            tails[needed] = np.maximum(tails[needed], (tails[:, position] + durations[:, position])[:, None])
        route, position, resource = self._taken
        # Rounded, so that equal heads and tails on different routes are equal here too.
        head, tail = (times[route, position].round(12) for times in (heads, tails))
        return ResourceUses(route, resource, durations[route, position], head, tail)


_SQUARINGS = (3, 6)
"""How often the time of a window is squared: first all long windows matter, then only the longest."""

_ROUNDING_SWEEPS = 4
_MAX_WINDOW_ROUNDS = 6
"""How often pieces are moved, each time for more windows."""

_MAX_GROUPS = 500
"""Above this many groups, pieces are moved only once, and only by the load of the resources."""

_LONG_WINDOW_PART = 0.93
"""Windows that take at least this part of the longest one's time are added."""


class RouteChooser:
    """Chooses routes for the pieces of demands, near the amounts that the linear program found."""

    def __init__(self, demands: Sequence[Demand], route_amounts: RouteAmounts, network: Network) -> None:
        self.demands = demands
        self.resources = len(network.rates)
        # Pools of routes, each with the amounts and the demands that choose from it.
        self.known: list[tuple[RoutePool, Floats, list[int]]] = []
        for shape, positions in group_by_shape(demands).items():
            routes, amounts = zip(*route_amounts.routes[shape], strict=True)
            self.known.append((RoutePool(routes, network), np.array(amounts), positions))

    def choose(self, pieces: Sequence[int]) -> list[list[Route]]:
        """For every demand the routes of its pieces, whose numbers are given."""
        groups: list[_PieceGroup] = []
        for pool, amounts, positions in self.known:
            positions_by_form: dict[tuple[int, int], list[int]] = {}
            for position in positions:
                positions_by_form.setdefault((self.demands[position].size, pieces[position]), []).append(position)
            for (size, count), demand_positions in positions_by_form.items():
                groups.append(
                    _PieceGroup(
                        pool.routes,
                        pool.compute_uses(size / count),
                        _round_amounts(amounts, count * len(demand_positions)),
                        demand_positions,
                    )
                )
        assigned: list[list[Route]] = [[] for _ in self.demands]
        for group, counts in zip(groups, _even_out(groups, self.resources), strict=True):
            for turn, route in enumerate(_take_turns(counts)):
                assigned[group.demands[turn % len(group.demands)]].append(group.routes[route])
        return assigned


_Window = tuple[int, float, float]
"""A resource, and the least head and tail in ms."""


class _PieceGroup(NamedTuple):
    """Pieces of one size with the same routes to choose from, how many take each route, and their demands."""

    routes: Sequence[Route]
    uses: ResourceUses
    counts: Ints
    demands: Sequence[int]


def _round_amounts(amounts: Floats, total: int) -> Ints:
    """Whole numbers in proportion to the amounts, with this total: the largest remainders are rounded up."""
    exact = amounts * (total / amounts.sum()) if amounts.sum() else np.full(len(amounts), total / len(amounts))
    counts: Ints = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _take_turns(counts: Ints) -> list[int]:
    """The routes in turn, each as often as it counts, spread evenly."""
    places = [((turn + 0.5) / count, route) for route, count in enumerate(counts) for turn in range(count)]
    return [route for _, route in sorted(places)]


def _even_out(groups: Sequence[_PieceGroup], resources: int) -> list[Ints]:
    """Move single pieces to other routes while that shortens the longest windows; returns the counts."""
    uses = [group.uses for group in groups]
    all_windows = _Windows(uses)
    windows = [(resource, 0.0, 0.0) for resource in range(resources)]
    tables = [_tabulate(group_uses, windows) for group_uses in uses]
    counts = [group.counts.copy() for group in groups]
    best, least = counts, np.inf
    for _ in range(_MAX_WINDOW_ROUNDS if len(groups) <= _MAX_GROUPS else 1):
        _descend(counts, tables, windows)
        longest = all_windows.find_longest(counts)
        longest_ms = max(time for time, _ in longest)
        if longest_ms < least * (1 - 1e-9):
            best, least = [group_counts.copy() for group_counts in counts], longest_ms
        more = [window for time, window in longest if time >= _LONG_WINDOW_PART * longest_ms and window not in windows]
        if not more:
            break
        windows += more
        tables = [
            np.hstack((table, _tabulate(group_uses, more))) for group_uses, table in zip(uses, tables, strict=True)
        ]
    return best


def _tabulate(uses: ResourceUses, windows: Sequence[_Window]) -> Floats:
    """How long one piece on each route uses the resource of each window, inside the window."""
    resource, head, tail = (np.array(column) for column in zip(*windows, strict=True))
    inside = (uses.resource[:, None] == resource) & (uses.head[:, None] >= head) & (uses.tail[:, None] >= tail)
    table: Floats = np.add.reduceat(uses.time[:, None] * inside, np.flatnonzero(np.diff(uses.route, prepend=-1)))
    return table


def _descend(counts: list[Ints], tables: Sequence[Floats], windows: Sequence[_Window]) -> None:
    """Change the counts, piece by piece, as long as that lowers the sum of the powers of the windows' times."""
    load: Floats = np.array([head + tail for _, head, tail in windows])
    used: list[tuple[Ints, Floats]] = []
    for count, table in zip(counts, tables, strict=True):
        load += count @ table
        columns = np.flatnonzero(table.any(0))
        used.append((columns, table[:, columns]))
    for squarings in _SQUARINGS:
        for _ in range(_ROUNDING_SWEEPS):
            moved = False
            # High powers, so that the longest windows decide; as parts of the longest one, so that none overflows.
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
    """All possible windows: for every resource its heads and tails, and which of them each use has."""

    def __init__(self, uses: Sequence[ResourceUses]) -> None:
        # Routes are numbered through all groups.
        first = np.cumsum([0, *(group_uses.route[-1] + 1 for group_uses in uses[:-1])])
        route = np.concatenate([group_uses.route + start for group_uses, start in zip(uses, first, strict=True)])
        resource, time, head, tail = (
            np.concatenate([getattr(group_uses, name) for group_uses in uses])
            for name in ("resource", "time", "head", "tail")
        )
        self._tables = []
        for number in sorted(set(resource.tolist())):
            rows_of_resource = np.flatnonzero(resource == number)
            heads, row = np.unique(head[rows_of_resource], return_inverse=True)
            tails, column = np.unique(tail[rows_of_resource], return_inverse=True)
            ends = heads[:, None] + tails
            self._tables.append(
                (number, route[rows_of_resource], time[rows_of_resource], row * len(tails) + column, heads, tails, ends)
            )

    def find_longest(self, counts: Sequence[Ints]) -> list[tuple[float, _Window]]:
        """For every resource in use its longest window, with its time in ms."""
        many = np.concatenate(counts)
        longest = []
        for resource, route, time, cell, heads, tails, ends in self._tables:
            pieces = many[route]
            if pieces.any():
                sums = np.bincount(cell, time * pieces, ends.size).reshape(ends.shape)
                # A window has all uses whose head and tail are at least its own: all to the lower right in the table.
                sums = sums[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
                windows = np.where(sums > 0, sums + ends, 0.0)
                head, tail = np.unravel_index(int(windows.argmax()), windows.shape)
                longest.append((float(windows[head, tail]), (resource, float(heads[head]), float(tails[tail]))))
        return longest


def choose_piece_counts(
    demands: Sequence[Demand],
    family: Mapping[str, str],
    route_amounts: RouteAmounts,
    actions: int,
    max_pieces: int,
    limits: Mapping[str, int],
) -> dict[str, int]:
    """The number of pieces of every family of atoms, of about equal bytes each, for about `actions` actions.

    No family is cut into more than `max_pieces` pieces, and those in `limits` into no more than given there.
    """
    steps: dict[str, float] = {}
    size: dict[str, int] = {}
    ways: dict[str, int] = {}
    for demand in demands:
        name = family[demand.aggregate[0]]
        routes = route_amounts.routes[demand.shape]
        carried = sum(amount for _, amount in routes)
        mean = sum(len(route) * amount for route, amount in routes) / carried if carried else 1.0
        steps[name] = steps.get(name, 0.0) + mean
        if demand.shape.is_large:
            ways[name] = max(ways.get(name, 0), sum(amount > 0.0 for _, amount in routes))
        size[name] = demand.size

    max_each = np.array([min(max_pieces, limits.get(name, size[name]), size[name]) for name in size])
    bytes_each = np.array([size[name] for name in size], np.float64)
    steps_each = np.array([steps[name] for name in size])

    def count(grain: float) -> Floats:
        pieces: Floats = np.rint(bytes_each / grain).clip(1.0, max_each)
        return pieces

    fine, coarse = 1.0, float(max(size.values())) * 2
    for _ in range(60):
        grain = (fine * coarse) ** 0.5
        if float(count(grain) @ steps_each) > actions:
            fine = grain
        else:
            coarse = grain
    return {
        name: _suit_routes(int(pieces), ways.get(name, 1)) for name, pieces in zip(size, count(coarse), strict=True)
    }


def _suit_routes(pieces: int, ways: int) -> int:
    """A multiple of the routes that pieces of a large shape take: else one route would get twice its share."""
    return pieces - pieces % ways if pieces > ways else pieces
