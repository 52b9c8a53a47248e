"""Which site runs which function specification: the assignment that moves the fewest bytes.

For every atom that a function specification reads, each copy that is not at its site counts in full, except that an
aggregate which exists somewhere needs to move only once. Costs are whole numbers in doubles; ties prefer function
specification i at site i as long as the sum of both stays exact, and are otherwise broken by the solver, which is
deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from einc.physical.atoms import Inflow

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float64]]

EXACT = 2**53
"""Whole numbers up to here are exact in a double."""


def place(inflows: Sequence[Inflow], functions: int, sites: int) -> tuple[int, ...]:
    """A site of its own for each of `functions` function specifications (at most `sites`)."""
    if not inflows:
        return tuple(range(functions))  # inputs and weights are loaded wherever they are needed
    return assign(moved_bytes(inflows, functions, sites))


def moved_bytes(inflows: Sequence[Inflow], functions: int, sites: int) -> Matrix:
    """Bytes that must come to site s if it runs function specification f, as a (functions, sites) matrix."""
    import numpy as np

    total = np.zeros((functions, sites))
    for inflow in inflows:
        grid = inflow.grid
        missing = np.empty((len(grid), sites))
        for block, copies in inflow.residency.copies.items():
            row = np.full(sites, float(len(copies)))
            for copy in copies:
                row[copy.site] -= 1
            missing[grid.cells(block)] = row
        wholes = [(grid.cells(whole.block), whole.site) for whole in inflow.residency.wholes]
        for cells, _ in wholes:
            missing[cells] = np.minimum(missing[cells], 1)
        for cells, site in wholes:
            missing[cells, site] = 0
        missing *= np.array(grid.volumes(), dtype=np.float64)[:, None]
        needed = np.zeros((functions, len(grid)))
        for function, own in enumerate(inflow.needs):
            needed[function, list(own)] = 1
        total += (needed @ missing) * inflow.residency.desc.dtype.itemsize
    return total


def assign(cost: Matrix) -> tuple[int, ...]:
    """For every row a column of its own, so that the sum of the chosen costs is least; there are enough columns."""
    import numpy as np

    rows, columns = cost.shape
    identity = np.arange(rows)
    if bool(np.all(cost[identity, identity] == cost.min(axis=1))):
        return tuple(range(rows))
    from lap import lapjv

    if float(cost.max()) * (rows + 1) * max(rows, columns) < EXACT:
        cost = cost * (rows + 1)
        cost[identity, identity] -= 1
        cost += 1
    _, chosen, _ = lapjv(cost, extend_cost=rows != columns)
    return tuple(int(column) for column in chosen)
