"""The model as a graph: which layers are folded, where nodes are placed, and what Graphviz and Mermaid are given."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.report.diagrams import format_dot, format_mermaid
from einc.report.document import explain
from einc.report.folding import FoldedGraph, find_runs, fold_graph
from einc.report.html.layout import BEND, lay_out
from einc_runtime.plan.schema import Bundle
from tests.support.layered_model import compile_layers
from tests.support.property_examples import examples


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_layers().bundle


@pytest.fixture(scope="module")
def document(bundle: Bundle) -> dict[str, Any]:
    return explain(bundle)


@pytest.fixture(scope="module")
def graph(bundle: Bundle, document: dict[str, Any]) -> FoldedGraph:
    return fold_graph(bundle, document["ops"])


def test_equal_layers_are_one(bundle: Bundle, graph: FoldedGraph) -> None:
    """Of three layers, the first reads an input instead of a value, so that two are equal."""
    assert sum(node.count for node in graph.nodes) == len(bundle.operations)
    (run,) = graph.runs
    assert run.count == 2
    assert run.period * 3 <= len(bundle.operations) < run.period * 4
    members = [n for n, node in enumerate(graph.nodes) if node.run == 0]
    assert [(edge.source, edge.target) for edge in graph.edges if edge.back] == [(members[-1], members[0])]


def test_edges_have_the_bytes_that_operators_are_brought(document: dict[str, Any], graph: FoldedGraph) -> None:
    for number, node in enumerate(graph.nodes):
        brought = sum(edge.size for edge in graph.edges if edge.target == number)
        assert brought <= document["ops"][node.operation]["moves"]["bytes"] * (1 + any(e.back for e in graph.edges))
    assert any(edge.size for edge in graph.edges)


@given(st.lists(st.integers(0, 2), max_size=20))
@examples(30)
def test_runs_are_repetitions(letters: list[int]) -> None:
    runs = find_runs([(letter,) for letter in letters])
    covered: set[int] = set()
    for run in runs:
        positions = range(run.start, run.start + run.period * run.count)
        assert positions[-1] < len(letters)
        assert not covered & set(positions)
        covered |= set(positions)
        assert run.count >= 2
        assert all(letters[n] == letters[n + run.period] for n in positions[: -run.period])


def test_a_run_in_the_middle_is_found() -> None:
    letters = "a" + "bcd" * 5 + "bc" + "e"
    (run,) = find_runs([(letter,) for letter in letters])
    assert (run.start, run.period, run.count) == (1, 3, 5)


def draw_edges(count: int) -> st.SearchStrategy[tuple[int, list[tuple[int, int]]]]:
    node = st.integers(0, count - 1)
    return st.tuples(st.just(count), st.lists(st.tuples(node, node), max_size=30))


@given(st.integers(1, 14).flatmap(draw_edges))
@examples(100)
def test_no_two_nodes_overlap_and_edges_lead_down(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, drawn = case
    edges = sorted({(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1]})
    layout = lay_out(count, edges, [False] * len(edges))
    by_row: dict[float, list[float]] = {}
    for x, y in layout.nodes:
        by_row.setdefault(y, []).append(x)
        assert 0.5 - 1e-9 <= x <= layout.columns - 0.5 + 1e-9
    for xs in by_row.values():
        assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(sorted(xs)))
    for (a, b), points in zip(edges, layout.edges, strict=True):
        assert (points[0], points[-1]) == (layout.nodes[a], layout.nodes[b])
        assert [y for _, y in points] == [layout.nodes[a][1] + k for k in range(len(points))]
        for x, y in points[1:-1]:  # a bend does not lie on a node
            assert all(abs(x - neighbour) >= (1 + BEND) / 2 - 1e-9 for neighbour in by_row[y])


def test_a_chain_is_a_straight_line() -> None:
    layout = lay_out(4, [(0, 1), (1, 2), (2, 3)], [False] * 3)
    assert layout.nodes == ((0.5, 0.0), (0.5, 1.0), (0.5, 2.0), (0.5, 3.0))


@pytest.mark.parametrize("name", ['"; hostile', "a\\", "<script>", "x" * 10_000, "\u202eabc\n}", "]--> x"])
def test_graphs_are_well_formed_whatever_names_are(document: dict[str, Any], graph: FoldedGraph, name: str) -> None:
    renamed = {**document, "model": name, "ops": [{**op, "name": name, "op": name} for op in document["ops"]]}
    for text in (format_dot(renamed, graph), format_mermaid(renamed, graph)):
        bare = re.sub(r'"(?:[^"\\\n]|\\.)*"', "S", text)
        assert '"' not in bare
        assert "hostile" not in bare
        assert len(re.findall(r"^ +n\d+ ?\[", bare, re.M)) == len(graph.nodes)
        assert len(re.findall(r"->|\.->", bare.replace("-.->", "->").replace("-->", "->"))) == len(graph.edges)
        assert {c for c in bare if not c.isprintable()} == {"\n"}
        assert len(text) < 400 * (len(graph.nodes) + len(graph.edges))
