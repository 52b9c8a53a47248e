"""Plans with stages, micro-batches and replicas compute what the plan without them computes, and are proved."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from einc.compiler import Compiled, compile_model
from einc.errors import CapacityError, UsageError
from einc.graph.decode_step import StepRequest
from einc.logical.division import DivisionShape
from einc.options import CompileOptions
from einc.report.division import summarize_division
from einc.report.document import explain
from einc.report.terminal import format_overview
from einc.stages.choice import ShapeSearch
from einc.verification.exchanges import verify_exchanges
from einc_runtime.errors import PlanFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Bundle, KernelTask
from einc_runtime.plan.validation import validate
from tests.support.compiled_plans import MODELS
from tests.support.cuda_plans import agree, cpu_results, on_fake
from tests.support.mpi_runs import SMALL as SIZES
from tests.support.plan_arrays import arrays_of, outputs_of, results

SMALL = {
    "n_layers": 2, "batch": 4, "length": 5, "d_model": 36, "heads_q": 6, "heads_kv": 3, "d_head": 6, "d_ff": 44,
    "vocab": 53,
}  # fmt: skip
LLAMA = (MODELS / "llama.ein").read_text()
MEAN = """model mean
dim batch = 6
dim width = 10
dim hidden = 14
input x : f32[batch, width]
input scale : f32[width]
weight w : f32[width, hidden]
weight v : f32[hidden, width]
root[width] = sqrt(abs(scale[width]))
a[batch, width] = x[batch, width] * root[width]
h[batch, hidden] = a[batch, width] * w[width, hidden]
g = gelu(h)
y[batch, width] = g[batch, hidden] * v[hidden, width]
z = a + y
best[width] = max[batch](z[batch, width])
output z, best, root
"""


def plan(text: str, sites: int, definitions: dict[str, int] | None = None, **options: object) -> Compiled:
    defined = tuple((name, str(value)) for name, value in (definitions or {}).items())
    settings: dict[str, object] = {"schedule": "naive", **options}
    chosen = CompileOptions(machine="dgx-h100", devices=sites, definitions=defined, **settings)  # type: ignore[arg-type]
    return compile_model(text, "model.ein", chosen)


def run(bundle: Bundle) -> dict[str, np.ndarray]:
    """The outputs of a run in a random order of tasks, over memory that is poisoned."""
    rng = random.Random(5)
    executor = CpuExecutor(bundle, 2, poison=True, ranks=[rng.random() for _ in bundle.tasks])
    return results(Session(bundle, executor=executor), arrays_of(bundle, 3))


@pytest.fixture(scope="module")
def undivided() -> dict[str, np.ndarray]:
    return run(plan(LLAMA, 1, SMALL, dtype="f64").bundle)


@pytest.mark.parametrize(
    ("sites", "shape"),
    [
        (2, (2, 2, 1)),
        *(
            pytest.param(n, shape, marks=pytest.mark.slow)
            for n, shape in [(4, (2, 4, 1)), (4, (1, 1, 4)), (6, (3, 2, 1))]
        ),
        (4, (2, 1, 2)),
        pytest.param(8, (2, 2, 2), marks=pytest.mark.slow),
    ],
)
def test_a_divided_plan_computes_the_model(sites, shape, undivided):
    stages, microbatches, replicas = shape
    compiled = plan(LLAMA, sites, SMALL, dtype="f64", stages=stages, microbatches=microbatches, replicas=replicas)
    bundle = compiled.bundle
    validate(bundle)
    prove(bundle)
    assert all(operation.parts in (1, microbatches * replicas) for operation in bundle.operations)
    for name, expected in undivided.items():
        assert np.abs(run(bundle)[name] - expected).max() <= 1e-12 * np.abs(expected).max()
    division = explain(bundle)["division"]
    assert (len(division["stages"]), division["microbatches"], division["replicas"]) == shape
    assert 0 < division["bubble"] < 1
    sites_of_stages = [{site for group in stage["sites"] for site in group} for stage in division["stages"]]
    assert sum(map(len, sites_of_stages)) == len(set().union(*sites_of_stages)) == sites


def test_stages_run_beside_each_other():
    """Two stages take less than one after the other would, and no site has an operator of both."""
    bundle = plan(LLAMA, 2, SMALL | {"length": 512, "d_model": 288}, stages=2, microbatches=4, replicas=1).bundle
    assert len({task.site for task in bundle.tasks if isinstance(task, KernelTask) and task.operation == 0}) == 1
    division = explain(bundle)["division"]
    assert sum(stage["busy_part"] for stage in division["stages"]) > 1.3
    assert "2 stages, 4 micro-batches" in summarize_division(division)[0]
    assert "from operator" in format_overview(explain(bundle))


@pytest.mark.slow
def test_captured_graphs_run_stages():
    """The graph that is captured for GPUs, on a stand-in for the driver; each site has a GPU, or all have one."""
    bundle = plan(MEAN, 6, dtype="f32", stages=2, microbatches=3, replicas=1).bundle
    arrays = arrays_of(bundle)
    expected = cpu_results(bundle, arrays)
    for devices in (None, [0] * 6):
        session, _, _ = on_fake(bundle, devices)
        session.load_all(arrays)
        for _ in range(2):
            session.execute()
            agree(outputs_of(session), expected)


@pytest.mark.slow
def test_estimates_are_near_the_simulation_of_whole_plans():
    """Of sizes at which kernels, and not launches, take the time."""
    sizes = {"n_layers": 4, "batch": 8, "length": 512, "vocab": 1000}
    compiled = plan(LLAMA, 8, sizes)
    search = ShapeSearch(compiled.graph, compiled.target.machine, 8, naive=True, budget=compiled.budget)
    for shape in (DivisionShape(2, 4, 1), DivisionShape(4, 8, 1), DivisionShape(2, 2, 2), DivisionShape(1, 1, 4)):
        promise = search.promise(shape)
        assert promise is not None
        built_ms = search.build(promise.plan).predicted_ms
        assert search.bound_ms(shape) <= promise.ms
        assert promise.ms == pytest.approx(built_ms, rel=0.15)


@pytest.mark.slow
def test_reproducible_plans_have_the_bits_of_one_site():
    expected = run(plan(LLAMA, 1, SMALL, reproducible=True).bundle)
    computed = run(plan(LLAMA, 4, SMALL, reproducible=True, stages=2, microbatches=2, replicas=1).bundle)
    assert all(np.array_equal(computed[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_a_decode_step_keeps_its_caches_part_by_part():
    text = LLAMA.replace("rows = embedding(last, last_x)", "rows = last_x").replace("sequences, vocab", "tokens, vocab")
    text = text.replace("rows[sequences, d_model]", "rows[tokens, d_model]")
    options = {"dtype": "f64", "step": StepRequest("tokens", 1)}
    divided = plan(text, 4, SMALL, **options, stages=2, microbatches=2, replicas=1).bundle
    undivided = plan(text, 1, SMALL, **options).bundle
    prove(divided)
    arrays = arrays_of(undivided, 2)
    arrays["positions"] = np.array([2, 0, 4, 1])
    outputs = [results(Session(bundle), arrays) for bundle in (divided, undivided)]
    assert all(np.allclose(outputs[0][name], expected, rtol=1e-11) for name, expected in outputs[1].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama_decode", "llama_block", "moe"])
def test_other_models_are_divided(name):
    """Each in two stages and micro-batches; a block of LLaMA has sequences of one length then."""
    sizes = SIZES[name] | {
        "bert": {"batch": 4},
        "llama_decode": {"batch": 4},
        "llama_block": {"seq_lens": "[5, 5]"},
    }.get(name, {})
    text = (MODELS / f"{name}.ein").read_text()
    divided = plan(text, 4, sizes, dtype="f64", stages=2, microbatches=2, replicas=1).bundle
    prove(divided)
    expected, computed = run(plan(text, 1, sizes, dtype="f64").bundle), run(divided)
    for output, array in expected.items():
        assert np.abs(computed[output] - array).max() <= 1e-11 * np.abs(array).max()


def test_what_has_no_batch_is_computed_once():
    """`root` comes before the parts, and `best`, which needs them all, after them."""
    compiled = plan(MEAN, 6, dtype="f64", stages=2, microbatches=3, replicas=1)
    division = compiled.plan.division
    assert division is not None
    names = [node.name for node in compiled.graph.nodes]
    once = {names[n] for n, index in enumerate(division.index_of) if index is None}
    assert {names[n] for n in division.late} == {"best"}
    assert once - {"best"} <= {"root"}
    expected = run(plan(MEAN, 1, dtype="f64").bundle)
    computed = run(compiled.bundle)
    assert all(np.allclose(computed[name], expected[name], rtol=1e-12) for name in expected)


@pytest.fixture(scope="module")
def two_stages() -> Compiled:
    return plan(LLAMA, 4, SMALL, stages=2, microbatches=2, replicas=1)


def test_exchanges_of_all_parts_are_verified(two_stages):
    bundle, machine = two_stages.bundle, two_stages.target.machine
    list(verify_exchanges(bundle, machine))
    number = next(n for n, operation in enumerate(bundle.operations) if operation.later)
    lying = msgspec.structs.replace(bundle.operations[number], later=())
    operations = (*bundle.operations[:number], lying, *bundle.operations[number + 1 :])
    with pytest.raises(PlanFault, match="the program sends"):
        list(verify_exchanges(msgspec.structs.replace(bundle, operations=operations), machine))


def test_two_functions_of_a_part_have_two_sites(two_stages):
    bundle = two_stages.bundle
    number = next(n for n, operation in enumerate(bundle.operations) if len(operation.functions) == 4)
    functions = tuple(msgspec.structs.replace(f, site=0) for f in bundle.operations[number].functions)
    lying = msgspec.structs.replace(bundle.operations[number], functions=functions)
    operations = (*bundle.operations[:number], lying, *bundle.operations[number + 1 :])
    with pytest.raises(PlanFault, match="4 of 2 parts at site 0"):
        validate(msgspec.structs.replace(bundle, operations=operations))


@pytest.mark.slow
def test_throughput_takes_the_fastest_shape():
    """Of all that was built, the plan that computes the batch at once among it."""
    compiled = plan(LLAMA, 4, SMALL, schedule="synthesized", objective="throughput")
    shapes = compiled.plan.shapes
    assert sum(shape.chosen for shape in shapes) == 1
    built = [shape for shape in shapes if shape.built]
    assert min(shape.predicted_ms for shape in built) == compiled.program.predicted_ms
    assert any((shape.stages, shape.microbatches, shape.replicas) == (1, 1, 1) for shape in built)


def test_a_short_time_limit_still_gives_a_plan():
    compiled = plan(LLAMA, 4, SMALL, objective="throughput", time_limit=1e-3)
    assert [shape.chosen for shape in compiled.plan.shapes] == [True]
    prove(compiled.bundle)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stages": 3}, UsageError, "4 sites have no equal groups for 3 stages"),
        ({"microbatches": 3, "stages": 2, "replicas": 1}, UsageError, "cannot be divided into 3 equal parts"),
        ({"stages": 2, "selector": "greedy"}, UsageError, "chosen by time"),
        ({"stages": 2, "input_placement": "once"}, UsageError, "cannot have --input-placement once"),
        ({"stages": 0}, UsageError, "--stages is 0"),
        ({"latency_at_most": 1e-6}, CapacityError, "no plan takes at most 1e-06 ms"),
        pytest.param(
            {"stages": 2, "microbatches": 2, "replicas": 1, "memory": 4096},
            CapacityError,
            "does not fit|fits into",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_not_possible_is_said(options, error, message):
    model = (MEAN, 2) if "latency_at_most" in options else (LLAMA, 4, SMALL | {"n_layers": 1})
    with pytest.raises(error, match=message):
        _ = plan(*model, **options).bundle
