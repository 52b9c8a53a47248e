"""The replay cuts and joins blocks where the paper's own example says, and its memory is slower."""

from __future__ import annotations

import pytest

from einc.compiler import Compiled, compile_model
from einc.logical.pins import parse_pin
from einc.machines.load import load_machine
from einc.options import CompileOptions
from einc.predict.costs import TaskKind
from tests.truth.paper_system import Launches, replay, slow_memory

MODEL = """
model example
dim i = 256
dim j = 512
dim k = 96
input a : f16[i, j]
weight b : f16[j, k]
product[i, k] = a[i, j] * b[j, k]
y = softmax(product)
output y
"""


def compile_example(consumer: str) -> Compiled:
    """Example 9 of the paper with another width: a product cut by rows and by its inner dimension, and a softmax."""
    pins = (parse_pin("product=i/2,j/2", "product"), parse_pin(f"y={consumer}", "y"))
    options = CompileOptions(machine="dgx-a100", devices=4, selector="eindecomp", schedule="naive", pins=pins)
    return compile_model(MODEL, "example.ein", options)


@pytest.mark.parametrize(("launches", "count"), [(Launches.BLOCK, 4), (Launches.ATOM, 8)])
def test_each_copy_of_a_block_is_cut_into_its_two_atoms(launches: Launches, count: int) -> None:
    run = replay(compile_example("i/4"), launches)
    added = [run.costs[position] for position in sorted(run.added)]
    assert len(added) == count
    assert all(cost.kind is TaskKind.COMBINE for cost in added)
    assert sum(cost.size for cost in added) == 4 * 2 * (128 * 96 * 2)  # four copies, read and written, in f16
    assert sorted({cost.site for cost in added}) == [0, 1, 2, 3]
    # Sums and transfers wait for the cut of the block that they read.
    first = min(run.times.starts[p] for p, cost in enumerate(run.costs) if cost.kind is TaskKind.TRANSFER)
    assert first >= min(run.times.ends[position] for position in run.added) > 0


def test_what_an_operator_reads_as_several_atoms_is_joined() -> None:
    """Two blocks of 128 rows are one of 256, and neither is cut."""
    run = replay(compile_example("whole"), Launches.ATOM)
    added = [run.costs[position] for position in sorted(run.added)]
    assert [cost.size for cost in added] == [2 * (128 * 96 * 2)] * 2
    assert len({cost.site for cost in added}) == 1
    (softmax,) = [p for p, cost in enumerate(run.costs) if cost.task == "softmax"]
    assert run.times.starts[softmax] >= max(run.times.ends[position] for position in run.added)


def test_memory_is_slower_by_the_data_sheets() -> None:
    machine = load_machine("dgx-a100")
    slower, gpu = slow_memory(machine).sites[0], machine.sites[0].gpu
    assert gpu is not None
    assert slower.sustained_gbs == pytest.approx(gpu.products[0].memory_tbs * 1e3 * 1555 / 2039)
    assert slower.hbm_gbs == machine.sites[0].hbm_gbs == 1555
