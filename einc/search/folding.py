"""What the search looks at in place of graphs of many equal layers: a few layers, and what the others add."""

from __future__ import annotations

from collections.abc import Sequence

from einc.graph.graph import Graph
from einc.graph.layers import MIN_FOLDED, Folded, fold
from einc.logical.pins import Pin, find_pinned
from einc.machines.model import Machine
from einc.physical.program import DeviceProgram
from einc.predict.repeated import measure_period
from einc.predict.timeline import predict


def time_left_out(folded: Folded, program: DeviceProgram, machine: Machine) -> float:
    """What the layers that were left out of a plan add to its predicted time, in ms. The plan's operators are in the
    order of the graph."""
    repeated = folded.repeated
    timed = program.timed or predict(program, machine)
    return (folded.times[repeated[0]] - 1) * measure_period(program, timed, repeated[0], len(repeated))


def fold_pinned(graph: Graph, pins: Sequence[Pin]) -> Folded | None:
    """The folded graph, if there is one and if pins treat equal layers alike."""
    folded = fold(graph) if len(graph.nodes) >= MIN_FOLDED else None
    if folded is None or not pins:
        return folded
    cuts = {name: pin.cut for name, pin in find_pinned(graph, pins).items()}  # patterns may name each layer
    names = [node.name for node in graph.nodes]
    pinned_equally = all(cuts.get(names[n]) == cuts.get(names[folded.kept[m]]) for n, m in enumerate(folded.stands_for))
    return folded if pinned_equally else None
