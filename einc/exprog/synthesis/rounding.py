"""From amounts to pieces: how many pieces every demand is cut into, and which route each piece takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc.exprog.synthesis.demands import Demand, shapes_of
from einc.exprog.synthesis.fabric import Fabric
from einc.exprog.synthesis.packing import Packing
from einc.exprog.synthesis.routes import Route
from einc.exprog.synthesis.splitting import piece_sizes

_SHARPNESS = 8
"""The power of its load with which a resource counts: high enough that the fullest ones dominate."""


def choose_routes(
    demands: Sequence[Demand], pieces: Sequence[int], packing: Packing, fabric: Fabric
) -> list[list[Route]]:
    """For every demand the routes of its pieces, near the amounts of the packing, then evened out."""
    assigned: list[list[Route]] = [[] for _ in demands]
    units: list[tuple[int, int, int]] = []  # (demand, piece, bytes)
    pools: list[list[Route]] = []
    picks: list[int] = []
    for shape, positions in shapes_of(demands).items():
        pool = [route for route, _ in packing.routes[shape]]
        left = [amount for _, amount in packing.routes[shape]]
        queue = [
            (position, number, size)
            for position in positions
            for number, size in enumerate(piece_sizes(demands[position].size, pieces[position]))
        ]
        for unit in sorted(queue, key=lambda entry: (-entry[2], entry[1], entry[0])):
            pick = max(range(len(pool)), key=lambda number: (left[number], -number))
            left[pick] -= unit[2]
            units.append(unit)
            pools.append(pool)
            picks.append(pick)
    for (position, _, _), pool, pick in zip(units, pools, _even_out(units, pools, picks, fabric), strict=True):
        assigned[position].append(pool[pick])
    return assigned


def _even_out(
    units: Sequence[tuple[int, int, int]], pools: Sequence[list[Route]], picks: list[int], fabric: Fabric
) -> list[int]:
    """Move single pieces to other routes while that lowers the loads of the fullest resources."""
    rates = np.array(fabric.rates)
    vectors: dict[int, np.ndarray] = {}
    for pool in pools:
        if id(pool) not in vectors:
            rows = np.zeros((len(pool), len(rates)))
            for number, route in enumerate(pool):
                for resource, traffic in fabric.load(route).items():
                    rows[number, resource] = traffic / rates[resource]
            vectors[id(pool)] = rows
    load = np.zeros(len(rates))
    for (_, _, size), pool, pick in zip(units, pools, picks, strict=True):
        load += size * vectors[id(pool)][pick]
    for _ in range(4):
        moved = False
        for number, ((_, _, size), pool) in enumerate(zip(units, pools, strict=True)):
            rows = vectors[id(pool)]
            without = load - size * rows[picks[number]]
            trial = without + size * rows
            scale = float(load.max())
            cost = ((trial / scale) ** _SHARPNESS).sum(1)
            best = int(cost.argmin())
            if cost[best] < cost[picks[number]] * (1 - 1e-6):
                picks[number], load, moved = best, trial[best], True
        if not moved:
            break
    return picks


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
