"""Cuts into stages and the times of pipelines, against all possibilities and against another definition."""

from __future__ import annotations

import itertools
import random

from einc.logical.division import Division, DivisionShape, list_part_functions
from einc.stages.choice import ShapeRequest
from einc.stages.planning import cut_stages, list_groups, run_pipeline


def find_longest_way(times: list[float], moves: list[float], microbatches: int) -> float:
    """The end of a pipeline as the longest way through the grid of stages and micro-batches: to the next stage, or to
    the next micro-batch of the same stage."""
    stages = len(times)
    best = 0.0
    for downs in itertools.combinations(range(stages + microbatches - 2), stages - 1):
        stage, length = 0, times[0]
        for step in range(stages + microbatches - 2):
            if step in downs:
                length += moves[stage]
                stage += 1
            length += times[stage]
        best = max(best, length)
    return best


def test_a_pipeline_ends_with_its_longest_way():
    rng = random.Random(7)
    for stages, microbatches in [(1, 1), (1, 5), (2, 1), (2, 3), (3, 4), (4, 3), (5, 5)]:
        times = [rng.uniform(1, 3) for _ in range(stages)]
        moves = [rng.uniform(0, 1) for _ in range(stages - 1)]
        expected = find_longest_way(times, moves, microbatches)
        assert abs(run_pipeline(times, moves, microbatches) - expected) < 1e-12 * expected


def test_the_bubble_of_equal_stages_is_the_known_one():
    assert run_pipeline([2.0] * 4, [0.0] * 3, 12) == 2.0 * (12 + 4 - 1)


def test_no_other_cut_has_a_shorter_longest_stage():
    rng = random.Random(3)
    for nodes, stages in [(4, 2), (7, 3), (9, 4), (5, 5), (8, 1)]:
        times = [rng.choice((0.0, 1.0, 2.5, 4.0)) for _ in range(nodes)]
        moves = [rng.choice((0.1, 3.0)) for _ in range(nodes)]

        def rate(bounds: tuple[int, ...], times=times, moves=moves, nodes=nodes) -> float:
            ends = (*bounds, nodes)
            lengths = [sum(times[begin:end]) for begin, end in itertools.pairwise((0, *ends))]
            arriving = [0.0, *(moves[begin - 1] for begin in bounds)]
            return max(map(sum, zip(lengths, arriving, strict=True)))

        stage_of = cut_stages(times, moves, stages)
        assert stage_of is not None
        assert list(stage_of) == sorted(stage_of)
        chosen = tuple(stage_of.index(stage) for stage in range(1, stages))
        best = min(map(rate, itertools.combinations(range(1, nodes), stages - 1)))
        assert rate(chosen) == best


def test_more_stages_than_nodes_are_not_possible():
    assert cut_stages([1.0, 1.0], [0.0, 0.0], 3) is None


def test_every_function_belongs_to_one_part():
    intervals = (((0, 5),), tuple((k, k + 1) for k in range(6)), ((0, 1), (1, 3)))
    parts = [list_part_functions(intervals, 1, 3, part, 24) for part in range(3)]
    assert sorted(f for functions in parts for f in functions) == list(range(24))
    grid = list(itertools.product(*intervals)) * 2
    assert all({grid[f][1][0] // 2 for f in functions} == {part} for part, functions in enumerate(parts))


def test_groups_are_disjoint_and_parts_belong_to_replicas():
    shape = DivisionShape(3, 2, 2)
    groups = list_groups(shape, 12)
    assert sorted(site for replica in groups for stage in replica for site in stage) == list(range(12))
    division = Division(shape, (0, 1, 2, 2), (0, 0, 0, None), frozenset({3}), groups)
    assert [part for part, _ in division.list_parts()] == [0, 2, 1, 3]
    assert division.find_sites(1, 3) == groups[1][1]
    steps = list(division.list_steps())
    assert steps[:3] == [(0, 0), (1, 0), (2, 0)]
    assert steps[-1] == (3, None)


def test_shapes_keep_to_what_is_asked():
    shapes = list(ShapeRequest(replicas=2).list_shapes(8))
    assert {(shape.stages, shape.replicas) for shape in shapes} == {(1, 2), (2, 2), (4, 2)}
    assert all(shape.microbatches >= shape.stages for shape in shapes)
    assert list(ShapeRequest(3, 1, 1).list_shapes(8)) == []
