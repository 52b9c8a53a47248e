"""Places for the nodes of a graph on a page: in rows from its sources to its sinks, with few crossings.

The usual steps of layered drawing: the row of a node is the longest way to it, edges that cross rows bend there, rows
are put in order by the means of their neighbours, and then moved as near to these as the space between nodes allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 12
"""How often rows are put in order, downwards and upwards in turns."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The centre of every node, and the points of every edge from its source to its target: columns and rows.

    A column is as wide as a node with the space beside it; where an edge bends, it takes BEND of that.
    """

    nodes: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]
    columns: float
    rows: int


BEND = 0.28
"""The width of a bend of an edge, in widths of an operator."""


def lay_out(count: int, edges: Sequence[tuple[int, int]], drawn_back: Sequence[bool]) -> GraphLayout:
    """Places `count` nodes; an edge leads from a lower number to a higher one, or is `drawn_back` and moves nothing."""
    ahead = [(a, b) for (a, b), back in zip(edges, drawn_back, strict=True) if not back]
    rows = _find_rows(count, ahead)
    members: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for node, row in enumerate(rows):
        members[row].append(node)
    next_to: list[tuple[int, int]] = []  # pairs of neighbours, the upper one first
    bends: dict[tuple[int, int], list[int]] = {}
    row_of = list(rows)
    for a, b in dict.fromkeys(ahead):
        chain = [a]
        for row in range(rows[a] + 1, rows[b]):
            members[row].append(len(row_of))
            chain.append(len(row_of))
            row_of.append(row)
        bends[a, b] = chain[1:]
        next_to += zip(chain, [*chain[1:], b], strict=True)
    above: list[list[int]] = [[] for _ in row_of]
    below: list[list[int]] = [[] for _ in row_of]
    for upper, lower in next_to:
        below[upper].append(lower)
        above[lower].append(upper)
    _order(members, above, below)
    widths = [1.0 if node < count else BEND for node in range(len(row_of))]
    places = _place(members, above, below, widths)
    points = [(x, float(row)) for x, row in zip(places, row_of, strict=True)]
    ways = []
    for a, b in edges:
        between = [points[node] for node in bends.get((a, b), ())]
        ways.append((points[a], *between, points[b]))
    width = max((x + w / 2 for x, w in zip(places, widths, strict=True)), default=0.0)
    return GraphLayout(tuple(points[:count]), tuple(ways), width, len(members))


def _find_rows(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way to each node; what nothing leads to stands right above the first that reads it."""
    rows = [0] * count
    for a, b in sorted(edges):
        rows[b] = max(rows[b], rows[a] + 1)
    targets = {b for _, b in edges}
    readers: dict[int, int] = {}
    for a, b in edges:
        readers[a] = min(readers.get(a, rows[b]), rows[b])
    for node, row in readers.items():
        if node not in targets:
            rows[node] = max(0, row - 1)
    return rows


def _order(members: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> None:
    """Sorts every row by the mean position of the neighbours in the row before, and in the row after."""
    position = {node: float(at) for row in members for at, node in enumerate(row)}
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in members if sweep % 2 == 0 else reversed(members):
            means = {
                node: sum(position[neighbour] for neighbour in near[node]) / len(near[node])
                if near[node]
                else position[node]
                for node in row
            }
            row.sort(key=lambda node: (means[node], node))
            for at, node in enumerate(row):
                position[node] = float(at)


def _place(
    members: Sequence[Sequence[int]],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    widths: Sequence[float],
) -> list[float]:
    """Moves nodes towards the mean of their neighbours, as far as those beside them allow; the leftmost is at 0."""
    places = [0.0] * len(widths)
    for row in members:
        x = 0.0
        for node in row:
            places[node] = x + widths[node] / 2
            x += widths[node]
        for node in row:
            places[node] -= x / 2
    for sweep in range(3 * SWEEPS):
        for row in members if sweep % 2 == 0 else reversed(members):
            near = [[*above[node], *below[node]] for node in row]
            preferred = [
                sum(places[neighbour] for neighbour in neighbours) / len(neighbours) if neighbours else places[node]
                for node, neighbours in zip(row, near, strict=True)
            ]
            _settle(row, preferred, widths, places)
    least = min((places[node] - widths[node] / 2 for row in members for node in row), default=0.0)
    return [x - least for x in places]


def _settle(row: Sequence[int], preferred: Sequence[float], widths: Sequence[float], places: list[float]) -> None:
    """The places nearest to the wanted ones that keep order and distances: groups that would overlap share a mean."""
    groups: list[tuple[float, float, int, list[int]]] = []  # sum of wanted offsets, width, number of nodes, nodes
    for node, want in zip(row, preferred, strict=True):
        group = (want - widths[node] / 2, widths[node], 1, [node])
        while groups and groups[-1][0] / groups[-1][2] + groups[-1][1] > group[0] / group[2]:
            total, width, number, nodes = groups.pop()
            group = (total + group[0] - width * group[2], width + group[1], number + group[2], nodes + group[3])
        groups.append(group)
    for total, _, number, nodes in groups:
        x = total / number
        for node in nodes:
            places[node] = x + widths[node] / 2
            x += widths[node]
