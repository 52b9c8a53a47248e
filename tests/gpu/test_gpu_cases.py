"""What of `make gpu-check` needs no GPU: its cases on the fake driver, references, what is measured."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.environment import ATTENTION
from einc_runtime.execution.cuda import executor as cuda
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.base import COMPOSED_KERNELS
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.triton import builders
from einc_runtime.plan.aggregate_definitions import DEFINED_EXACT
from einc_runtime.plan.schema import AggregateTask, KernelTask
from tests.gpu import benchmark, products, steps
from tests.gpu.benchmark import compiled as compiled_benchmark
from tests.gpu.benchmark import measured
from tests.gpu.cases import BENCHMARKS, CASES, SITES
from tests.gpu.ceilings import Ceilings
from tests.gpu.correctness import arrays_of, attentions, check, compiled, largest_error, reference
from tests.gpu.layouts import Layout
from tests.gpu.model_texts import TEXTS
from tests.gpu.places import CPU, GPU
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels

CEILINGS = Ceilings(3e12, 8e14)
SMALL = [(case, case.sites[number % len(case.sites)]) for number, case in enumerate(CASES) if not case.slow]


def on_fake(bundle):
    driver = FakeDriver(1, seed=len(bundle.tasks))
    executor = CudaExecutor(bundle, [0] * len(bundle.memory), driver=driver, kernels=NumpyKernels(driver))
    return Session(bundle, executor=executor)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("case", "sites"),
    [
        pytest.param(case, sites, id=f"{case.title} {sites}", marks=() if quick else pytest.mark.slow)
        for number, (case, sites) in enumerate(SMALL)
        for quick in [number % (2 if case.dtype == "f32" else 4) == 0]
    ],
)
def test_cases_hold_on_the_fake_driver(case, sites):
    expected = reference(case, arrays_of(compiled(case, 1, case.dtype)))
    result = check(case, sites, on_fake, expected, None)
    assert result.holds, result
    wrong = {name: array + 1 if array.dtype.kind != "b" else ~array for name, array in expected.items()}
    assert largest_error(wrong, expected) > result.tolerance


def test_attention_is_checked_with_and_without_libraries(monkeypatch):
    monkeypatch.setenv(ATTENTION, "torch")
    asked = []

    def make_session(bundle):
        asked.append(os.environ[ATTENTION])
        return on_fake(bundle)

    for dtype, expected in (("f16", ["torch", "einc"]), ("f32", ["torch"])):
        case = next(case for case in CASES if (case.name, case.dtype) == ("attention_cases", dtype))
        asked.clear()
        result = check(case, 1, make_session, reference(case, arrays_of(compiled(case, 1, dtype))), None)
        assert result.holds
        assert asked == expected
        assert list(result.errors) == (["library", "own kernel"] if dtype == "f16" else [])
    assert attentions(compiled(case, 1, "f16")).keys() == {"library", "own kernel"}
    monkeypatch.setenv(ATTENTION, "einc")
    assert attentions(compiled(case, 1, "f16")) == {"library": None}  # nothing to be compared
    monkeypatch.setenv(ATTENTION, "torch")
    assert os.environ[ATTENTION] == "torch"


def test_every_operator_is_in_some_case():
    from einc.ops import registry

    called = {name for text in TEXTS.values() for name in re.findall(r"\b([a-z_0-9]+)\(", text)}
    assert set(registry.list_names()) <= called


def test_every_kernel_and_aggregation_is_in_some_plan():
    kernels, aggregations, merges = set(), set(), set()
    for run in GPU.runs():
        if run.case.name in TEXTS and run.case.dtype == "f32" and run.layout is Layout.ONE:
            bundle = compiled(run.case, run.sites, run.case.dtype)
            for task in bundle.tasks:
                if isinstance(task, KernelTask):
                    kernels.add(bundle.operations[task.operation].kernel)
                elif isinstance(task, AggregateTask):
                    (aggregations if len(task.writes) == 1 else merges).add(task.aggregation)
    # Operators of packages are no part of einc: a GPU of their own user checks them.
    assert kernels == set(builders.KERNELS) - {"custom"} | COMPOSED_KERNELS
    assert merges == {*builders.JOINT_AGGREGATION_BUILDERS, DEFINED_EXACT}
    assert aggregations == {"sum", "prod", "max", "min"}


@pytest.mark.parametrize("sites", SITES)
def test_cases_cover_every_number_of_sites_and_kind_of_model(sites):
    there = {run.case.name for run in GPU.runs() if run.sites == sites}
    assert there >= {"ffn", "chain_a", "chain_b", "chain_c", "llama_block", "llama", "llama_decode", "bert", *TEXTS}


def test_pytorch_and_numpy_agree():
    pytest.importorskip("torch")
    from tests.gpu.torch_models import reference as torch_reference

    for name, dtype in (("ffn", "bf16"), ("chain_a", "f32"), ("llama_block", "f16")):
        case = next(case for case in CASES if (case.name, case.dtype) == (name, dtype) and not case.slow)
        bundle = compiled(case, 1, dtype)
        arrays = arrays_of(bundle)
        assert largest_error(torch_reference(bundle, arrays, "cpu"), reference(case, arrays)) < 1e-9
    elementwise = next(case for case in CASES if case.name == "elementwise")
    assert torch_reference(compiled(elementwise, 1, "f32"), {}, "cpu") is None


@pytest.mark.slow
def test_pytorchs_models_can_be_compiled_whole():
    torch = pytest.importorskip("torch")
    from tests.gpu.torch_models import given, model_of

    for name in ("ffn", "chain_a", "llama_block"):
        case = next(case for case in CASES if (case.name, case.dtype) == (name, "f32") and not case.slow)
        bundle = compiled(case, 1, "f32")
        weights = given(bundle, arrays_of(bundle), device="cpu")
        model = model_of(bundle)
        with torch.inference_mode():
            whole = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")(weights)
            assert torch.equal(whole, model(weights))


@pytest.mark.slow
def test_jax_computes_the_same():
    pytest.importorskip("jax")
    from tests.gpu import jax_models

    case = next(case for case in CASES if (case.name, case.dtype) == ("llama_block", "f32") and not case.slow)
    case = replace(case, definitions=(("seq_lens", "[13]"), *case.definitions[1:]))
    bundle = compiled(case, 1, "f32")
    arrays = arrays_of(bundle)
    found = np.asarray(jax_models._block(bundle, "xla")(arrays))
    assert largest_error({"y": found}, reference(case, arrays)) < 1e-5
    chain = next(case for case in CASES if case.name == "chain_a" and not case.slow)
    arrays = arrays_of(compiled(chain, 1, "f32"))
    found = np.asarray(jax_models._chain(compiled(chain, 1, "f32"))(arrays))
    assert largest_error({"y": found}, reference(chain, arrays)) < 1e-5


@pytest.mark.parametrize("sites", [1, 4])
def test_where_the_time_of_a_plan_goes(monkeypatch, sites):
    case = next(case for case in CASES if case.name == "llama_block" and not case.slow)
    bundle = compiled(case, sites, "f32")
    driver = FakeDriver(1)
    executor = cuda.CudaExecutor(bundle, [0] * sites, driver=driver, kernels=NumpyKernels(driver))
    times: dict[str, float] = {}
    *table, blank, last = steps.steps(executor, times, CEILINGS, 10.0)
    assert driver.counts["launch"] == 3  # 30 ms ahead
    assert not blank
    assert re.match(r"All in [0-9.]+ ms, of which some step ran in [0-9.]+; steps together", last)
    rows = [line.split(" | ") for line in table[2:]]
    own = {row[1]: row for row in rows}
    assert own["attention a"][2] == own["contract down"][2] == str(sites)
    assert sum(int(row[2]) for row in rows) == sum(
        step.stream is not None and step.task >= 0 for step in executor._plan.schedule.steps
    )
    for row in rows:
        assert float(row[4]) == pytest.approx(int(row[2]) * float(row[3]), abs=1e-2)
    executor.close()
    task = next(task for task in bundle.tasks if getattr(task, "operation", None) is not None)
    moved = sum(steps._bytes(bundle, region) for region in (*task.reads, *task.writes))
    assert steps.least(bundle, task, CEILINGS) == pytest.approx(1e3 * moved / 3e12)  # a norm: all of it is memory
    assert times.keys() == {"q", "k", "v", "a", "o", "gate", "up", "down"}
    assert steps._covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0


def test_other_algorithms_for_the_products_of_a_plan(monkeypatch):
    pytest.importorskip("torch")
    case = next(case for case in CASES if case.name == "llama_block" and not case.slow)
    sizes = {"seq_lens": "[16, 16]", "d_model": "64", "heads_q": "8", "heads_kv": "4", "d_head": "16", "d_ff": "128"}
    bundle = compiled(replace(case, definitions=tuple(sizes.items())), 1, "f32")
    driver = FakeDriver(1)
    executor = cuda.CudaExecutor(bundle, [0], driver=driver, kernels=NumpyKernels(driver))
    asked = []

    class Library:
        def __init__(self, use):
            self.open = True

        def launch(self, product, pointers, workspace, device):
            assert pointers == (product.a, product.b, product.c)
            return lambda stream: asked.append((product, "cublas"))

        def close(self):
            asked.append("closed")

    class Lt(Library):
        def proposals(self, product, device, most):
            return ["good", "bad"]

        def launch(self, product, workspace, device, algorithm):
            def launched(stream):
                if algorithm == "bad":
                    raise CublasError("status 15")
                asked.append((product, algorithm))

            return launched

    monkeypatch.setattr(products.cublas, "Cublas", Library)
    monkeypatch.setattr(products.cublaslt, "open_if_available", Lt)
    alone: dict[str, dict[str, float]] = {}
    lines = products.by_algorithm(executor, alone, CPU)
    shown = [re.sub(r"\d+\.\d{4}", "1", line) for line in lines]
    assert shown[0] == "- q, gemm tn f32 128x32x64: cuBLAS 1; cuBLASLt 1, status 15 ms"
    assert [line.split(",")[0] for line in lines] == [
        f"- {name}" for name in ("q", "k", "v", "o", "gate", "up", "down", "k and v", "gate and up")
    ]
    assert asked[-2:] == ["closed", "closed"]
    assert {how for _, how in asked[:-2]} == {"cublas", "good"}
    executor.close()


def test_pytorchs_times_of_products_and_attention():
    pytest.importorskip("torch")
    case = next(case for case in CASES if case.name == "llama_block" and not case.slow)
    case = replace(case, definitions=(("seq_lens", "[13]"), *case.definitions[1:]))
    alone: dict[str, dict[str, float]] = {}
    lines = steps.by_pytorch(compiled(case, 1, "f32"), alone, CPU)
    assert alone["a"].keys() == {"PyTorch's math"}
    assert [re.sub(r"[0-9.]+ ms", "1 ms", line) for line in lines] == [
        f"- PyTorch alone, {name}: {'math' if name == 'a' else 'einsum'} 1 ms"
        for name in ("q", "k", "v", "a", "o", "gate", "up", "down")
    ]


def test_einc_contends_with_one_launch_for_every_computation(monkeypatch):
    case = next(case for case in CASES if case.name == "chain_c" and not case.slow)
    bundle = compiled(case, 4, "f32")
    arrays = arrays_of(bundle)
    driver = FakeDriver(1)
    monkeypatch.setattr(cuda, "_load_driver", lambda: driver)
    monkeypatch.setattr(cuda, "_load_kernels", lambda folders, tunings: NumpyKernels(driver))
    outcome = benchmark.Outcome("chain_c")
    contender = benchmark._einc("einc", bundle, arrays, outcome, GPU)
    before = driver.counts["launch"]
    assert min(measured({"einc": contender}, 0, rounds=2)["einc"]) > 0
    assert driver.counts["launch"] - before == 2 + 2 + 2 * 3
    assert largest_error({"y": contender.result()}, reference(case, arrays)) < 1e-5
    assert outcome.host_us["einc"] > 0
    assert any("contract by numpy" in line for line in outcome.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("own", BENCHMARKS, ids=lambda own: own.name)
def test_benchmarks_compile_at_full_size(own):
    for sites in (1, 8) if own.many else (1,):
        bundle = compiled_benchmark(own, own.definitions, sites)
        assert len(bundle.memory) == sites
        assert sum(bundle.memory) < 70e9  # one GPU holds them all
        assert benchmark.output_name(bundle) in {bundle.tensors[output.tensor].name for output in bundle.outputs}


def test_errors_are_seen():
    one = {"y": np.array([1.0, 2.0]), "n": np.array([3, 4]), "b": np.array([True])}
    assert largest_error(one, one) == 0
    assert largest_error(one | {"y": np.array([1.0, 2.2])}, one) == pytest.approx(0.1)
    for other in (
        {"n": np.array([3, 5])},
        {"b": np.array([False])},
        {"y": np.array([np.nan, 2.0])},
        {"y": np.array([[1.0, 2.0]])},
        {"n": np.array([3.0, 4.0])},
    ):
        assert largest_error(one | other, one) == np.inf
