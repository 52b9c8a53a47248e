"""Plans of training steps that compute values again, where none that keeps them all fits into memory."""

from __future__ import annotations

import math
from collections.abc import Callable

from einc.graph.graph import Graph
from einc.machines.model import Machine
from einc.search.result import SelectedPlan
from einc.training.recomputation import ForwardPart, recompute

Competitor = tuple[Graph, SelectedPlan]
"""A graph, and its plan."""


def find_recomputed(
    source: Graph,
    loss: str,
    machine: Machine,
    kept: Competitor,
    find: Callable[[Graph], Competitor],
    report: Callable[[str], None],
) -> Competitor:
    """The fastest plan that fits of those that compute more and more again; `kept` where none of them does.

    `find` fuses a graph and plans it. What is cheap is tried first, then everything between blocks. If only this fits,
    as few blocks are tried as are likely to fit, by the memory of both.
    """
    report("computing again what is cheap, as nothing fits that keeps all values")
    cheap = find(recompute(source, loss, "cheap"))
    if cheap[1].program is not None:
        return cheap
    report("computing again what is between blocks")
    best = find(recompute(source, loss, "blocks"))
    if best[1].program is None:
        return kept
    count = len(ForwardPart(source, loss).between_blocks) - 1
    limit = min(site.memory_bytes for site in machine.sites)
    most, least = _measure(cheap[1]), max(best[1].program.memory)
    blocks = math.ceil(count * (most - limit) / max(1, most - least))
    if not 0 < blocks < count:
        return best
    report(f"computing again {blocks} of {count} blocks")
    some = find(recompute(source, loss, "blocks", blocks))
    program = some[1].program
    return some if program is not None and program.predicted_ms < best[1].program.predicted_ms else best


def _measure(selected: SelectedPlan) -> int:
    """The memory of a plan that does not fit, as far as it is known."""
    return max((contender.memory or 0 for contender in selected.plan.contenders if contender.chosen), default=0)
