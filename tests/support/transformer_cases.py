"""Operators of transformers whose pieces depend on data or on where a block stands, with data that they accept.

`concrete` says what each piece computes, in plain numpy and apart from the runtime's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.ops import registry
from einc.ops.append import Append
from einc.ops.base import Operator
from einc.ops.dequantize import widen_values
from einc.ops.equation import Equation
from einc.ops.index_operator import IndexOperator, find_parts
from einc.ops.quantized_experts import QuantizedExperts
from einc.ops.rope import Rope
from einc_runtime.plan.index_patterns import Concatenation
from tests.support.definition_oracle import Array, random_array
from tests.support.quantized_cases import FORMS, widen

Draw = Callable[[np.random.Generator], Array]


@dataclass(frozen=True)
class Case:
    """An operator, and how to draw those of its inputs that not every array will do for."""

    operator: Operator
    draws: dict[int, Draw] = field(default_factory=dict)
    positive: bool = False

    def arrays(self, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        return [
            np.asarray(self.draws[k](rng)).astype(desc.dtype.numpy())
            if k in self.draws
            else random_array(desc, rng, self.positive)
            for k, desc in enumerate(self.operator.inputs)
        ]


def desc(dims: str, *shape: int, dtype: DType = DType.F32) -> TensorDesc:
    return TensorDesc(tuple(dims.split()), shape, dtype)


def cases(dtype: DType) -> dict[str, Case]:
    """Uneven sizes throughout."""
    cases_by_name: dict[str, Case] = {}

    def case(name: str, call: str, inputs: Sequence[TensorDesc], draws: dict[int, Draw], **keywords: Any) -> None:
        cases_by_name[f"{dtype}-{name}"] = Case(registry.call(call, list(inputs), keywords), draws)

    x = desc("heads tokens d_head", 3, 11, 6, dtype=dtype)
    positions = {1: lambda rng: rng.permutation(1000)[:11]}
    i64, i32 = desc("tokens", 11, dtype=DType.I64), desc("tokens", 11, dtype=DType.I32)
    case("rope", "rope", [x], {})
    case("rope_packed", "rope", [x], {}, seq_lens=(5, 1, 3, 2), theta=500.0)
    case("rope_positions", "rope", [x], positions, positions=i64)
    case("rope_positions_i32", "rope", [x], positions, positions=i32, scaling="linear", factor=4)
    case("rope_factors", "rope", [desc("tokens d", 7, 4, dtype=dtype)], {}, scaling="longrope", factors=(1.5, 3.0))
    case("rope_rank2", "rope", [desc("tokens d", 7, 4, dtype=dtype)], {}, scaling="linear", factor=2.5)
    case("rope_rank4", "rope", [desc("b h t d", 2, 3, 5, 10, dtype=dtype)], {}, theta=50.0, scaling="llama3",
         factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=64)  # fmt: skip

    table = desc("vocabulary d_model", 9, 5, dtype=dtype)
    every = {0: lambda rng: rng.permutation(np.arange(11) % 9)}
    case("embedding", "embedding", [i64, table], every)
    case("embedding_i32", "embedding", [i32, table], every)
    case("embedding_rank2", "embedding", [desc("b t", 3, 4, dtype=DType.I32), table],
         {0: lambda rng: rng.permutation(np.arange(12) % 9).reshape(3, 4)})  # fmt: skip
    case("embedding_scalar", "embedding", [desc("", dtype=DType.I64), table], {0: lambda rng: rng.integers(9)})

    weight = desc("experts n k", 6, 5, 8, dtype=dtype)
    picked = {2: lambda rng: rng.permutation(np.arange(21) % 6).reshape(7, 3)}
    for name, expert_input in (
        ("shared", desc("t k", 7, 8, dtype=dtype)),
        ("slots", desc("t slots k", 7, 3, 8, dtype=dtype)),
    ):
        case(f"experts_{name}", "expert_matmul", [expert_input, weight, desc("t slots", 7, 3, dtype=DType.I64)], picked)
    case("experts_i32", "expert_matmul", [desc("t k", 7, 8, dtype=dtype), weight, desc("t s", 7, 3, dtype=DType.I32)],
         picked)  # fmt: skip

    cache, new = desc("h rows d", 3, 10, 5, dtype=dtype), desc("h tokens d", 3, 4, 5, dtype=dtype)
    at = desc("tokens", 4, dtype=DType.I64)
    case("append", "append", [cache, new, at], {2: lambda rng: rng.permutation(10)[:4]})
    case("append_again", "append", [cache, new, at], {2: lambda rng: np.array([6, 2, 6, 6])})
    case("append_packed", "append", [cache, new, desc("tokens", 4, dtype=DType.I32)],
         {2: lambda rng: np.array([2, 0, 5, 0])}, cache_lens=(3, 6, 1), new_lens=(2, 1, 1))  # fmt: skip

    a, b, c = (desc(f"h {n} d", 3, extent, 4, dtype=dtype) for n, extent in (("past", 5), ("now", 2), ("next", 4)))
    case("concat", "concat", [a, b, c], {}, over="past", into="tokens")
    case("concat_one", "concat", [b], {}, over="d")
    case("concat_last", "concat", [b, desc("h s d", 3, 2, 7, dtype=dtype)], {}, over="d")
    case("slice", "slice", [a], {}, past=(1, 4), d=(2, 4))
    return cases_by_name


def all_transformer_cases() -> dict[str, Case]:
    cases_by_name: dict[str, Case] = {}
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.F64):
        cases_by_name |= cases(dtype)
        for form in FORMS if dtype in (DType.F32, DType.BF16) else ():
            cases_by_name[f"{dtype}-experts_{form}"] = stored_experts(form, dtype)
    return cases_by_name


def stored_experts(form: str, dtype: DType) -> Case:
    """What fusion makes of a product with experts whose weight is stored in one of the `FORMS`. Of some forms, each
    expert has a scale or a factor."""
    stored = replace(FORMS[form], channels=1) if form in ("nvfp4", "f8_tensor") else FORMS[form]
    weight = widen(stored, desc("experts n k", 6, 5, 96, dtype=dtype))
    picks = desc("t slots", 7, 3, dtype=DType.I64)
    plain = registry.call("expert_matmul", [desc("t k", 7, 96, dtype=dtype), weight.outputs[0], picks], {})
    product = plain.fuse(1, weight)
    assert isinstance(product, QuantizedExperts)
    return Case(product, {len(product.inputs) - 1: lambda rng: rng.permutation(np.arange(21) % 6).reshape(7, 3)})


def concrete(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """One function specification."""
    read, written = function.inputs, function.outputs[0]
    match operator:
        case Rope():
            return _rope(operator, blocks, read[0].lower[-2])
        case IndexOperator() if (parts := find_parts(operator)) is not None:
            return [_concat(parts, function, blocks)]
        case QuantizedExperts():
            x, *stored, picks = blocks
            weight = widen_values(operator.form, tuple(stored), operator.tensor.dtype)
            return [_multiply_experts((x, weight, picks), read[1].lower[0])]
        case IndexOperator() if operator.program.is_expert_product:
            return [_multiply_experts(blocks, read[1].lower[0])]
        case IndexOperator():
            ids, table = blocks
            local = ids - read[1].lower[0]
            inside = (local >= 0) & (local < len(table))
            return [np.where(inside[..., None], table[np.where(inside, local, 0)], 0).astype(table.dtype)]
        case Append():
            return _append(operator, blocks, read[1].lower[1], written.lower[1])
        case Equation():
            return [blocks[0].copy()]
        case _:
            raise AssertionError(operator)


def _rope(operator: Rope, blocks: Sequence[Array], first: int) -> Sequence[Array]:
    """By positions that are given, whole or in part."""
    x, *positions = blocks
    places = np.concatenate([np.arange(n) for n in operator.seq_lens]) if operator.seq_lens else positions[0]
    if operator.seq_lens:
        places = places[first : first + x.shape[-2]]
    inputs = (TensorDesc(operator.tensor.dims, x.shape, operator.tensor.dtype), desc("t", len(places), dtype=DType.I64))
    attributes = {k: v for k, v in operator.attributes.items() if k != "seq_lens"} | {"extras": ("positions",)}
    return registry.restore("rope", inputs, attributes).reference(x, places.astype(np.int64))


def _multiply_experts(blocks: Sequence[Array], first: int) -> Array:
    """Slot by slot."""
    x, weight, picks = blocks
    wide = np.float64 if x.dtype == np.float64 else np.float32
    result = np.zeros((*picks.shape, weight.shape[1]), wide)
    for token, slot in np.ndindex(*picks.shape):
        expert = picks[token, slot] - first
        if 0 <= expert < len(weight):
            row = x[token] if x.ndim == 2 else x[token, slot]
            result[token, slot] = weight[expert].astype(wide) @ row.astype(wide)
    return result.astype(x.dtype)


def _append(operator: Append, blocks: Sequence[Array], first: int, low: int) -> Sequence[Array]:
    cache, new, positions = blocks
    result = cache.copy()
    sequences = np.repeat(np.arange(len(operator.new_lens)), operator.new_lens)
    origins = np.concatenate([[0], np.cumsum(operator.cache_lens)])
    for token, position in enumerate(positions):
        row = origins[sequences[first + token]] + position - low
        if 0 <= row < cache.shape[1]:
            result[:, row] = new[:, token]
    return [result]


def _concat(concatenation: Concatenation, function: FunctionSpec, blocks: Sequence[Array]) -> Array:
    """Element by element along the axis, each from the input that has it."""
    axis, origins = concatenation.axis, [start for _, start, _ in concatenation.parts]
    slabs = []
    for position in range(function.outputs[0].lower[axis], function.outputs[0].upper[axis]):
        k = int(np.searchsorted(origins, position, side="right")) - 1
        at = position - int(origins[k]) - function.inputs[k].lower[axis]
        assert 0 <= at < blocks[k].shape[axis]
        slabs.append(blocks[k].take([at], axis=axis))
    return np.concatenate(slabs, axis=axis)
