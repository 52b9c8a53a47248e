"""Decode steps that are derived from models: they compute what the models do; or the error says why they cannot."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import einc
from einc.compiler import compile_model
from einc.data import find_folder
from einc.errors import ModelError, UsageError
from einc.frontend import build
from einc.graph.decode_step import StepRequest, derive_step
from einc.graph.graph import Graph, TensorKind, dump_graph
from einc.ops.step_forms import CacheBlocks
from einc.options import CompileOptions
from einc.verification.steps import can_be_tried, try_steps
from einc_runtime import Session
from tests.support.graph_interpreter import interpret
from tests.support.step_cases import REFUSED_STEPS, STEP_MODELS, write_refused

PUBLISHED = {
    name: (find_folder("models") / f"{name}.ein").read_text(encoding="utf-8")
    for name in ("llama", "llama_block", "llama_decode", "moe")
}


def read(text: str, dtype: str | None = "f64") -> Graph:
    return build(text, "model.ein", (), "tiny" if "preset tiny" in text else None, dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "new"), [*((name, new) for name in STEP_MODELS for new in (1, 3)),
                                           ("llama", 2), ("llama_block", 1), ("moe", 4)])  # fmt: skip
def test_steps_compute_what_the_model_does(name: str, new: int) -> None:
    model = read({**STEP_MODELS, **PUBLISHED}[name])
    step = derive_step(model, StepRequest("tokens", new))
    assert try_steps(model, step) == -(-max(step.tokens.lens) // new)
    assert dump_graph(derive_step(model, StepRequest("tokens", new)).graph) == dump_graph(step.graph)


@pytest.mark.parametrize("name", [*(name for name in STEP_MODELS if name != "learned positions"), "moe"])
def test_steps_of_several_sequences(name: str) -> None:
    """Of a model that reads one: each of them computes what the model does of its tokens."""
    model = read({**STEP_MODELS, **PUBLISHED}[name])
    try_steps(model, derive_step(model, StepRequest("tokens", 2, 3)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in STEP_MODELS if name != "learned positions"])
def test_caches_that_lie_in_blocks(name: str) -> None:
    """Whatever reads a cache: the blocks of three sequences are in no order."""
    model = read({**STEP_MODELS, **PUBLISHED}[name].replace("dim tokens = 11", "dim tokens = 12"))
    (length,) = {t.desc.shape[t.desc.dims.index("tokens")] for t in model.tensors if "tokens" in t.desc.dims}
    try_steps(model, derive_step(model, StepRequest("tokens", 2, 3, CacheBlocks(3 * length // 4 + 2, 4))))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("learned positions", ModelError, "which each sequence has: several need a lookup by an input"),
        ("llama", UsageError, "llama packs 2 sequences itself"),
    ],
)
def test_sequences_that_there_cannot_be(name: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        derive_step(read({**STEP_MODELS, **PUBLISHED}[name]), StepRequest("tokens", 1, 2))


def test_a_step_is_what_a_person_writes() -> None:
    """`models/llama_decode.ein` is such a step, of which the caches' names are chosen, and which has all logits."""
    step = derive_step(read(PUBLISHED["llama"], "f32"), StepRequest("tokens", 1)).graph
    written = build(PUBLISHED["llama_decode"], "decode.ein", [("cache", "5")], "tiny", "f32")
    operators = [[node.operator for node in graph.nodes if node.name != "logits"] for graph in (step, written)]
    assert Counter(o for o in operators[0] if o.inputs[0].dims != ("sequences",)) == Counter(operators[1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["learned positions", "convolutions", "running aggregates", "recurrences"])
@pytest.mark.parametrize(("sites", "selector"), [(1, "eindecomp"), (3, "eindecomp"), (4, "fastest")])
def test_plans_of_steps(name: str, sites: int, selector: str) -> None:
    """With one token after the other, then three at once, on random tokens: as the whole model in numpy."""
    text = STEP_MODELS[name]
    model = read(text, None)
    rng = np.random.default_rng(3)
    arrays = {
        tensor.name: rng.standard_normal(tensor.desc.shape).astype("f4")
        if tensor.desc.dtype.is_float
        else rng.integers(0, 9, tensor.desc.shape)
        for tensor in model.tensors
        if tensor.kind is not TensorKind.VALUE
    }
    expected = interpret(model, arrays)
    for lengths in ([1] * 11, [3, 3, 3]):
        options = CompileOptions("host", sites, selector=selector, step=StepRequest("tokens", lengths[0]))
        forms = derive_step(model, StepRequest("tokens", lengths[0])).forms
        session = Session(compile_model(text, "model.ein", options).bundle)
        session.load_weights({t.name: arrays[t.name] for t in model.tensors if t.kind is TensorKind.WEIGHT})
        for start, stop in itertools.pairwise(np.cumsum([0, *lengths]).tolist()):
            rows = np.arange(start, stop)
            for tensor in session.bundle.tensors:
                if tensor.kind == "input":
                    axis = forms.get(tensor.name)
                    session.load(tensor.name, rows if axis is None else np.take(arrays[tensor.name], rows, int(axis)))
            session.execute()
            for output in model.outputs:
                axis = forms[output]
                if isinstance(axis, int):
                    picked = np.take(expected[output], rows, axis)
                    np.testing.assert_allclose(session.offload(output), picked, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("blocks", ["", ", blocks=9x4"])
def test_what_is_carried_does_not_grow_and_counts_once(blocks: str) -> None:
    """Over texts that are started anew, in rows that are filled up, and beside a sequence that stands still."""
    text = """
model carrying
dim tokens = 16
input x : f32[tokens, 3]
input g : f32[tokens, 2]
h[t, d] = 0.5 * h[t - 1, d, outside = 1.0] + x[t, d]
s[t, d, e] = sum[k <= t](x[k, d] * g[k, e])
before[t, d] = sum[k < t](x[k, d])
near[t = tokens, d] = x[t, d] * x[t - 2, d, outside = 0.25] + h[t - 1, d, outside = 0.5]
output h, s, before, near
"""
    model, rng = read(text, None), np.random.default_rng(2)
    arrays = {"x": rng.standard_normal((16, 3)).astype("f4"), "g": rng.standard_normal((16, 2)).astype("f4")}
    expected = interpret(model, arrays)
    request = StepRequest("tokens", 3, 2, CacheBlocks(9, 4) if blocks else None)
    plan = compile_model(text, "model.ein", CompileOptions("host", 2, step=request)).bundle
    states = {tensor.name: tensor.shape[2] for tensor in plan.tensors if tensor.kind == "state"}
    assert sorted(states.values()) == [1, 3, 3, 3, 3, 6]
    session, still = Session(plan), [2, 2, 2]
    moves = [([0, 1, 2], [0, 1, 2]), ([3, 3, 3], still), ([4, 4, 5], still), ([0, 0, 1], [3, 4, 5]), (still, [6, 7, 8])]
    for both in moves:
        positions = np.concatenate(both)
        inputs = {name: array[positions] for name, array in arrays.items()} | {"positions": positions}
        if blocks:
            inputs["cache_blocks"] = np.array([[5, 1, 0, 3], [2, 6, 7, 8]])
        results = session.run(inputs)
        counted = np.concatenate([np.full(3, sequence is not still or both[1][0] == 6) for sequence in both])
        for name, values in expected.items():
            np.testing.assert_allclose(results[name][counted], values[positions[counted]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED_STEPS)
def test_what_needs_later_tokens_is_refused(name: str) -> None:
    statement, message = REFUSED_STEPS[name]
    with pytest.raises(ModelError) as caught:
        derive_step(read(write_refused(statement), None), StepRequest("tokens", 1))
    assert message in caught.value.message
    assert caught.value.where is not None


def test_all_refusals_are_told_together() -> None:
    """What is computed from something refused is not."""
    text = write_refused('a = softmax(x, "tokens")\nb = a * 2.0\nc = mean(x, "tokens")')
    with pytest.raises(ModelError) as caught:
        derive_step(read(text, None), StepRequest("tokens", 1))
    assert [finding.message.split("'")[1] for finding in caught.value.diagnostics] == ["a", "c"]


@pytest.mark.parametrize("size", ["tokens = 1099511627776", "vocab = 1099511627776", "tokens = 7000"])
def test_what_takes_long_is_not_tried(size: str) -> None:
    """Many steps, a table of which few rows are read, or much work."""
    name = size.partition(" ")[0]
    model = build(STEP_MODELS["learned positions"], "model.ein", [(name, size.rpartition(" ")[2])])
    assert not can_be_tried(model, derive_step(model, StepRequest("tokens", 1)))


TWICE = write_refused("y = copy(x)").replace("i64[tokens]", "bool[tokens, tokens]")
STATEFUL = write_refused("y = copy(x)").replace("input ids", "state s : f32[2, 5, 3]\ninput ids")


@pytest.mark.parametrize(
    ("text", "request_", "error", "message"),
    [
        (write_refused("y = copy(x)"), ("token", 1), UsageError, "no input of refused has a dimension 'token'"),
        (write_refused("y = copy(x)"), ("tokens", 8), UsageError, "does not fit 'tokens' with 7 tokens"),
        (write_refused("y = copy(x)"), ("tokens", 0), UsageError, "a step of 0 new tokens"),
        (write_refused("y = copy(x)").replace("tokens = 7", "tokens = 1"), ("tokens", 1), UsageError, "does not fit"),
        (
            write_refused("y = copy(x)"),
            ("tokens", 1, 2, CacheBlocks(9, 3)),
            UsageError,
            "9 blocks of 3 tokens do not fit 2 s",
        ),
        (write_refused("y = copy(x)"), ("tokens", 3, 5, CacheBlocks(2, 7)), UsageError, "of which 3 are new"),
        (TWICE, ("tokens", 1), ModelError, "the input 'ids' has the dimension 'tokens' twice"),
        (STATEFUL, ("tokens", 1), UsageError, "is a step already: it has the state 's'"),
    ],
)
def test_requests_that_do_not_fit(text: str, request_: Sequence[Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        derive_step(read(text, None), StepRequest(*request_))


def test_sequences_that_are_packed_keep_apart() -> None:
    """A convolution would read the end of the sequence before."""
    text = """
model packed
dim tokens = 8
input x : f32[2, tokens, 4]
r = rope(x, seq_lens=[4, 4])
y[a, t = tokens, d] = r[a, t - 1, d, outside = 0]
output y
"""
    with pytest.raises(ModelError, match="knows the positions of tokens, counted through all 2 packed sequences"):
        derive_step(read(text, None), StepRequest("tokens", 1))


def test_names_of_the_model_stay() -> None:
    """What a step adds gets other names, where the model has these."""
    text = "model names\ndim tokens = 5\ninput positions : f32[tokens]\n"
    text += "y[t] = positions[t] + positions[t - 1, outside = 0]\noutput y\n"
    step = derive_step(read(text, None), StepRequest("tokens", 1))
    assert step.inputs == {"positions": "positions_2"}
    states = [tensor.name for tensor in step.graph.tensors if tensor.kind is TensorKind.STATE]
    assert states == ["last_position.carry", "positions.window"]


@pytest.mark.parametrize("step", [{}, {"tokens": 1, "width": 1}, {"tokens": True}, {"tokens": "1"}, {1: 1}, "tokens=1"])
def test_steps_of_the_api_are_a_dimension_and_a_number(step: object) -> None:
    with pytest.raises(UsageError, match="step is a dimension with a number of new tokens"):
        einc.compile(STEP_MODELS["experts"], "host", 1, step=step)


def test_steps_of_the_api() -> None:
    plan = einc.compile(STEP_MODELS["experts"], "host", 1, step={"tokens": 2})
    assert next(tensor.shape for tensor in plan.bundle.tensors if tensor.name == "x") == (2, 8)


@pytest.mark.parametrize(("reached", "kept"), [("t + r - 3", 3), ("t - 4 * r", 12), ("t - 9 * r", None)])
@pytest.mark.parametrize(("length", "new", "sequences"), [(30, 1, 1), (40, 7, 1), (30, 2, 3)])
def test_windows_do_not_grow_with_the_text(
    reached: str, kept: int | None, length: int, new: int, sequences: int
) -> None:
    """A state has the rows that they reach back to, and a spare one. Of longer windows, a cache has all tokens, and
    where the first token is repeated before a text."""
    text = f"""
model windows
dim tokens = {length}
input x : f64[2, tokens, 5]
weight kernel : f64[4, 5]
y[c, t = tokens, e] = sum[r](x[c, {reached}, e, outside = 0.5] * kernel[r, e])
output y
"""
    model = read(text)
    step = derive_step(model, StepRequest("tokens", new, sequences))
    table = step.graph.tensor_table()
    state = table["x.cache"] if kept is None else table["x.window"]
    assert state.desc.shape == (2, sequences * (length if kept is None else kept + 1), 5)
    try_steps(model, step)
    nearest = derive_step(read(text.replace("0.5", "nearest")), StepRequest("tokens", new, sequences)).graph
    assert "x.cache" in nearest.tensor_table()
