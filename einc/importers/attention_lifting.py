"""Finds attention again that was spelled out: products, what is done to scores, a softmax, and products with values.

Known masks become causal attention with or without a window, tanh a soft cap, biases that grow with the distance of
keys (ALiBi) one more element of queries and keys, and a column of sinks beside the scores a factor of the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from einc.importers.arrays.attention import attend_seen, describe_table
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import cast
from einc.importers.arrays.extents import multiply_extents
from einc.importers.arrays.moving import concat, reshape, transpose
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, Elements
from einc.importers.origins import UNSEEN, find_scaled, pairs, read_number

_NO_BOUND = -1e30
"""Bounds of scores below this change none of them: the least number of f32, mostly."""
_MAX_OPERATIONS_ON_SCORES = 20
"""Operations between a product and its softmax; models have up to six."""
_ERROR_OF_SLOPES = 1e-5
"""How far biases may be from a multiple of the position, relative to the largest: they are products in f32."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """factor * cap(inner * query key^T) + biases, where some pairs are not seen."""

    query: Array
    key: Array
    factor: float
    softcap: float
    tables: tuple[Elements, ...]
    slopes: tuple[Elements, ...]


@dataclass(slots=True)
class _Reading:
    """What was read so far of a chain of operations on scores, from its end: `factor` times what is left to read."""

    factor: float = 1.0
    softcap: float = 0.0
    tables: list[Elements] = field(default_factory=list)
    slopes: list[Elements] = field(default_factory=list)


def find_attention(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """softmax(scale q k^T + mask) v of arrays [..., tokens, d] of three or four dimensions."""
    weights, value = arguments[:2]
    if array.rank not in (3, 4) or value.rank != array.rank:
        return None
    weights = skip_views(program, weights)
    sinks: Array | None = None
    sliced = program.find_origin(weights, "slice_axis")
    if sliced is not None:
        weights = skip_views(program, sliced[0])
    normed = program.find_origin(weights, "softmax")
    if normed is None or normed[1] % weights.rank != weights.rank - 1:
        return None
    scores = skip_largest(program, skip_views(program, normed[0]))
    if sliced is not None:
        joined = _split_sinks(program, scores, sliced)
        if joined is None:
            return None
        scores, sinks = joined
    read = _read_scores(program, scores)
    if read is None or (read := _widen_products(program, read, array)) is None:
        return None
    seen = _describe_tables(read)
    if seen is None:
        return None
    query, key, value = (cast(program, part, array.type) for part in (read.query, read.key, value))
    scale = read.factor
    if read.slopes:
        biased = _add_positions(program, query, key, read)
        if biased is None:
            return None
        query, key = biased
    if sinks is not None and sinks.shape[0] != query.shape[-3]:
        return None
    cap = f", softcap={read.softcap!r}" if read.softcap else ""
    return attend_seen(program, query, key, value, seen + cap, scale, array.name, sinks)


def _widen_products(program: ArrayProgram, read: _Scores, array: Array) -> _Scores | None:
    """The same with queries and keys [batch, heads, tokens, d], where batches and heads were one dimension."""
    parts = []
    for part in (read.query, read.key):
        if part.rank != array.rank:
            lead = array.shape[:-2]
            if part.rank != 3 or multiply_extents(part.shape[:-2]) != multiply_extents(lead):
                return None
            part = reshape(program, part, [*lead, *part.shape[-2:]], array.name)
        parts.append(part)
    return replace(read, query=parts[0], key=parts[1])


def skip_views(program: ArrayProgram, value: Array) -> Array:
    """What an array is without casts, and without reshapes that keep its last two dimensions."""
    while True:
        cast_ = program.find_origin(value, "cast")
        shaped = program.find_origin(value, "reshape")
        if cast_ is not None:
            value = cast_[0]
        elif shaped is not None and shaped[0].rank > 2 and shaped[0].shape[-2:] == value.shape[-2:]:
            value = shaped[0]
        else:
            return value


def skip_largest(program: ArrayProgram, value: Array) -> Array:
    """A softmax is the same without the largest element that was subtracted before."""
    operands = program.find_origin(value, "sub")
    if operands is None or not all(isinstance(part, Array) for part in operands[:2]):
        return value
    kept = program.find_origin(operands[1], "reshape")
    largest = program.find_origin(kept[0] if kept is not None else operands[1], "reduce")
    if largest is None or largest[1] != "max" or largest[0].name != operands[0].name:
        return value
    same: Array = operands[0]
    return skip_views(program, same)


def _split_sinks(program: ArrayProgram, scores: Array, sliced: tuple[Any, ...]) -> tuple[Array, Array] | None:
    """Scores, and the sinks [heads] that stand behind them in a last column, which is cut off after the softmax."""
    joined = program.find_origin(scores, "concat")
    if joined is None or len(joined[0]) != 2 or joined[1] % scores.rank != scores.rank - 1:
        return None
    inner, column = joined[0]
    axis, start, stop = sliced[1:4]
    keys = inner.shape[-1].value
    width = scores.shape[-1].value
    if axis % scores.rank != scores.rank - 1 or start != 0 or stop not in (-1, keys) or width != keys + 1:
        return None
    spread = program.find_origin(column, "expand")
    source: Array = spread[0] if spread is not None else column
    if source.rank < 3 or source.shape[-3] != inner.shape[-3] or multiply_extents(source.shape) != source.shape[-3]:
        return None
    return inner, reshape(program, source, [source.shape[-3]], "sinks")


def _read_scores(program: ArrayProgram, value: Array) -> _Scores | None:
    """The product at the start of a chain of factors, biases, masks and a soft cap."""
    reading = _Reading()
    for _ in range(_MAX_OPERATIONS_ON_SCORES):
        value = skip_views(program, value)
        product = program.find_origin(value, "matmul")
        if product is not None:
            query, right = product[:2]
            if right.rank != query.rank:
                return None
            swapped = [*range(right.rank - 2), right.rank - 1, right.rank - 2]
            key = transpose(program, right, swapped, "keys")
            tables, slopes = tuple(reading.tables), tuple(reading.slopes)
            return _Scores(query, key, reading.factor, reading.softcap, tables, slopes)
        following = _read_step(program, value, reading)
        if following is None:
            return None
        value = following
    return None


def _read_step(program: ArrayProgram, value: Array, reading: _Reading) -> Array | None:
    """What the last operation was done to; notes in the reading what it was."""
    for operation in ("mul", "div"):
        scaled = find_scaled(program, value, operation)
        if scaled is not None and scaled[1]:
            reading.factor *= scaled[1] if operation == "mul" else 1 / scaled[1]
            return scaled[0]
    for scores, table in pairs(program.find_origin(value, "mul") or (None, None)):
        if isinstance(scores, Array) and isinstance(table, Array) and _is_hidden_anyway(table.numbers, reading):
            return scores
    for scores, bias in pairs(program.find_origin(value, "add") or (None, None)):
        if isinstance(scores, Array) and isinstance(bias, Array) and bias.numbers is not None and scores.known is None:
            return scores if not bias.type.is_bool and _read_bias(bias.numbers, scores, reading) else None
    chosen = program.find_origin(value, "where")
    if chosen is not None:
        return _read_choice(chosen, reading)
    for scores, lowest in pairs(program.find_origin(value, "max") or (None, None)):
        number = read_number(lowest)  # finite instead of -inf: what is seen is larger
        if isinstance(scores, Array) and number is not None and number <= _NO_BOUND:
            return scores
    capped = program.find_origin(value, "tanh")
    if capped is not None and not reading.softcap and reading.factor > 0:
        reading.softcap = reading.factor
        return capped[0] if isinstance(capped[0], Array) else None
    return None


def _is_hidden_anyway(table: Elements | None, reading: _Reading) -> bool:
    """Whether a factor is 1 but for pairs that a mask hides, which is added later."""
    if table is None or not reading.tables or reading.tables[-1].shape[-2:] != table.shape[-2:]:
        return False
    return bool(((table == 1) | ~reading.tables[-1]).all())


def _read_choice(chosen: tuple[Any, ...], reading: _Reading) -> Array | None:
    """Scores where a known table holds, and a number that hides them elsewhere, or the other way round."""
    condition, positive, negative = chosen[:3]
    if not isinstance(condition, Array) or condition.numbers is None or reading.softcap:
        return None
    for scores, hiding, seen in ((positive, negative, True), (negative, positive, False)):
        number = read_number(hiding)
        if isinstance(scores, Array) and scores.known is None and number is not None and number <= UNSEEN:
            reading.tables.append(condition.numbers.astype(bool) == seen)
            return scores
    return None


def _read_bias(numbers: Elements, scores: Array, reading: _Reading) -> bool:
    """Notes a bias that hides pairs, or one that is a multiple of the key's position for each head."""
    if reading.softcap or numbers.ndim == 0:
        return False
    bias = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        hidden = bias * reading.factor <= UNSEEN
    if bool((hidden | (bias == 0)).all()):
        reading.tables.append(~hidden)
        return True
    lead, keys = [extent.value for extent in scores.shape[:-2]], scores.shape[-1]
    even = bias.ndim < 2 or bias.shape[-2] == 1
    if hidden.any() or not even or not keys.is_number or keys.value < 2 or bias.shape[-1] != keys.value:
        return False
    wide = np.broadcast_to(bias.reshape(*bias.shape[:-2], bias.shape[-1]), (*lead, keys.value))
    rows = wide.reshape(-1, keys.value) * reading.factor
    slopes = (rows[:, -1] - rows[:, 0]) / (keys.value - 1)
    error = np.abs(rows - rows[:, :1] - slopes[:, None] * np.arange(keys.value)).max()
    if error > _ERROR_OF_SLOPES * np.abs(rows).max():
        return False
    reading.slopes.append(slopes)
    return True


