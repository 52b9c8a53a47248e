"""Values that are computed again for gradients have the same bits, save memory, and are chosen where they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einc as es
from einc.compiler import Compiled, compile_model
from einc.errors import CapacityError, UsageError
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, verify_graph
from einc.options import CompileOptions
from einc.search import fastest, recomputing
from einc.search.initial_plans import KNOWN
from einc.search.layered_steps import LayeredStep
from einc.search.neighbours import sum_times
from einc.target import select_target
from einc.training.recomputation import ForwardPart, count_again, read_level, recompute, restore_recomputed
from einc.training.steps import StepOptions, derive_training_step
from einc.verification.model import verify_model
from einc_runtime.execution.session import Session
from tests.support.graph_interpreter import interpret

BLOCKS = 5
TEXT = f"""model blocks
dim n = 70
dim w = 6
dim h = 50
input x : f32[n, w]
input t : f32[n, w]
block layer(x, i) {{
    weight gain : f32[w]
    weight up : f32[w, h]
    weight down : f32[h, w]
    y = matmul(gelu(matmul(rmsnorm(x, gain), up)), down)
    return x + y
}}
y = x
repeat {BLOCKS} as i {{
    y = layer(y, i)
}}
e = y - t
output loss = mean(e * e, "n", "w")
"""


@pytest.fixture(scope="module")
def step() -> Graph:
    return derive_training_step(build(TEXT, "m.ein"), "loss", "adamw", None, StepOptions(1.0))


@pytest.fixture
def less_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "MAX_SEARCH_EFFORT", 300)


def draw(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    tensors = [tensor for tensor in graph.tensors if tensor.kind.name != "VALUE"]
    return {tensor.name: rng.uniform(0.1, 0.9, tensor.desc.shape).astype("f4") for tensor in tensors}


def count_kept(graph: Graph) -> int:
    """The bytes that gradients read of what is computed before the loss."""
    end = graph.positions["loss"] + 1
    made = {name for node in graph.nodes[:end] for name in node.outputs}
    read = {name for node in graph.nodes[end:] for name in node.inputs}
    table = graph.tensor_table()
    return sum(table[name].desc.type.size * table[name].desc.dtype.itemsize for name in made & read)


def test_what_is_computed_again_has_the_same_bits(step: Graph) -> None:
    arrays, kept = draw(step), [count_kept(fuse(step))]
    expected = interpret(fuse(step), arrays)
    for level, blocks in (("cheap", None), ("blocks", 2), ("blocks", None)):
        again = recompute(step, "loss", level, blocks)
        verify_graph(again)
        graph = fuse(again)
        verify_graph(graph)
        kept.append(count_kept(graph))
        for name, array in interpret(graph, arrays).items():
            np.testing.assert_array_equal(array, expected[name])
        assert restore_recomputed(step, "loss", count_again(graph)).nodes == graph.nodes
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < kept[0] / 5
    assert {f"y.{n}" for n in range(1, BLOCKS)} < set(ForwardPart(step, "loss").between_blocks)


def test_updates_wait_for_what_is_computed_again() -> None:
    """A weight that is read by two layers: the second one's gradient is there before the first one's is made."""
    text = TEXT.replace("weight up : f32[w, h]", 'weight up : f32[w, h] from "up"')
    graph = derive_training_step(build(text, "m.ein"), "loss", "sgd")
    again = fuse(recompute(graph, "loss", "blocks"))
    verify_graph(again)
    arrays = draw(graph)
    for name, array in interpret(again, arrays).items():
        np.testing.assert_array_equal(array, interpret(fuse(graph), arrays)[name])


def compile_step(**options: Any) -> Compiled:
    chosen = CompileOptions("host", 1, train="loss", optimizer="sgd", schedule="naive", **options)
    return compile_model(TEXT, "m.ein", chosen)


@pytest.mark.usefixtures("less_effort")
def test_as_little_as_fits_is_computed_again() -> None:
    compiled = [compile_step(recompute=level) for level in ("none", "blocks")]
    kept, most = (step.program for step in compiled)
    assert most.predicted_ms > kept.predicted_ms
    assert max(most.memory) < max(kept.memory)
    limit = (max(most.memory) + max(kept.memory)) // 2
    with pytest.raises(CapacityError):
        _ = compile_step(recompute="none", memory=limit).program
    chosen = compile_step(memory=limit)
    assert max(chosen.program.memory) <= limit
    assert 0 < count_again(chosen.graph) < count_again(compiled[1].graph)
    assert chosen.program.predicted_ms <= most.predicted_ms
    verify_model(chosen.bundle, restore_recomputed(chosen.source, "loss", count_again(chosen.graph)))


def test_levels_are_read() -> None:
    assert [read_level(text) for text in ("cheap", "blocks", "blocks=3")] == [
        ("cheap", None), ("blocks", None), ("blocks", 3)
    ]  # fmt: skip
    for text in ("some", "cheap=2", "blocks=", "blocks=-1", "blocks=9999999"):
        with pytest.raises(UsageError, match="computed again"):
            read_level(text)
    with pytest.raises(UsageError, match="gradients are those of a loss"):
        es.compile(TEXT, "host", 1, recompute="cheap")


@pytest.mark.usefixtures("less_effort")
def test_steps_of_many_layers_are_cut_as_those_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers in the middle have the cuts of the middle one of a step of three, and the step computes the same."""
    monkeypatch.setattr(recomputing, "MIN_LAYERED", 100)
    chosen = CompileOptions("host", 2, train="loss", optimizer="sgd", schedule="naive", recompute="cheap")
    compiled = compile_model(TEXT, "m.ein", chosen)
    (contender,) = compiled.plan.contenders
    assert (contender.name, contender.chosen, contender.predicted_ms) == (
        "few layers", True, compiled.program.predicted_ms,
    )  # fmt: skip
    cuts = {choice.node: choice.candidate.intervals for choice in compiled.plan.choices}
    for end in ("up.gradient", "down.next", "y.1"):
        assert cuts[f"layer.2.{end}"] == cuts[f"layer.1.{end}"] == cuts[f"layer.3.{end}"]
    arrays = draw(compiled.source)
    session = Session(compiled.bundle)
    session.load_all(arrays)
    session.execute()
    for name, expected in interpret(compiled.source, arrays).items():
        np.testing.assert_allclose(session.offload(name), expected, rtol=1e-4, atol=1e-5)
    verify_model(compiled.bundle, fuse(compiled.source))


