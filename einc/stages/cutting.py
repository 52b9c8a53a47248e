"""Where a graph is cut into pipeline stages: runs of nodes, in the graph's order, that take about equally long.

A cut costs what crosses it: the next stage has each part later by this time. So stages end where little crosses, as
between two layers, unless others would be much longer then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from einc.graph.graph import Graph


def count_crossing_bytes(graph: Graph, late: Collection[int] = ()) -> list[int]:
    """For every node but the last, the bytes of the tensors that it or nodes before it make, and that nodes after it
    read. Nodes in `late` do not count as readers."""
    table, last = graph.tensor_table(), {}
    for number, node in enumerate(graph.nodes):
        if number not in late:
            last.update(dict.fromkeys(node.inputs, number))
    changes = [0] * (len(graph.nodes) + 1)
    for number, node in enumerate(graph.nodes):
        for name in node.outputs:
            if last.get(name, number) > number:
                desc = table[name].desc
                size = desc.type.size * desc.dtype.itemsize
                changes[number] += size
                changes[last[name]] -= size
    crossing, total = [], 0
    for change in changes[: len(graph.nodes) - 1]:
        total += change
        crossing.append(total)
    return crossing


def cut_stages(times: Sequence[float], moves: Sequence[float], stages: int) -> tuple[int, ...] | None:
    """The stage of every node; `times[n]` is about what node n takes, and `moves[n]` what it takes to move all that
    crosses between it and the next node. None if there are too few nodes.

    The longest stage, with what comes to it, is as short as can be. Of equal choices, the first cuts are the latest.
    """
    count = len(times)
    if stages > count:
        return None
    before = [0.0]
    for time in times:
        before.append(before[-1] + time)
    # longest[i] is the longest of the stages so far, if they have the first i nodes; last[s][i] where the last begins.
    longest = [inf, *before[1:]]
    last: list[list[int]] = []
    for _ in range(1, stages):
        row, begins = [inf] * (count + 1), [0] * (count + 1)
        for end in range(2, count + 1):
            for begin in range(end - 1, 0, -1):
                length = before[end] - before[begin]
                if length > row[end]:
                    break  # a stage that begins earlier is longer still
                most = max(longest[begin], length + moves[begin - 1])
                if most < row[end]:
                    row[end], begins[end] = most, begin
        longest = row
        last.append(begins)
    if longest[count] == inf:
        return None
    stage_of = [0] * count
    end = count
    for stage in range(stages - 1, 0, -1):
        begin = last[stage - 1][end]
        stage_of[begin:end] = [stage] * (end - begin)
        end = begin
    return tuple(stage_of)
