"""Each operator by itself: whatever a step is derived for computes, token after token, what the operator does at once.

Any dimension may be that of tokens, of one operand or of several. Most combinations have no step, and are refused.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from einc.core.tensor import DType, TensorDesc
from einc.errors import ModelError, OperatorError, UsageError
from einc.graph.builder import GraphBuilder
from einc.graph.decode_step import StepRequest, derive_step
from einc.graph.graph import Graph
from einc.ops import registry
from einc.ops.base import Operator
from einc.verification.steps import compare_steps
from tests.support import index_cases, operator_cases, recurrence_cases, transformer_cases
from tests.support.definition_oracle import random_array

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = "tokens_of_a_text"
MAX_CHOICES = 64
ATTENTION: dict[str, dict[str, Any]] = {
    "full": {}, "causal": {"causal": True}, "masked": {"causal": True}, "window": {"causal": True, "window": 3},
    "around": {"window": 3}, "capped": {"causal": True, "softcap": 2.0}, "packed": {"causal": True, "seq_lens": (4, 3)},
}  # fmt: skip


def list_operators() -> Iterator[tuple[str, Operator, list[Array]]]:
    """Every operator of the other tests that computes in f64, in integers or in truth values, with its arrays."""
    for name, operator in operator_cases.all_cases().items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if not any(desc.dtype.is_quantized for desc in operator.inputs):
            positive = name.partition("-")[2] in operator_cases.POSITIVE
            yield name, operator, [random_array(desc, rng, positive) for desc in operator.inputs]
    for name, case in transformer_cases.all_transformer_cases().items():
        yield name, case.operator, case.arrays(3)
    tables = {**index_cases.CASES, **recurrence_cases.CASES}
    for name, case in tables.items():  # type: ignore[assignment]
        operator = case.operator("f64" if "f64" in case.dtypes else case.dtypes[0])  # type: ignore[attr-defined]
        yield f"written-{name}", operator, case.arrays(operator, 3)  # type: ignore[call-arg]
    shapes = (4, 7, 6), (2, 7, 6), (2, 7, 5)
    q, k, v = (TensorDesc(("h", f"n{number}", "d"), shape, DType.F64) for number, shape in enumerate(shapes))
    mask = TensorDesc(("n",), (7,), DType.BOOL)
    for name, options in ATTENTION.items():
        extras = {"mask": mask} if name == "masked" else {}
        attention = registry.call("attention", (q, k, v), {**options, **extras})
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        yield f"attention-{name}", attention, [random_array(desc, rng) for desc in attention.inputs]


NARROW = (DType.F16, DType.BF16, DType.F32)
OPERATORS = {
    name: (operator, arrays)
    for name, operator, arrays in list_operators()
    if not any(desc.dtype in NARROW for desc in (*operator.inputs, *operator.outputs))
}


def list_models(operator: Operator) -> Iterator[Graph]:
    """The operator with inputs that have tokens along dimensions of one extent, and weights that have none."""
    for extent in sorted({extent for desc in operator.inputs for extent in desc.shape if extent > 1}):
        axes = [[None, *(a for a, e in enumerate(desc.shape) if e == extent)] for desc in operator.inputs]
        for chosen in itertools.islice(itertools.product(*axes), 1, MAX_CHOICES):
            descs = [
                desc if axis is None else replace(desc, dims=(*desc.dims[:axis], TOKENS, *desc.dims[axis + 1 :]))
                for desc, axis in zip(operator.inputs, chosen, strict=True)
            ]
            builder = GraphBuilder("single")
            for number, (desc, axis) in enumerate(zip(descs, chosen, strict=True)):
                (builder.weight if axis is None else builder.input)(f"x{number}", desc)
            try:
                renamed = registry.restore(operator.family, tuple(descs), operator.attributes)
            except OperatorError:  # two dimensions have one name
                continue
            for name in builder.apply(renamed, [f"x{number}" for number in range(len(descs))]):
                builder.save(name)
            yield builder.build()


def count_steps(name: str, new: int, sequences: int = 1) -> int:
    """How many models of an operator have steps, all of which compute what the operator does."""
    operator, arrays = OPERATORS[name]
    derived = 0
    for model in list_models(operator):
        try:
            step = derive_step(model, StepRequest(TOKENS, new, sequences))
        except (ModelError, UsageError):
            continue
        compare_steps(model, step, {f"x{number}": array for number, array in enumerate(arrays)}, {})
        derived += 1
    return derived


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", OPERATORS)
def test_steps_of_an_operator(name: str) -> None:
    count_steps(name, 1)
    count_steps(name, 2)
    count_steps(name, 2, 3)


@pytest.mark.parametrize(
    ("name", "least"),
    [("f64-softmax", 1), ("f64-rope", 2), ("written-cumsum", 1), ("attention-causal", 1), ("attention-masked", 2)],
)
def test_some_operators_have_steps(name: str, least: int) -> None:
    assert count_steps(name, 2) >= least
    assert count_steps(name, 1, 2) >= least - (name == "attention-masked")  # where the mask is not one of tokens
