"""Every family at the borders: extents from 1 on, sequences of one token, more sites than there are elements.

Operators are drawn, cut in every way that a number of sites asks for, and run by the runtime's kernels on their blocks:
joined, aggregated and recomposed, that must be the reference on whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.tensor import DType, TensorDesc
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.dequantize import QuantizedForm
from einc.ops.equation import build_equation
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.scalar_programs import ScalarProgram
from tests.support import attention_oracle
from tests.support.definition_oracle import Array, fault, reachable, requests
from tests.support.kernel_pieces import run_kernel
from tests.support.property_examples import examples
from tests.support.quantized_cases import make_rounded
from tests.support.transformer_cases import Case, desc

I64, BOOL = DType.I64, DType.BOOL
extents = st.integers(1, 5)
lens = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
Drawn = Any


def tensor(draw: Drawn, rank: int, dtype: DType = DType.F32) -> TensorDesc:
    return TensorDesc(tuple("abcdefg"[:rank]), tuple(draw(extents) for _ in range(rank)), dtype)


def equation(draw: Drawn) -> Case:
    """Two operands with any of three indices, in any order, twice in one too; any of them in the result."""
    size = {name: draw(extents) for name in "ijk"}
    labels = [tuple(draw(st.lists(st.sampled_from("ijk"), max_size=3))) for _ in range(2)]
    present = sorted({name for names in labels for name in names})
    kept = draw(st.permutations(draw(st.lists(st.sampled_from(present), unique=True)) if present else []))
    program = draw(st.sampled_from(["t0 = mul x0 x1", "t0 = sub x0 x1; t1 = abs t0", "t0 = max x0 x1; t1 = mul t0 x0"]))
    inputs = [(TensorDesc(names, tuple(size[n] for n in names), DType.F32), names) for names in labels]
    aggregation = draw(st.sampled_from(["sum", "max", "min", "prod"]))
    return Case(build_equation(inputs, [(n, n) for n in kept], ScalarProgram.parse(program, 2), aggregation))


def reshape(draw: Drawn) -> Case:
    """Factors of one shape dealt out anew; a dimension may have none."""
    factors = draw(st.lists(st.integers(1, 4), max_size=5))

    def grouped(prefix: str) -> dict[str, int]:
        bounds = [0, *sorted(draw(st.lists(st.integers(0, len(factors)), max_size=3))), len(factors)]
        return {f"{prefix}{n}": math.prod(factors[a:b]) for n, (a, b) in enumerate(pairwise(bounds))}

    old = grouped("p")
    return Case(registry.call("reshape", [TensorDesc(tuple(old), tuple(old.values()), DType.F32)], grouped("q")))


def rows(draw: Drawn) -> Case:
    name = draw(st.sampled_from(["softmax", "rmsnorm", "layernorm"]))
    x = tensor(draw, draw(st.integers(1, 3)))
    vector = TensorDesc(x.dims[-1:], x.shape[-1:], x.dtype)
    if name == "softmax":
        return Case(registry.call(name, [x, draw(st.sampled_from(x.dims))], {}))
    return Case(registry.call(name, [x, *[vector] * (1 if name == "rmsnorm" else 2)], {}))


def selection(draw: Drawn) -> Case:
    x = tensor(draw, draw(st.integers(1, 3)), draw(st.sampled_from([DType.F32, DType.I32])))
    at = draw(st.integers(0, x.rank - 1))
    return Case(registry.call("topk", [x, draw(st.integers(1, x.shape[at])), x.dims[at]], {}))


def slicing(draw: Drawn) -> Case:
    x = tensor(draw, draw(st.integers(1, 3)))
    ranges = {}
    for dim, extent in zip(x.dims, x.shape, strict=True):
        start = draw(st.integers(0, extent - 1))
        ranges[dim] = (start, draw(st.integers(start + 1, extent)))
    return Case(registry.call("slice", [x], ranges))


def concat(draw: Drawn) -> Case:
    first = tensor(draw, draw(st.integers(1, 3)))
    at = draw(st.integers(0, first.rank - 1))
    shapes = [(*first.shape[:at], draw(extents), *first.shape[at + 1 :]) for _ in range(draw(st.integers(0, 3)))]
    parts = [first, *(TensorDesc(first.dims, shape, first.dtype) for shape in shapes)]
    return Case(registry.call("concat", parts, {"over": first.dims[at]}))


def rope(draw: Drawn) -> Case:
    lengths = draw(lens)
    x = TensorDesc(("h", "t", "d"), (draw(extents), sum(lengths), 2 * draw(st.integers(1, 3))), DType.F32)
    return Case(registry.call("rope", [x], {"seq_lens": lengths}))


def embedding(draw: Drawn) -> Case:
    ids, table = tensor(draw, draw(st.integers(0, 2)), I64), desc("v w", draw(extents), draw(extents))
    return Case(
        registry.call("embedding", [ids, table], {}), {0: lambda rng: rng.integers(0, table.shape[0], ids.shape)}
    )


def experts(draw: Drawn) -> Case:
    tokens, slots, count, rows, summed = (draw(extents) for _ in range(5))
    x = desc("t k", tokens, summed) if draw(st.booleans()) else desc("t s k", tokens, slots, summed)
    inputs = [x, desc("e n k", count, rows, summed), desc("t s", tokens, slots, dtype=I64)]
    operator = registry.call("expert_matmul", inputs, {})
    return Case(operator, {2: lambda rng: rng.integers(0, count, (tokens, slots))})


def rounded(draw: Drawn) -> Case:
    """Any order of the tensor's and the result's indices, of which the weight may share one, and any channels."""
    size = {name: draw(extents) for name in "abmnkl"}
    rows, columns, summed = (
        draw(st.sampled_from(choice)) for choice in (("", "a", "am"), ("", "b", "bn"), ("k", "kl"))
    )
    shared = draw(st.sampled_from(["", rows[:1]]))
    weight = shared + columns + summed
    tensor = draw(st.permutations(rows + summed))
    result = draw(st.permutations(rows + columns))
    descs = [TensorDesc(tuple(labels), tuple(size[name] for name in labels), DType.F32) for labels in (weight, tensor)]
    indices = f"{' '.join(tensor)}, {' '.join(weight)} -> {' '.join(result)}"
    form = QuantizedForm(STORED_FORMS["i8"], channels=draw(st.integers(0, len(shared + columns))))
    return Case(make_rounded(*descs, indices, form=form))


def append(draw: Drawn) -> Case:
    new = draw(lens)
    cache = tuple(n + draw(st.integers(0, 3)) for n in new)
    heads, width = draw(extents), draw(extents)
    operands = [desc("h r w", heads, sum(cache), width), desc("h t w", heads, sum(new), width)]
    operator = registry.call(
        "append", [*operands, desc("t", sum(new), dtype=I64)], {"cache_lens": cache, "new_lens": new}
    )
    sizes = list(zip(cache, new, strict=True))
    return Case(operator, {2: lambda rng: np.concatenate([rng.integers(0, rows, tokens) for rows, tokens in sizes])})


def attention(draw: Drawn) -> Operator:
    kv, group, q_lens = draw(extents), draw(st.integers(1, 3)), draw(lens)
    k_lens = q_lens if draw(st.booleans()) else tuple(draw(st.integers(1, 6)) for _ in q_lens)
    causal, window = draw(st.booleans()), draw(st.integers(0, 3))
    extras = draw(st.lists(st.sampled_from(["mask", "positions"] if causal or window else ["mask"]), unique=True))
    width = (draw(extents), draw(extents))
    return attention_oracle.attention(
        (kv * group, kv), q_lens, k_lens, width=width, extras=extras, causal=causal, window=window
    )


FAMILIES: dict[str, Callable[[Drawn], Case]] = {
    "equation": equation, "reshape": reshape, "rows": rows, "selection": selection, "slice": slicing, "concat": concat,
    "rope": rope, "embedding": embedding, "experts": experts, "rounded": rounded, "append": append,
}  # fmt: skip


def check(operator: Operator, arrays: list[Array], sites: int) -> None:
    expected = operator.reference(*arrays)
    for intervals in requests(operator, sites):
        spec = operator.build_spec(intervals)
        assert len(spec.functions) == reachable(operator, intervals, sites)
        assert all(block.size for function in spec.functions for block in (*function.inputs, *function.outputs))
        assert fault(operator, spec, arrays, expected, run_kernel) is None, (operator, intervals)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), sites=st.integers(1, 20), seed=st.integers(0, 99))
@examples(60)
def test_any_cut_of_any_operator_is_the_operator(family: str, data: Drawn, sites: int, seed: int) -> None:
    case = FAMILIES[family](data.draw)
    check(case.operator, case.arrays(seed), sites)


@given(data=st.data(), sites=st.integers(1, 20), seed=st.integers(0, 99))
@examples(120)
def test_any_cut_of_any_attention_is_the_attention(data: Drawn, sites: int, seed: int) -> None:
    operator = attention(data.draw)
    check(operator, attention_oracle.data(operator, seed), sites)
