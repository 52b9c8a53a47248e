"""Independent parts of a graph: found as by definition, and run side by side where that is faster."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.search.branches import find_independent, find_shares
from einc.search.initial_plans import SIDE_BY_SIDE
from einc_runtime.plan.schema import KernelTask
from tests.support.logical_toys import random_graph


def towers(count: int, layers: int) -> str:
    """Products that follow each other, in towers that meet in a sum at last."""
    lines = ["model towers", "dim b = 64", "dim d = 4096"]
    for t in range(count):
        lines.append(f"input x{t}_0 : f16[b, d]")
        for n in range(layers):
            lines.append(f"weight w{t}_{n} : f16[d, d]")
            lines.append(f"x{t}_{n + 1} = matmul(x{t}_{n}, w{t}_{n})")
    lines.append("output y = " + " + ".join(f"x{t}_{layers}" for t in range(count)))
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(12))
def test_independent_nodes_reach_each_other_neither_way(seed: int) -> None:
    graph = random_graph(seed, 7, tree=bool(seed % 2))
    producers = graph.producers()

    def reach(name: str) -> set[str]:
        """The nodes that a node needs, itself included."""
        node = next(node for node in graph.nodes if node.name == name)
        reached = {name}
        for tensor in node.inputs:
            if tensor in producers:
                reached |= reach(producers[tensor][0].name)
        return reached

    names = [node.name for node in graph.nodes]
    for name, mask in zip(names, find_independent(graph), strict=True):
        expected = {unrelated for unrelated in names if unrelated not in reach(name) and name not in reach(unrelated)}
        assert {name for n, name in enumerate(names) if mask >> n & 1} == expected


def test_the_share_of_a_branch_is_its_part_of_the_time() -> None:
    """Nodes 0, 1 in a row beside node 2, which is beside them; node 3 comes after all."""
    shares = find_shares([0b100, 0b100, 0b011, 0], np.array([1.0, 2.0, 6.0, 5.0]))
    assert shares.tolist() == [3 / 9, 3 / 9, 6 / 9, 1.0]
    rng = random.Random(1)
    times = np.array([rng.random() for _ in range(70)])
    halves = [((1 << 35) - 1) << 35] * 35 + [(1 << 35) - 1] * 35
    assert find_shares(halves, times)[[0, 69]].sum() == pytest.approx(1.0)


def test_towers_run_on_sites_of_their_own() -> None:
    """Four towers on two sites each are faster than all of them, one after another, on eight."""
    compiled = compile_model(
        towers(4, 3), "towers", CompileOptions(machine="dgx-a100", devices=8, schedule="naive", selector="fastest")
    )
    program = compiled.program
    times = {contender.name: contender.predicted_ms for contender in program.plan.contenders}
    together, apart = times["time"], times[SIDE_BY_SIDE]
    assert together is not None
    assert apart is not None
    assert program.predicted_ms <= apart < 0.7 * together
    sites: dict[str, set[int]] = {}
    for task in program.tasks:
        if isinstance(task, KernelTask):
            name = program.operations[task.operation].name
            if name.startswith("x"):
                sites.setdefault(name[:2], set()).add(task.site)
    assert sum(map(len, sites.values())) == len(set().union(*sites.values())) == 8
