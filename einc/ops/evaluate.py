"""The meaning of scalar programs and index equations on numpy arrays: the reference implementation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from einc.core.tensor import Array, DType
from einc.ops.scalar import resolve_program
from einc_runtime.plan.aggregate_definitions import AggregateDefinition, find_definition
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Ranges, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, ScalarProgram
from einc_runtime.plan.schema import NARROW_LARGEST

Labels = Sequence[Sequence[str]]
"""The index names of every operand."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _is_within(x: Any, count: Any) -> Any:
    """Where x can be shifted by so many bits without losing all of them."""
    return (count >= 0) & (count < 8 * x.itemsize)


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
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "erf": lambda x: _erf(x).astype(x.dtype),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,  # ties to even
    "trunc": np.trunc,
    "sign": np.sign,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shiftleft": lambda x, n: np.where(_is_within(x, n), x << np.where(_is_within(x, n), n, 0), 0),
    "shiftright": lambda x, n: x >> np.where(_is_within(x, n), n, 8 * x.itemsize - 1),
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


def reduce(aggregation: str, values: Array, axes: tuple[int, ...]) -> Array:
    """The values aggregated along some axes, in their own type."""
    return np.asarray(_REDUCTIONS[aggregation](values, axis=axes))


def find_computing_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type that chains over `dtype` are computed in: floats of 16 and 8 bits in f32, others in their own."""
    return np.dtype(np.float32) if dtype in (DType.F16, DType.BF16) or dtype.is_narrow_float else dtype.numpy()


def round_to(array: Array, dtype: DType) -> Array:
    """The elements in another type. Floats of 8 bits saturate: what is larger than all of them becomes the largest."""
    if not dtype.is_narrow_float or array.dtype == dtype.numpy():
        return array.astype(dtype.numpy())
    largest = {str(name): value for name, value in NARROW_LARGEST.items()}[dtype.value]
    return np.clip(array.astype(np.float32), -largest, largest).astype(dtype.numpy())


def find_accumulating_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type that contractions and aggregations over `dtype` are computed in: the next wider one."""
    if dtype.is_float:
        return np.dtype(np.float32 if dtype in (DType.F16, DType.BF16) else np.float64)
    return np.dtype(np.int64)


def evaluate(program: ScalarProgram, arrays: Sequence[Array], dtypes: Sequence[DType]) -> Array:
    """The program's result, not yet rounded, on arrays that broadcast against one another."""
    return evaluate_all(program, arrays, dtypes)[-1]