def _describe_tables(read: _Scores) -> str | None:
    """The arguments of einc's attention for which all tables hold."""
    queries, keys = read.query.shape[-2], read.key.shape[-2]
    if not read.tables:
        return ""
    if not queries.is_number or not keys.is_number:
        return None
    seen = np.ones((queries.value, keys.value), bool)
    for table in read.tables:
        if table.ndim < 2:
            table = table.reshape(1, -1)
        wide = np.broadcast_to(table, (*table.shape[:-2], queries.value, keys.value)).reshape(-1, *seen.shape)
        if not bool((wide == wide[:1]).all()):
            return None
        seen &= wide[0]
    return describe_table(seen)


def _add_positions(program: ArrayProgram, query: Array, key: Array, read: _Scores) -> tuple[Array, Array] | None:
    """Queries with their head's slope behind them, and keys with their position: their products have the bias."""
    if read.softcap or query.type not in (ElementType.F32, ElementType.F64):
        return None  # positions are not exact in smaller types
    if query.shape[:-2] != key.shape[:-2] or not all(extent.is_number for extent in (*query.shape, *key.shape)):
        return None
    slopes = sum(read.slopes) / read.factor
    lead = [extent.value for extent in query.shape[:-2]]
    columns = []
    for array, column in (
        (query, np.asarray(slopes).reshape(*lead, 1, 1)),
        (key, np.arange(key.shape[-2].value, dtype=np.float64).reshape(-1, 1)),
    ):
        known = np.broadcast_to(column, (*lead, array.shape[-2].value, 1)).astype(array.type.numpy)
        columns.append(concat(program, [array, program.constant(known, array.type, "places")], -1, array.name))
    return columns[0], columns[1]
