"""The meaning of scalar programs and index equations on numpy arrays: the reference implementation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einc.core.tensor import DType
from einc.ops.scalar import resolve_program
from einc_runtime.plan.scalar_programs import IndexValue, Operand, ScalarInput, ScalarLiteral, ScalarProgram

if TYPE_CHECKING:
    from einc.ops.base import Array

Labels = Sequence[Sequence[str]]
"""The index names of every operand."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


_MEANING: dict[str, Callable[..., Any]] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: _gelu(np.maximum(x, x.dtype.type(-1e3))).astype(x.dtype),  # as -inf * 0 is not 0
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "not": np.logical_not,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "where": np.where,
}

_REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def find_computing_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type that chains over `dtype` are computed in: 16-bit floats in f32, all others in their own."""
    return np.dtype(np.float32) if dtype in (DType.F16, DType.BF16) else dtype.numpy()


def find_accumulating_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type that contractions and aggregations over `dtype` are computed in: the next wider one."""
    if dtype.is_float:
        return np.dtype(np.float32 if dtype in (DType.F16, DType.BF16) else np.float64)
    return np.dtype(np.int64)


def evaluate(
    program: ScalarProgram, arrays: Sequence[Array], dtypes: Sequence[DType], indices: Sequence[Array] = ()
) -> Array:
    """The program's result, not yet rounded, on arrays that broadcast against one another.

    `indices` are the values of the indices that the program may read, in i64.
    """
    program, types = resolve_program(program, dtypes)
    inputs = [array.astype(find_computing_dtype(dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]
    results: list[Array] = []

    def value(operand: Operand, dtype: np.dtype[Any] | None) -> Array:
        if isinstance(operand, ScalarLiteral):
            return np.asarray(operand.value, dtype)
        if isinstance(operand, ScalarInput):
            return inputs[operand.position]
        return (indices if isinstance(operand, IndexValue) else results)[operand.position]

    with np.errstate(all="ignore"):  # infinities and nan are results, as on every device
        for step, dtype in zip(program.steps, types, strict=True):
            known = [value(x, None).dtype for x in step.operands if not isinstance(x, ScalarLiteral)]
            operands = [value(x, known[-1]) for x in step.operands]
            if step.function.startswith("cast:"):
                result = operands[0].astype(dtype.numpy())
            else:
                result = _MEANING[step.function](*operands)
            results.append(np.asarray(result).astype(find_computing_dtype(dtype)))
    return results[-1]


def contract(
    arrays: Sequence[Array], labels: Labels, result: Sequence[str], dtype: DType, factor: float = 1.0
) -> Array:
    """The product of the arrays, summed over every index that `result` lacks, times a number."""
    number = _number_indices(labels)
    operands: list[Any] = []
    for array, names in zip(arrays, labels, strict=True):
        operands += [array.astype(find_accumulating_dtype(dtype)), [number[name] for name in names]]
    total: Array = np.einsum(*operands, [number[name] for name in result], optimize=True)
    return (total if factor == 1 else total * factor).astype(dtype.numpy())


def join_and_aggregate(
    program: ScalarProgram,
    arrays: Sequence[Array],
    labels: Labels,
    dtypes: Sequence[DType],
    result: Sequence[str],
    aggregation: str | None,
) -> Array:
    """The program at every index vector, aggregated over every index that `result` lacks."""
    number = _number_indices(labels)
    dtype = resolve_program(program, dtypes)[1][-1]
    operands = [
        _align(a, [number[name] for name in names], len(number)) for a, names in zip(arrays, labels, strict=True)
    ]
    value = evaluate(program, operands, dtypes)
    value = np.broadcast_to(value, np.broadcast_shapes(*(operand.shape for operand in operands)))
    if aggregation is not None:
        gone = tuple(axis for name, axis in number.items() if name not in result)
        value = _REDUCTIONS[aggregation](value.astype(find_accumulating_dtype(dtype)), axis=gone)
    kept = [name for name in number if name in result]
    return value.transpose([kept.index(name) for name in result]).astype(dtype.numpy())


def _number_indices(labels: Labels) -> dict[str, int]:
    """Every index, numbered in the order of first appearance."""
    return {name: i for i, name in enumerate(dict.fromkeys(name for names in labels for name in names))}


def _align(array: Array, axes: Sequence[int], rank: int) -> Array:
    """The array with its dimensions at `axes` of `rank` dimensions, diagonals taken, extent 1 elsewhere."""
    kept = sorted(set(axes))
    array = np.einsum(array, list(axes), kept)
    return array.reshape([array.shape[kept.index(axis)] if axis in kept else 1 for axis in range(rank)])
