"""Device programs in numbers: what their tasks cost, and that a plan file says the same of itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from einc.compiler import Compiled, compile_model
from einc.core.tensor import DType
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine
from einc.machines.model import Machine, Site
from einc.options import CompileOptions
from einc.physical.program import DeviceProgram
from einc.plan_reading.timing import read_plan_machine, time_plan
from einc.predict.cores import list_run_tasks
from einc.predict.costs import TaskKind, compute_occupied_ms, compute_task_costs
from einc.predict.timeline import time_tasks
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, KernelTask, TransferTask
from tests.support.device_programs import exchanges_of, kind_of, program_of
from tests.support.sampling import one_in
from tests.support.work_bounds import capacity_bound_ms, critical_path_ms

MODELS = Path(__file__).parents[2] / "models"


def compiled(model: str, machine: str, **options: object) -> Compiled:
    text = (MODELS / f"{model}.ein").read_text()
    chosen = CompileOptions(machine=machine, **{"schedule": "naive", **options})  # type: ignore[arg-type]
    return compile_model(text, f"{model}.ein", chosen)


PREDICTED: list[tuple[str, dict[str, object]]] = [
    ("ffn", {}),
    ("ffn", {"selector": "random", "seed": 5, "devices": 6}),
    ("ffn", {"devices": 4, "schedule": "synthesized"}),
    ("llama_block", {"preset": "tiny", "selector": "random", "seed": 1}),
    ("llama_block", {"preset": "b8x1k"}),
    ("bert", {"selector": "greedy", "devices": 4}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "machine"), one_in(4, PREDICTED, ["dgx-v100", "dgx-a100"]))
def test_a_plan_file_predicts_what_its_device_program_does(case: tuple[str, dict[str, object]], machine: str) -> None:
    model, options = case
    compilation = compiled(model, machine, **options)
    target = compilation.target.machine
    expected = time_tasks(list_run_tasks(compilation.program, target).costs, target)
    assert time_plan(compilation.bundle, read_plan_machine(compilation.bundle)).times == expected
    assert compilation.bundle.predicted_ms == expected.predicted_ms == compilation.program.predicted_ms > 0
    works = compute_task_costs(compilation.program)
    run = list_run_tasks(compilation.program, target).costs
    assert expected.predicted_ms >= critical_path_ms(run, target) * (1 - 1e-9)
    assert expected.predicted_ms >= capacity_bound_ms(run, target) * (1 - 1e-9)
    assert sum(work.flops for work in works) == sum(
        choice_flops for node_flops in _flops(compilation) for choice_flops in node_flops
    )


def predict_ms(program: DeviceProgram, machine: Machine) -> float:
    return time_tasks(list_run_tasks(program, machine).costs, machine).predicted_ms


def _flops(compilation: Compiled) -> list[list[int]]:
    pairs = zip(compilation.graph.nodes, compilation.plan.choices, strict=True)
    return [[node.operator.flops(f) for f in choice.candidate.spec.functions] for node, choice in pairs]


def test_a_plan_without_latencies_is_predicted_without_them() -> None:
    ideal, real = (compiled("ffn", "dgx-v100", ideal=ideal).bundle for ideal in (True, False))
    assert ideal.predicted_ms is not None
    assert real.predicted_ms is not None
    assert ideal.predicted_ms < real.predicted_ms
    assert time_plan(real, read_plan_machine(real).ideal()).predicted_ms == ideal.predicted_ms


def test_a_matrix_product_by_hand() -> None:
    """One site, no latencies: two products of f16 tensors, each by the roofline."""
    text = (
        "model m\ndim a=1024\ndim b=2048\ndim c=512\ninput x: f16[a,b]\nweight w: f16[b,c]\nweight v: f16[c]\n"
        "y = matmul(x, w)\nz[a] = y[a,c] * v[c]\noutput z\n"
    )
    compilation = compile_model(
        text, "m.ein", CompileOptions(machine="dgx-v100", devices=1, ideal=True, schedule="naive")
    )
    first, second = (compute_task_costs(compilation.program)[t] for t in (0, 1))
    assert (first.flops, second.flops) == (2 * 1024 * 2048 * 512, 2 * 1024 * 512)
    assert first.size == 2 * (1024 * 2048 + 2048 * 512 + 1024 * 512)
    assert second.size == 2 * (1024 * 512 + 512 + 1024)
    assert first.precision == second.precision == "f16"
    expected = first.flops / 125e12 * 1e3 + second.size / 900e9 * 1e3  # the one computes, the other reads
    assert compilation.program.predicted_ms == pytest.approx(expected)


def test_transfers_and_copies_are_as_long_as_their_regions() -> None:
    compilation = compiled("llama_block", "dgx-a100", preset="tiny", selector="random", seed=2)
    program = compilation.program
    kinds = set()
    for task, work in zip(program.tasks, compute_task_costs(program), strict=True):
        kinds.add(kind_of(task))
        reads, writes = (
            sum(r.block.size * DType(program.tensors[program.buffers[r.buffer].tensor].dtype).itemsize for r in regions)
            for regions in (reads_of(task), writes_of(task))
        )
        if isinstance(task, TransferTask):
            assert (work.size, work.target) == (reads, program.buffers[task.write.buffer].site)
        elif isinstance(task, KernelTask):
            assert work.kind is TaskKind.KERNEL
        else:
            assert work.size == reads + writes
        if isinstance(task, AggregateTask):
            assert work.kind is TaskKind.COMBINE
            assert work.size == (len(task.reads) // len(task.writes) + 1) * writes
    assert kinds >= {"kernel", "transfer", "aggregate"}


@pytest.mark.parametrize("machine", ["dgx-v100", "dgx-h100"])
@pytest.mark.parametrize("devices", [2, 5, 8])
def test_an_exchange_between_kernels_takes_its_own_time(machine: str, devices: int) -> None:
    """Rows are normalised, then columns: whatever a site has goes to all, when all have ended their first kernel."""
    text = 'model m\ndim i=64\ndim j=80\ninput x: f16[i,j]\na = softmax(x, "j")\nb = softmax(a, "i")\noutput b\n'
    options = CompileOptions(machine=machine, devices=devices, ideal=True, schedule="naive", selector="eindecomp")
    compilation = compile_model(text, "m.ein", options)
    program = compilation.program
    (exchange,) = exchanges_of(program)
    assert program.operations[1].exchange is exchange
    assert not any(isinstance(task, AggregateTask) for task in program.tasks)
    fabric = compilation.target.machine
    alone = simulate(program_of(exchange), fabric).completion_ms
    fast = Machine(fabric.name, tuple(Site(1e15, site.memory_bytes) for site in fabric.sites), fabric.resources)
    assert predict_ms(program, fast) == pytest.approx(alone, rel=1e-6)
    assert predict_ms(program, fabric) > alone


def test_kernels_are_never_free_of_their_bytes() -> None:
    machine = load_machine("dgx-a100").ideal()
    compilation = compiled("llama_block", "dgx-a100", preset="b1x1k", ideal=True)
    for work in compute_task_costs(compilation.program):
        if work.kind is TaskKind.KERNEL:
            took = compute_occupied_ms(work, machine.sites[0], 0.0)
            assert took >= work.size / 1555e6 * (1 - 1e-12)
            assert took >= work.flops / 312e12 * 1e3 * (1 - 1e-12)
            assert math.isfinite(took)
