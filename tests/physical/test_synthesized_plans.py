"""Plans with synthesized exchanges: they compute what they should, are proved, and are never slower than naive."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.exchange.language.checker import check
from einc.exchange.synthesis import synthesize
from einc.logical.optimize import optimize
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource
from einc.options import CompileOptions
from einc.physical.atoms import find_inflows
from einc.physical.build import build, build_fast
from einc.physical.program import DeviceProgram
from einc.physical.records import emit
from einc.physical.residency import CompleteBlock, Residency
from einc.physical.synthesis import SynthesizingScheduler
from einc.physical.verify import verify
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.joint_aggregation import AggregationGroup
from einc_runtime.plan.proof import prove, prove_data
from einc_runtime.plan.schema import AggregateTask, Block, KernelTask, Region, Tensor
from tests.support.device_programs import exchanges_of, program_of
from tests.support.joint_aggregation_toys import SIGNATURES, toy_arrays, toy_graph, toy_kernels
from tests.support.physical_interpreter import interpret
from tests.support.physical_toys import formula, graph_of, plan_of, random_graph, whole_arrays
from tests.support.racing import races

__all__ = ["toy_kernels"]

MODELS = Path(__file__).resolve().parents[2] / "models"


def mesh(sites: int) -> Machine:
    return load_machine("dgx-v100").restrict(range(sites)).ideal()


def sites_help_others_first(program: DeviceProgram) -> bool:
    """Whether kernels wait for all that their sites combine in the exchange before the first of them."""
    kernels = [(number, task) for number, task in enumerate(program.tasks) if isinstance(task, KernelTask)]
    first = {task.serves: number for number, task in reversed(kernels)}
    return all(
        number in task.after
        for _, task in kernels
        for number, earlier in enumerate(program.tasks[: first[task.serves]])
        if (earlier.serves, earlier.site) == (task.serves, task.site) and isinstance(earlier, AggregateTask)
    )


def checked(program: DeviceProgram, machine: Machine) -> DeviceProgram:
    verify(program)
    assert sites_help_others_first(program)
    assert next(races(program), None) is None
    for exchange in exchanges_of(program):
        assert check(program_of(exchange), machine).valid
        assert exchange.completion_ms is not None
        assert exchange.naive_ms is not None
        assert exchange.bound_ms is not None
        assert exchange.bound_ms <= exchange.completion_ms * (1 + 1e-9)
        assert exchange.completion_ms <= exchange.naive_ms * (1 + 1e-9)
        assert exchange.bound_free_ms is None or exchange.bound_free_ms <= exchange.bound_ms * (1 + 1e-9)
    assert program.predicted_ms <= build(program.plan, machine).predicted_ms * (1 + 1e-9)
    return program


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_compute_their_reference(seed: int) -> None:
    rng = random.Random(seed)
    graph, sites = random_graph(rng), 2 + seed % 4
    machine = mesh(sites)
    program = checked(build_fast(optimize(graph, sites, selector="random", seed=seed), machine), machine)
    arrays = whole_arrays(graph)
    for order in range(2):
        for name, array in interpret(program, arrays, order).items():
            np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.usefixtures("toy_kernels")
@pytest.mark.parametrize("kind", SIGNATURES)
def test_tuples_move_in_pieces(kind: str) -> None:
    """What the search is asked for does not matter here, so that every exchange is taken that it finds."""
    cut = 0
    for seed, sites in enumerate((3, 3)):
        machine = mesh(sites)
        plan = optimize(toy_graph(kind, random.Random(seed)), sites, selector="random", seed=seed)
        program = build(plan, machine, SynthesizingScheduler(machine, sites))
        verify(program)
        cut += sum(len(exchange.splits) for exchange in exchanges_of(program))
        arrays = toy_arrays(plan.graph, seed)
        for name, array in interpret(program, arrays, seed).items():
            np.testing.assert_allclose(array, arrays[name], rtol=1e-5, atol=1e-5)
        prove_data(decode(encode(emit(program, machine, tuple(range(sites)), "synthesized"))))
    assert cut or kind == "top"  # whose tuples need most dimensions whole


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "machine", "devices", "settings"),
    [
        ("chain_b", "dgx-v100", 4, {"scale": "90"}),
        pytest.param("chain_c", "dgx-a100", 7, {"scale": "200"}, marks=pytest.mark.slow),
        pytest.param("llama_block", "dgx-v100", 3, {}, marks=pytest.mark.slow),
        pytest.param("llama_block", "host", 5, {}, marks=pytest.mark.slow),
        ("ffn", "dgx-h100", 6, {"tokens": "50", "d_model": "23", "d_ff": "99"}),
    ],
)
def test_models_compute_what_naive_plans_compute(
    model: str, machine: str, devices: int, settings: dict[str, str]
) -> None:
    """On the CPU, inputs drawn at random; ideal, so that pieces pay however small they are."""
    results = []
    for schedule in ("synthesized", "naive"):
        options = CompileOptions(
            machine=machine,
            devices=devices,
            definitions=tuple(settings.items()),
            preset="tiny" if model == "llama_block" else None,
            dtype="f32",
            schedule=schedule,
            ideal=True,
        )
        bundle = compile_model((MODELS / f"{model}.ein").read_text(), f"{model}.ein", options).bundle
        prove(bundle)
        session = Session(bundle, executor=CpuExecutor(bundle, 2, poison=True))
        session.load_all({t.name: make_random_array(t, n) for n, t in enumerate(bundle.tensors) if t.kind != "value"})
        session.execute()
        results.append({tensor.name: session.offload(tensor.name) for tensor in session.outputs})
    for name, array in results[0].items():
        np.testing.assert_allclose(array, results[1][name], rtol=2e-4, atol=2e-4 * np.abs(array).max())


def remove_link(machine: Machine, *sites: int) -> Machine:
    """The machine without any path between two sites."""
    left = [
        replace(resource, pairs=tuple(p for p in resource.pairs if set(p) != set(sites)))
        for resource in machine.resources
    ]
    return replace(machine, name="cut", resources=tuple(resource for resource in left if resource.pairs))


def ring(sites: int) -> Machine:
    pairs = [pair for k in range(sites) for pair in ((k, (k + 1) % sites), ((k + 1) % sites, k))]
    links = tuple(Resource(f"{a}-{b}", 50.0, ((a, b),)) for a, b in pairs)
    return replace(load_machine("dgx-v100"), sites=load_machine("dgx-v100").sites[:1] * sites, resources=links)


@pytest.mark.parametrize(
    "machine",
    [
        remove_link(load_machine("dgx-v100").restrict(range(4)), 0, 3),
        pytest.param(remove_link(load_machine("dgx-v100"), 0, 3), marks=pytest.mark.slow),
        pytest.param(ring(18), marks=pytest.mark.slow),  # too large for the linear program
    ],
    ids=["four", "eight", "ring"],
)
def test_a_machine_without_a_link_computes_the_same(machine: Machine) -> None:
    sites = len(machine.sites)
    definitions = {"tokens": "50", "d_model": "23", "d_ff": "99"}
    options = CompileOptions(
        machine="host", devices=sites, definitions=tuple(definitions.items()), dtype="f32", selector="eindecomp"
    )
    plan = compile_model((MODELS / "ffn.ein").read_text(), "ffn.ein", options).plan
    for program in (build(plan, machine), checked(build_fast(plan, machine), machine)):
        bundle = emit(program, machine, tuple(range(sites)), "naive")
        prove(bundle)
        rng = np.random.default_rng(5)
        arrays = {t.name: rng.normal(size=t.shape).astype("f4") for t in bundle.tensors if t.kind != "value"}
        session = Session(bundle, executor=CpuExecutor(bundle, 2, poison=True))
        session.load_all(arrays)
        session.execute()
        expected = np.maximum(arrays["x"] @ arrays["w1"], 0) @ arrays["w2"]
        np.testing.assert_allclose(session.offload("y"), expected, rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("schedule", ["naive", pytest.param("synthesized", marks=pytest.mark.slow)])
def test_a_missing_link_costs_little(schedule: str) -> None:
    machine = load_machine("dgx-v100")
    options = CompileOptions(machine="dgx-v100", selector="eindecomp")
    plan = compile_model((MODELS / "ffn.ein").read_text(), "ffn.ein", options).plan
    make = build if schedule == "naive" else build_fast
    assert make(plan, remove_link(machine, 0, 3)).predicted_ms <= 1.2 * make(plan, machine).predicted_ms


def test_repeated_exchanges_are_synthesized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        return synthesize(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("einc.physical.synthesis.synthesize", counted)
    product = formula("ij jk -> ik:sum", i=64, j=64, k=64)
    nodes = [(f"h{n}", product, ("x" if n == 0 else f"h{n - 1}", f"w{n}")) for n in range(7)]
    plan = plan_of(graph_of(nodes, ["h6"]), 4, {f"h{n}": (1, 4, 1) for n in range(7)})
    program = build(plan, mesh(4), SynthesizingScheduler(mesh(4), 4))
    exchanges = [operation.exchange for operation in program.operations if operation.exchange is not None]
    assert len(exchanges) == 6
    assert len({id(exchange.program) for exchange in exchanges}) == 1
    assert 1 <= len(calls) <= 4  # between layers and to the output, each again where the placement is open
    assert not exchanges[0].naive


def test_sites_that_are_given_stay() -> None:
    """Data lies on site 0, where reading it would be free: what writes over a state is where the state is."""
    block = Block.whole((64, 64))
    record = Tensor("x", ("i", "j"), (64, 64), "f32", "value")
    residency = Residency(0, record, AggregationGroup.single("sum", 0, 2), {})
    residency.add(CompleteBlock(0, Region(0, block), ()))
    _, inflows = find_inflows({0: [(block,)]}, {0: residency})
    assert SynthesizingScheduler(mesh(3), 3).bring("y", inflows, (1,)).sites == (1,)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan() -> None:
    graph = random_graph(random.Random(5))
    plan = optimize(graph, 3, selector="random", seed=5)
    first, second = (build_fast(plan, mesh(3), SynthesizingScheduler(mesh(3), 3, seed=2)) for _ in range(2))
    assert first == second