def test_no_known_plan_that_was_built_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on many sites, where plans of a few layers are chosen by time tables: what these say may be wrong."""
    for name, value in (("MIN_LAYERED", 100), ("MANY_SITES", 1)):
        monkeypatch.setattr(recomputing, name, value)
    chosen = CompileOptions("host", 2, train="loss", optimizer="sgd", schedule="naive", recompute="cheap")
    plain = compile_model(TEXT, "m.ein", chosen)
    contenders = {contender.name: contender for contender in plain.plan.contenders}
    built = {name: each.predicted_ms for name, each in contenders.items() if each.predicted_ms is not None}
    assert plain.program.predicted_ms == min(built.values())
    assert [name for name, each in contenders.items() if each.chosen] == [min(built, key=built.__getitem__)]
    assert {"fsdp", "megatron"} <= contenders.keys()
    assert len(KNOWN & built.keys()) == 1, "of the well-known plans, the one that promises most"
    # With tables that say the opposite, the first plan is the worst, and the known one that fits is built, too.
    monkeypatch.setattr(fastest, "sum_times", lambda tables, plan: -sum_times(tables, plan))
    opposite = compile_model(TEXT, "m.ein", chosen)
    times = [each.predicted_ms for each in opposite.plan.contenders if each.predicted_ms is not None]
    assert opposite.program.predicted_ms == min(times) > plain.program.predicted_ms


def test_layers_that_are_left_out_take_their_memory() -> None:
    options = CompileOptions("host", 2, train="loss", optimizer="sgd", clip=1.0)
    full, small = (
        fuse(derive_training_step(build(TEXT.replace(f"repeat {BLOCKS}", f"repeat {n}"), "m.ein"), "loss", "sgd"))
        for n in (BLOCKS, 3)
    )
    machine = select_target(options).machine
    limited = LayeredStep(full, small).limit_memory(machine, 2)
    assert limited is not None
    weights = 2 * (6 + 2 * 6 * 50) * 4 * (BLOCKS - 3)  # and velocities
    omitted = machine.sites[0].memory_bytes - limited.sites[0].memory_bytes
    assert omitted == (weights + count_kept(full) - count_kept(small)) // 2
    assert LayeredStep(full, small).limit_memory(machine.limit_memory(1000), 2) is None
