"""The assignment of function specifications to sites that moves the fewest bytes.

For every atom that a function specification reads, each copy that is not at its site counts in full, except that an
aggregate which exists somewhere needs to move only once. Where sites are left over, a site that is still busy counts as
the bytes that could be moved meanwhile, so that independent parts of a model run side by side. Costs are whole numbers
in doubles; ties prefer function specification i at site i as long as the sum of both stays exact, and are otherwise
broken by the solver, which is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from einc.machines.model import Pair
from einc.physical.atoms import Inflow

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]
    Cells = np.ndarray[Any, np.dtype[np.int64]]

EXACT = 2**53
"""Whole numbers up to here are exact in a double."""

CHUNK_ELEMENTS = 1 << 22
"""Elements of a matrix of atoms by sites; beyond it, atoms are looked at in several rounds."""


def place_functions(
    inflows: Sequence[Inflow],
    functions: int,
    sites: int,
    busy: Sequence[int] | None = None,
    widths: Mapping[Pair, float] | None = None,
    *,
    in_nodes: bool = False,
) -> tuple[int, ...]:
    """A site of its own for each of `functions` function specifications (at most `sites`).

    `busy` has for every site the bytes that could be moved there until it has done its earlier work; `widths` has the
    GB/s between pairs of sites. `in_nodes` says that sites are numbered node by node (`prefer_sites`).
    """
    if busy is None or functions == sites:
        busy = (0,) * sites
        home = range(functions)  # inputs and weights are loaded wherever they are needed
        if all(_lies_at(inflow, home) for inflow in inflows):
            return tuple(range(functions))
    if not inflows:
        return _gather_free_sites(functions, busy, widths or {})
    cost = count_moved_bytes(inflows, functions, sites)
    cost += busy
    return assign_sites(cost, prefer_sites(cost) if in_nodes else None)


def place_among(inflows: Sequence[Inflow], functions: int, sites: int, among: Sequence[int]) -> tuple[int, ...]:
    """A site of its own for each of `functions` function specifications, among some of the `sites`."""
    if all(_lies_at(inflow, among) for inflow in inflows):
        return tuple(among[:functions])
    chosen = assign_sites(count_moved_bytes(inflows, functions, sites)[:, list(among)])
    return tuple([among[column] for column in chosen])


def _gather_free_sites(functions: int, busy: Sequence[int], widths: Mapping[Pair, float]) -> tuple[int, ...]:
    """The least busy sites, in ascending order; of equally busy ones those with the widest paths to the sites before.

    Of these, the lower number comes first.
    """
    near = [0.0] * len(busy)
    chosen: list[int] = []
    left = list(range(len(busy)))
    for _ in range(functions):
        site = min(left, key=lambda site: (busy[site], -near[site], site))
        chosen.append(site)
        left.remove(site)
        for neighbour in left:
            near[neighbour] += widths.get((site, neighbour), 0.0) + widths.get((neighbour, site), 0.0)
    return tuple(sorted(chosen))


def _lies_at(inflow: Inflow, sites: Sequence[int]) -> bool:
    """Whether function specification i finds all that it reads at the i-th of the sites, so that nothing moves."""
    return all(
        site in inflow.settled and inflow.settled[site].issuperset(cells)
        for site, cells in zip(sites, inflow.needs, strict=False)
    )


def count_moved_bytes(inflows: Sequence[Inflow], functions: int, sites: int) -> Matrix:
    """Bytes that must come to site s if it runs function specification f, as a (functions, sites) matrix."""
    import numpy as np

    total = np.zeros((functions, sites))
    step = max(1, CHUNK_ELEMENTS // max(functions, sites))
    for inflow in inflows:
        grid, every = inflow.grid, inflow.sizes()
        number = {cell: n for n, cell in enumerate(sorted(set().union(*inflow.needs)))}  # of the cells that are read
        sizes = np.array([every[cell] for cell in number], dtype=np.float64)

        def select(cells: Iterable[int], number: Mapping[int, int] = number) -> Cells:
            return np.array([number[cell] for cell in cells if cell in number], dtype=np.int64)

        needs = [select(function_cells) for function_cells in inflow.needs]
        copies = [
            (cells, block_copies)
            for block, block_copies in inflow.copies.items()
            if len(cells := select(grid.cells(block)))
        ]
        wholes = [
            (cells, complete.site) for complete in inflow.wholes if len(cells := select(grid.cells(complete.block)))
        ]
        for start in range(0, len(sizes), step):
            end = min(start + step, len(sizes))
            missing, needed = np.zeros((end - start, sites)), np.zeros((functions, end - start))
            for cells, block_copies in copies:
                row = np.full(sites, float(len(block_copies)))
                for copy in block_copies:
                    row[copy.site] -= 1
                missing[_select_inside(cells, start, end)] = row
            for cells, _ in wholes:
                missing[_select_inside(cells, start, end)] = 1
            for cells, site in wholes:
                missing[_select_inside(cells, start, end), site] = 0
            for function, cells in enumerate(needs):
                needed[function, _select_inside(cells, start, end)] = 1
            total += needed @ (missing * sizes[start:end, None])
    return total


def _select_inside(cells: Cells, start: int, end: int) -> Cells:
    """Those of the ascending `cells` from `start` up to `end`, counted from `start`."""
    first, last = cells.searchsorted((start, end))
    return cells[first:last] - start


def assign_sites(cost: Matrix, preferred: Cells | None = None) -> tuple[int, ...]:
    """For every row a column of its own, so that the sum of the chosen costs is least; there are enough columns.

    Of equal sums, one is chosen with most rows at their `preferred` columns, by default those of their own numbers.
    """
    import numpy as np

    rows, columns = cost.shape
    identity = np.arange(rows)
    if bool(np.all(cost[identity, identity] == cost.min(axis=1))):
        return tuple(range(rows))
    from lap import lapjv

    if float(cost.max()) * (rows + 1) * max(rows, columns) < EXACT:
        cost = cost * (rows + 1)
        cost[identity, identity if preferred is None else preferred] -= 1
        cost += 1
    _, chosen, _ = lapjv(cost, extend_cost=rows != columns)
    return tuple(int(column) for column in chosen)


def prefer_sites(cost: Matrix) -> Cells:
    """For every row the column that it should have: of those of least cost, the n-th for the n-th of some equal rows.
    Where the numbers of all these rows are among them, or more rows are equal than have room, it is the row's own
    number.

    Equal rows are function specifications that read the same block, of which there are replicas, and that differ in
    another index. With the n-th replica for the n-th of them, all with one part of that index lie in one node if the
    replicas lie in different ones. What is gathered over the first index then crosses no link between nodes.
    """
    import numpy as np

    preferred = np.arange(len(cost))
    equal_rows: dict[bytes, list[int]] = {}
    for row, costs in enumerate(cost):
        equal_rows.setdefault(costs.tobytes(), []).append(row)
    for rows in equal_rows.values():
        least = np.flatnonzero(cost[rows[0]] == cost[rows[0]].min())
        if len(rows) <= len(least) and not np.isin(rows, least).all():
            preferred[rows] = least[: len(rows)]
    return preferred
