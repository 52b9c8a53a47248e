"""Programs of a few layers: their copies are what building every layer gives, to the byte."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from einc.graph.layers import fold, fold_step
from einc.logical.plan import LogicalPlan
from einc.machines.load import load_machine
from einc.machines.model import Machine
from einc.physical.build import build
from einc.physical.few_layers import BUILT_LAYERS, FewLayers, LayersDiffer
from einc.physical.program import DeviceProgram
from einc.physical.records import emit
from einc.plan_report import Contender
from einc.search.idle_site import leave_idle
from einc.search.result import SelectedPlan
from einc.stages.planning import time_nodes
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.repetition import unfold
from tests.support.layered_plans import fold_layers, place, plan_layers, plan_step

LAYERS = 9
CASES = [("llama", 3, "synthesized"), ("llama step", 8, "naive")]
MORE_CASES = [
    (model, sites, schedule)
    for model in ("llama", "llama_decode", "llama step") for sites in (1, 3, 8) for schedule in ("naive", "synthesized")
    if (model, sites, schedule) not in CASES
]  # fmt: skip


def write_out(plan: LogicalPlan, machine: Machine, schedule: str) -> DeviceProgram:
    """The program in which every layer is built, with the memory of equal layers."""
    folded = fold(plan.graph, BUILT_LAYERS)
    assert folded is not None
    runs = tuple(replace(run, count=LAYERS) for run in folded.runs)
    return place(plan, machine, schedule, FewLayers(plan, plan, runs, LAYERS - 1, left_out=0))


@pytest.mark.parametrize(
    ("model", "sites", "schedule"), [*CASES, *[pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES]]
)
def test_copies_are_what_building_every_layer_gives(model: str, sites: int, schedule: str) -> None:
    plan, machine = plan_layers(model, sites, LAYERS)
    expected = emit(write_out(plan, machine, schedule), machine, tuple(range(sites)), schedule)
    said = fold_layers(model, sites, LAYERS, schedule)
    assert said.repetition is not None
    assert len(said.repetition.copies) == LAYERS - BUILT_LAYERS
    layers = unfold(said)
    assert layers.predicted_ms == pytest.approx(expected.predicted_ms, rel=1e-3)
    layers = msgspec.structs.replace(layers, predicted_ms=expected.predicted_ms)
    assert encode(layers) == encode(expected)
    prove(layers)


def test_a_file_says_a_layer_once_and_is_read_as_a_whole() -> None:
    said = fold_layers("llama", 3, LAYERS, "synthesized")
    data = encode(said)
    assert decode(data, folded=True) == said
    assert decode(data) == unfold(said)
    assert len(data) < 0.75 * len(encode(unfold(said)))


def test_layers_that_are_cut_otherwise_are_written_out() -> None:
    plan, machine = plan_layers("llama", 3, LAYERS)
    assert FewLayers.of(plan, machine) is not None
    choices = [*plan.choices]
    choices[90] = replace(choices[90], repartition=choices[90].repartition + 1)
    assert FewLayers.of(replace(plan, choices=tuple(choices)), machine) is None


def test_plans_for_shared_cores_are_written_out() -> None:
    plan, machine = plan_layers("llama", 1, LAYERS)
    assert FewLayers.of(plan, replace(machine, cores=2)) is None
    assert build(plan, machine).repetition is not None
    assert build(plan, machine, unfolded=True).repetition is None


def test_every_operator_of_a_part_has_a_time() -> None:
    plan, machine = plan_layers("llama", 3, LAYERS)
    few = build(plan, machine)
    assert few.repetition is not None
    times, expected = time_nodes(few, machine), time_nodes(write_out(plan, machine, "naive"), machine)
    assert times.keys() == expected.keys() == {node.name for node in plan.graph.nodes}
    assert times == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_site_may_be_left_idle() -> None:
    plan, machine = plan_layers("llama", 3, LAYERS)
    chosen = replace(plan, contenders=(Contender("tables", chosen=True),))
    idle = leave_idle(build(chosen, machine), SelectedPlan(replace(chosen, sites=4), None))
    assert idle.program is not None
    bundle = emit(idle.program, load_machine("dgx-h100").restrict(range(4)), (0, 1, 2, 3), "naive")
    assert decode(encode(bundle)) == unfold(bundle)


def test_layers_that_differ_in_what_they_read_are_not_copied() -> None:
    plan, machine = plan_layers("llama", 1, LAYERS)
    nodes = [*plan.graph.nodes]
    first, second = (next(n for n, node in enumerate(nodes) if node.name == f"layer.{i}.gate") for i in (5, 6))
    nodes[second] = replace(nodes[second], inputs=(nodes[second].inputs[0], nodes[first].inputs[1]))
    graph = replace(plan.graph, nodes=tuple(nodes))
    few = FewLayers.of(replace(plan, graph=graph), machine)
    assert few is not None
    with pytest.raises(LayersDiffer):
        place(few.plan, machine, "naive", few)


@pytest.mark.parametrize(
    ("baseline", "level", "clip", "count"),
    [
        ("fsdp", "none", 1.0, 5),  # the model, gradients, their squares, clipping and updates
        pytest.param("fsdp", "none", None, 3, marks=pytest.mark.slow),
        pytest.param("fsdp-megatron", "cheap", 1.0, 5, marks=pytest.mark.slow),
    ],
)
def test_copies_of_a_training_step_are_what_building_every_layer_gives(
    baseline: str, level: str, clip: float | None, count: int
) -> None:
    plan, machine = plan_step(12, 4, baseline, level, clip)
    folded = fold_step(plan.graph)
    assert folded is not None
    few = FewLayers.keep(plan, folded)
    assert few.left_out == 4
    assert [run.backwards for run in few.runs] == [n == 1 for n in range(count)]
    program = place(few.plan, machine, "naive", few)
    assert program.repetition is not None
    runs = tuple(replace(run, first=folded.kept[run.first], count=12) for run in few.runs)
    full = place(plan, machine, "naive", FewLayers(plan, plan, runs, 4, left_out=0))
    expected = emit(full, machine, (0, 1, 2, 3), "naive")
    layers = unfold(emit(replace(program, plan=plan), machine, (0, 1, 2, 3), "naive"))
    assert layers.predicted_ms == pytest.approx(expected.predicted_ms, rel=0.02)
    layers = msgspec.structs.replace(layers, predicted_ms=expected.predicted_ms)
    assert encode(layers) == encode(expected)
    prove(layers)