def evaluate_all(program: ScalarProgram, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
    """The results of all steps of a program."""
    program, types = resolve_program(program, dtypes)
    inputs = [array.astype(find_computing_dtype(dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]
    results: list[Array] = []

    def value(operand: Operand, dtype: np.dtype[Any] | None) -> Array:
        if isinstance(operand, ScalarLiteral):
            return np.asarray(operand.value, dtype)
        if isinstance(operand, ScalarInput):
            return inputs[operand.position]
        return results[operand.position]

    with np.errstate(all="ignore"):  # infinities and nan are results, as on every device
        for step, dtype in zip(program.steps, types, strict=True):
            known = [value(x, None).dtype for x in step.operands if not isinstance(x, ScalarLiteral)]
            operands = [value(x, known[-1]) for x in step.operands]
            if step.function.startswith("cast:"):
                result = round_to(operands[0], dtype)
            else:
                result = _MEANING[step.function](*operands)
            results.append(np.asarray(result).astype(find_computing_dtype(dtype)))
    return results


def fold(definition: AggregateDefinition, values: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
    """Tuples of these element types, aggregated along the last axis in its order, by neighbours."""
    values, count = list(values), definition.count
    while values[0].shape[-1] > 1:
        pairs = values[0].shape[-1] // 2
        left, right = ([value[..., side : 2 * pairs : 2] for value in values] for side in (0, 1))
        combined = combine(definition, [*left, *right], dtypes)
        values = [
            np.concatenate([new, value[..., 2 * pairs :]], -1) for new, value in zip(combined, values, strict=True)
        ]
    return [value[..., 0] for value in values[:count]]


def combine(definition: AggregateDefinition, arrays: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
    """What two tuples become."""
    return evaluate_all(definition.program, arrays, [*dtypes, *dtypes])[-definition.count :]


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


PIECE = 1 << 22
"""Index vectors that are evaluated at once."""


def evaluate_index_program(
    program: IndexProgram,
    arrays: Sequence[Array],
    dtypes: Sequence[DType],
    scalar: ScalarProgram,
    results: Sequence[DType],
) -> tuple[Array, ...]:
    """The scalar program at every index vector, on the elements that its reads find, then aggregated over all loops but
    those of the result. `dtypes` are those of the reads. Pieces along the first loops bound the memory."""
    shape = [extent for _, extent in program.loops[: program.kept]]
    outputs = tuple(np.empty(shape, dtype.numpy()) for dtype in results)
    inner, axis = math.prod(program.extents.values()), 0
    while axis < program.kept and inner > PIECE:
        inner //= shape[axis]
        axis += 1
    for prefix in np.ndindex(*shape[:axis]):
        ranges = {**program.whole, **{name: (at, at + 1) for name, at in zip(program.result, prefix, strict=False)}}
        parts = evaluate_ranges(program, arrays, dtypes, scalar, results, ranges)
        for output, part in zip(outputs, parts, strict=True):
            output[prefix] = part.reshape(shape[axis:])
    return outputs


def evaluate_ranges(
    program: IndexProgram,
    arrays: Sequence[Array],
    dtypes: Sequence[DType],
    scalar: ScalarProgram,
    results: Sequence[DType],
    ranges: Ranges,
) -> list[Array]:
    """What an index program computes within these ranges of its loops."""
    grids = dict(zip(ranges, np.ix_(*(np.arange(lower, upper) for lower, upper in ranges.values())), strict=True))
    elements: dict[int, Array] = {}
    for number, read in reversed(list(enumerate(program.reads))):  # positions name later reads
        elements[number] = grids[read.loop] if isinstance(read, IndexRead) else _read(read, arrays, grids, elements)
    values_of_steps = evaluate_all(scalar, [elements[number] for number in range(len(dtypes))], dtypes)
    shape = [upper - lower for lower, upper in ranges.values()]
    definition = find_definition(program.aggregation)
    if definition is not None:
        terms = math.prod(shape[program.kept :])
        values = [
            np.broadcast_to(x, shape).reshape(*shape[: program.kept], terms)
            for x in values_of_steps[-definition.count :]
        ]
        folded = fold(definition, values, results)
        return [value.astype(dtype.numpy()) for value, dtype in zip(folded, results, strict=True)]
    value, (dtype,) = np.broadcast_to(values_of_steps[-1], shape), results
    if program.aggregation:
        gone = tuple(range(program.kept, value.ndim))
        value = _REDUCTIONS[program.aggregation](value.astype(find_accumulating_dtype(dtype)), axis=gone)
    return [value.astype(dtype.numpy())]


def _read(
    read: TensorRead, arrays: Sequence[Array], grids: Mapping[str, Array], elements: Mapping[int, Array]
) -> Array:
    """What a read finds at each index vector."""
    array = arrays[read.operand]
    places: list[Array] = []
    outside: Array = np.zeros((1,) * len(grids), bool)
    for position, extent in zip(read.positions, array.shape, strict=True):
        positions: Array = np.full((1,) * len(grids), position.constant, np.int64)
        for name, factor in position.terms:
            positions = positions + factor * (
                elements[int(name[1:])].astype(np.int64) if name[0] == "@" else grids[name]
            )
        positions = (
            positions // position.divisor % position.modulus if position.modulus else positions // position.divisor
        )
        outside = outside | (positions < 0) | (positions >= extent)
        places.append(np.clip(positions, 0, extent - 1))
    if not read.outside and outside.any():
        raise ValueError(f"an index program reads outside of a tensor of shape {array.shape}")
    elements_read = np.broadcast_to(
        array[tuple(places)], np.broadcast_shapes(outside.shape, *(p.shape for p in places))
    )
    if read.outside in ("", "nearest"):
        return elements_read
    literal = ScalarLiteral(read.outside).value
    return np.where(outside, np.asarray(literal).astype(array.dtype), elements_read)
