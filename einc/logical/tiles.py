"""Products in tiles: what a site computes of an operator is cut further, and a tile sent while the next is computed.

The functions of a tile are those of the operator for a part of the rows, and every site computes its functions of all
tiles one after the other. A plan file says so as it says of parts of the batch: an operation in so many parts has as
many functions at a site. Exchanges, tasks and the proof know functions and nothing of tiles: what one function has made
may be sent when its task has ended.
"""

from __future__ import annotations

from dataclasses import replace

from einc.logical.candidates import restore_candidate
from einc.logical.plan import Candidate, Tiles
from einc.ops.base import Operator


def cut_into_tiles(operator: Operator, candidate: Candidate, index: int, count: int) -> Candidate | None:
    """The candidate with the interval of every function along an index cut into `count` tiles; None if it cannot be.

    Tiles are equal but for rounding, and none is empty.
    """
    intervals = candidate.intervals[index]
    shardable = operator.indices[index]
    if candidate.replicas > 1 or count * len(intervals) > shardable.max_intervals:
        return None
    finer = shardable.intervals(count * len(intervals))
    if any(finer[count * n][0] != lo for n, (lo, _) in enumerate(intervals)):
        return None
    cut = (*candidate.intervals[:index], finer, *candidate.intervals[index + 1 :])
    try:
        return replace(restore_candidate(operator, cut), tiles=Tiles(index, count))
    except ValueError:
        return None
