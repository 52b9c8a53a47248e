"""Reproducible plans: one hash of the outputs for any number of sites, cuts, schedules, workers and orders of tasks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc.compiler import compile_model
from einc.ops import registry
from einc.ops.wrapping import find_ordered_indices
from einc.options import CompileOptions
from einc.plan_reading.restore import compute_outputs
from einc.plan_report import read_report
from einc_runtime.errors import PlanFault
from einc_runtime.execution.cuda.precompile import list_sources
from einc_runtime.execution.session import Session
from einc_runtime.kernels.llvm import compiler
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask
from tests.support.plan_arrays import arrays_of, results
from tests.support.reproducible_cases import IMPORTED, SIZES, compile_case, hash_outputs


def vary(number):
    """Options that lead to other plans of the same model."""
    return {
        "selector": ("random", "eindecomp", "random", "eindecomp", "fastest")[number % 5],
        "schedule": ("naive", "synthesized")[number % 2],
        "input_placement": ("replicated", "once")[number % 2],
        "seed": number,
        "time_limit": 5.0,
    }


def hash_plans(model, batch, dtype, counts):
    found = {}
    for number in counts:
        bundle = compile_case(model, number, batch, dtype, **vary(number))
        prove(bundle)
        assert bundle.reproducible
        found[number] = hash_outputs(bundle, workers=1 + number % 3)
    return found


@pytest.mark.parametrize(
    ("model", "batch", "dtype", "counts"),
    [("llama_block", 1, "bf16", (1, 6)), ("moe", 3, "f32", (2, 3)), ("ffn", 8, "f16", (1, 4))],
)
def test_results_are_the_same_for_any_number_of_sites(model, batch, dtype, counts):
    found = hash_plans(model, batch, dtype, counts)
    assert len(set(found.values())) == 1, found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("model", [*SIZES, IMPORTED])
def test_every_model_has_one_hash(model, batch, dtype):
    found = hash_plans(model, batch, dtype, range(1, 9))
    assert len(set(found.values())) == 1, found


@pytest.mark.slow
def test_without_machine_code_there_is_one_hash_too(monkeypatch):
    monkeypatch.setattr(compiler, "is_available", lambda: False)
    for model in ("ffn", "llama_block", "moe", "bert", "llama_decode"):
        found = hash_plans(model, 1, "f32", (1, 3, 4))
        assert len(set(found.values())) == 1, (model, found)


def test_results_are_right_and_do_not_depend_on_what_is_beside_them():
    """Rows of a batch of 2 and of 5 are the same; and they are what the operators mean."""
    outputs = []
    for images in (2, 5):
        options = CompileOptions(
            "host", 3, (("images", str(images)),), selector="eindecomp", time_limit=5.0, reproducible=True
        )
        with open("models/digits.ein") as file:
            bundle = compile_model(file.read(), "digits.ein", options).bundle
        arrays = arrays_of(bundle) | {"x": np.linspace(-1, 1, 5 * 64, dtype="f4").reshape(5, 64)[:images]}
        found = results(Session(bundle), arrays)
        expected = compute_outputs(bundle, {name: array.astype("f8") for name, array in arrays.items()})
        for name, array in found.items():
            assert np.allclose(array, expected[name], rtol=1e-4, atol=1e-5)
        outputs.append(found)
    for name, array in outputs[0].items():
        assert array.tobytes() == outputs[1][name][:2].tobytes()


def test_only_indices_that_are_compared_may_be_aggregated():
    from einc.core.tensor import DType, TensorDesc

    x, w = TensorDesc(("i", "k"), (6, 8), DType.F32), TensorDesc(("k", "j"), (8, 4), DType.F32)
    matmul = registry.call("matmul", (x, w), {})
    names = [index.name for index in matmul.indices]
    assert [names[place] for place in find_ordered_indices(matmul)] == ["j"]  # the first operand's second dimension
    assert list(find_ordered_indices(registry.call("topk", (x, 2, "k"), {}))) == []
    q = TensorDesc(("h", "t", "d"), (2, 6, 4), DType.F32)
    attention = registry.call("attention", (q, q, q), {})
    assert [attention.indices[place].name for place in find_ordered_indices(attention)] == ["keys"]


def refuse(bundle, message):
    with pytest.raises(PlanFault, match=message):
        prove(bundle)


def test_the_proof_refuses_a_plan_that_claims_too_much():
    plain = compile_case("ffn", 4, 2, "f32", **(vary(4) | {"selector": "eindecomp"}), reproducible=False)
    assert any(isinstance(task, AggregateTask) for task in plain.tasks)  # else this test shows nothing
    prove(plain)
    refuse(msgspec.structs.replace(plain, reproducible=True), "nothing, where .* has True")
    marked = tuple(
        msgspec.structs.replace(one, kernel_attributes={**one.kernel_attributes, "reproducible": True})
        for one in plain.operations
    )
    refuse(msgspec.structs.replace(plain, reproducible=True, operations=marked), "partial results would be combined")
    refuse(msgspec.structs.replace(plain, operations=marked), "True, where .* has nothing")
    sound = compile_case("ffn", 2, 2, "f32", **vary(4))
    dropped = tuple(
        msgspec.structs.replace(
            one, kernel_attributes={k: v for k, v in one.kernel_attributes.items() if k != "reproducible"}
        )
        for one in sound.operations[:1]
    )
    refuse(msgspec.structs.replace(sound, operations=(*dropped, *sound.operations[1:])), "nothing, where .* has True")


def test_what_it_costs_is_in_the_plan():
    bundle = compile_case("ffn", 2, 2, "f32")
    free = compile_case("ffn", 2, 2, "f32", reproducible=False)
    assert read_report(free).unrestricted_ms is None
    assert free.predicted_ms == read_report(bundle).unrestricted_ms > 0
    assert read_report(compile_case("ffn", 2, 2, "f32", time_limit=5.0)).unrestricted_ms is None


@pytest.mark.parametrize("model", ["llama_block", pytest.param("llama_decode", marks=pytest.mark.slow)])
def test_gpus_have_kernels_of_their_own_for_them(model):
    """None of another plan, and none in which the compiler may choose what to fuse, but the products' own chain."""
    plain, marked = (
        {source.name: source for source in list_sources(bundle, "sm_90")}
        for bundle in (compile_case(model, 2, 1, "bf16", time_limit=5.0, reproducible=kind) for kind in (False, True))
    )
    own = {name: source for name, source in marked.items() if name not in plain}
    assert {name.rpartition("_")[0] for name in own} >= {"product", "attention", "rmsnorm", "map", "rope"}
    assert {name.rpartition("_")[0] for name, source in own.items() if source.fuses} == {"product"}
    moves = {name.rpartition("_")[0] for name in marked if name in plain}
    assert moves <= {"moves", "move", "copy", "clear", "latest", "append"}, moves
