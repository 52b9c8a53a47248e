"""Training steps are called by the names of what their plans do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.compiler import compile_model
from einc.graph.decode_step import StepRequest
from einc.logical.optimize import build_choices
from einc.logical.problem import build_problem
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.records import emit
from einc.report.document import explain
from einc.report.known_steps import describe_parallelism, format_parallelism
from einc.report.step_parts import format_step
from einc.search.baselines import build_baselines
from tests.support.step_cases import STEP_MODELS

TEXT = """model step
dim n = 48
dim w = 8
dim h = 32
input x : f32[n, w]
input t : f32[n, w]
weight up : f32[w, h]
weight down : f32[h, w]
e = matmul(relu(matmul(x, up)), down) - t
output loss = mean(e * e, "n", "w")
"""


@pytest.mark.parametrize(
    ("known", "name", "copies"),
    [
        ("data", "data parallelism over 4, with states whole on every site", 4.0),
        ("fsdp", "data parallelism over 4, with states sharded among all sites (ZeRO, FSDP)", 1.0),
        ("megatron", "tensor parallelism over 4, with states sharded among all sites", 1.0),
        ("single", None, 1.0),
    ],
)
def test_baselines_have_their_names(known: str, name: str | None, copies: float) -> None:
    options = CompileOptions(
        "dgx-a100", 4, train="loss", optimizer="adamw", precision="bf16", selector="eindecomp", schedule="naive"
    )
    compiled = compile_model(TEXT, "m.ein", options)
    graph, machine = compiled.graph, compiled.target.machine
    problem = build_problem(graph, 4, flexible=True)
    (baseline, *_) = build_baselines(graph, problem, 4, [known])
    assert baseline.chosen is not None
    choices = build_choices(graph, problem, baseline.chosen)
    program = build(replace(compiled.plan, choices=choices), machine)
    bundle = emit(program, machine, (0, 1, 2, 3), "naive")
    parallelism = describe_parallelism(bundle)
    assert parallelism is not None
    assert parallelism["name"] == name
    assert parallelism["copies"] == pytest.approx(copies, rel=0.05)
    assert parallelism["part"] == 1
    lines = format_parallelism(explain(bundle, with_alternatives=False)["parallelism"])
    assert lines == ([] if name is None else [f"known as {name}: 100% of the work of products with weights is cut so"])


def test_memory_and_time_of_a_step_by_what_they_are_for() -> None:
    options = CompileOptions("dgx-a100", 2, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    bundle = compile_model(TEXT, "m.ein", options).bundle
    document = explain(bundle, with_alternatives=False)
    memory, time = document["step"]["memory_bytes"], document["step"]["critical_ms"]
    site = bundle.memory.index(max(bundle.memory))
    kept = {True: 0, False: 0}  # by whether it is a weight
    for buffer in bundle.buffers:
        tensor = bundle.tensors[buffer.tensor]
        if (buffer.site, buffer.role, tensor.kind) == (site, "state", "state"):
            kept[tensor.name in ("up", "down")] += 4 * buffer.block.size
    assert memory["weights"] == kept[True] > 0
    assert memory["moments"] == kept[False] == 2 * kept[True]
    assert {"inputs", "activations", "gradients"} <= memory.keys()
    assert sum(memory.values()) <= bundle.memory[site]
    assert sum(time.values()) == pytest.approx(document["predicted_ms"])
    assert min(time.values()) > 0
    lines = format_step(document["step"])
    assert lines[0].startswith("memory of the fullest site: weights ")
    assert lines[1].startswith("time of a step: forward ")


def test_a_step_of_decoding_is_no_training_step() -> None:
    options = CompileOptions("host", 1, selector="eindecomp", step=StepRequest("tokens", 1))
    bundle = compile_model(STEP_MODELS["latent rows"], "m.ein", options).bundle
    assert any(tensor.kind == "state" for tensor in bundle.tensors)
    assert explain(bundle, with_alternatives=False)["step"] is None


def test_other_plans_have_none() -> None:
    inference = TEXT[: TEXT.index("output")] + "output e\n"
    options = CompileOptions("host", 2, selector="eindecomp", schedule="naive")
    assert describe_parallelism(compile_model(inference, "m.ein", options).bundle) is None
    assert format_parallelism(None) == []
