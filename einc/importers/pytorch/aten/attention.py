"""Attention: packed for einc's operator where masks allow it, and spelled out elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import arrange, expand, reshape, transpose, unsqueeze
from einc.importers.arrays.products import matmul
from einc.importers.arrays.reducing import softmax
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten


@aten("scaled_dot_product_attention")
def convert_attention(
    call: Call, query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    """softmax(scale q k^T + mask) v of queries [..., heads, tokens, d]; grouped where keys have fewer heads."""
    if dropout_p:
        raise UnsupportedError("random numbers of a dropout", "call eval() on the module before it is exported")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1].value)
    seen = find_seen_keys(query.shape[-2], key.shape[-2], attn_mask, is_causal)
    if seen is not None and query.rank in (3, 4) and key.rank == query.rank:
        return _attend_packed(call, query, key, value, seen, scale)
    return _attend_plainly(call, query, key, value, attn_mask, is_causal, scale)


def find_seen_keys(queries: Extent, keys: Extent, mask: Array | None, causal: bool) -> str | None:
    """The arguments of einc's attention that say which keys a query sees, if they can; None otherwise."""
    if mask is None:
        if not causal:
            return ""
        return ", causal=true" if queries == keys else None
    numbers = mask.numbers
    if numbers is None or causal or mask.rank < 2 or not queries.is_number or not keys.is_number:
        return None
    if not mask.type.is_bool:
        if not bool(((numbers == 0) | (numbers <= np.finfo(np.float16).min)).all()):
            return None
        numbers = numbers == 0
    table = np.broadcast_to(numbers, (*numbers.shape[:-2], queries.value, keys.value)).reshape(
        -1, queries.value, keys.value
    )
    if not bool((table == table[:1]).all()):
        return None
    return describe_table(table[0])


def describe_table(table: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> str | None:
    """The arguments that say the same as a table [queries, keys] of who sees whom."""
    if bool(table.all()):
        return ""
    queries, keys = table.shape
    gap = np.arange(queries)[:, None] + (keys - queries) - np.arange(keys)
    if bool((table == (gap >= 0)).all()):
        return ", causal=true"
    window = int(gap[table].max(initial=-1)) + 1
    if window > 0 and bool((table == ((gap >= 0) & (gap < window))).all()):
        return f", causal=true, window={window}"
    return None


def _attend_packed(call: Call, query: Array, key: Array, value: Array, seen: str, scale: float) -> Array:
    """Batches one after another along the tokens, as einc's attention has them."""
    program = call.program
    batch = query.shape[0] if query.rank == 4 else make_extent(1)
    queries, keys = query.shape[-2], key.shape[-2]
    q, k, v = (_pack(call, array) for array in (query, key, value))
    heads, width = q.shape[0], v.shape[-1]
    if heads.value % max(1, k.shape[0].value):
        raise UnsupportedError(f"{heads.text} heads of queries and {k.shape[0].text} of keys")
    lengths = f", q_lens=[{queries.text}] * ({batch.text}), k_lens=[{keys.text}] * ({batch.text})"
    if batch == make_extent(1):
        lengths = ""
    text = f"attention({{0}}, {{1}}, {{2}}{seen}{lengths}, scale={scale!r})"
    shape = (heads, queries * batch, width)
    dims = (q.dims[0], q.dims[1], v.dims[2])
    packed = program.call(call.hint, text, [q, k, v], shape, query.type, dims)
    return _unpack(call, packed, query, width)


def _pack(call: Call, array: Array) -> Array:
    """[batch, heads, tokens, d] as [heads, batch * tokens, d]."""
    if array.rank == 3:
        return call.program.place(array)
    batch, heads, tokens, width = array.shape
    moved = transpose(call.program, array, [1, 0, 2, 3], "packed")
    return call.program.place(reshape(call.program, moved, [heads, batch * tokens, width], "packed"))


def _unpack(call: Call, packed: Array, query: Array, width: Extent) -> Array:
    if query.rank == 3:
        return packed
    batch, heads, tokens, _ = query.shape
    split = reshape(call.program, packed, [heads, batch, tokens, width], call.hint)
    return transpose(call.program, split, [1, 0, 2, 3], call.hint)


def _attend_plainly(
    call: Call, query: Array, key: Array, value: Array, mask: Array | None, causal: bool, scale: float
) -> Array:
    """Scores, their softmax in f32 at least, and its product with the values."""
    program = call.program
    if query.rank > 2 and key.rank == query.rank and key.shape[-3] != query.shape[-3]:
        key, value = (repeat_heads(call, array, query.shape[-3]) for array in (key, value))
    order = [*range(key.rank - 2), key.rank - 1, key.rank - 2]
    scores = matmul(program, query, transpose(program, key, order), "scores")
    scores = apply(program, "mul", scores, float(scale), hint="scores")
    scores = cast(program, scores, ElementType.F64 if query.type is ElementType.F64 else ElementType.F32)
    visible: Array | None = None
    if causal:
        columns = arrange(program, 0, key.shape[-2])
        visible = apply(program, "le", columns, unsqueeze(program, arrange(program, 0, query.shape[-2]), [1]))
    elif mask is not None and mask.type.is_bool:
        visible = mask
    elif mask is not None:
        scores = apply(program, "add", scores, cast(program, mask, scores.type), hint="scores")
    if visible is not None:
        scores = where(program, visible, scores, float(np.finfo(np.float32).min), "scores")
    weights = cast(program, softmax(program, scores, -1, "weights"), query.type)
    return matmul(program, weights, value, call.hint)


def repeat_heads(call: Call, array: Array, heads: Extent) -> Array:
    """Each head as often as its group of queries has heads: [..., heads_kv, tokens, d] to [..., heads, tokens, d]."""
    program, axis = call.program, array.rank - 3
    wide = unsqueeze(program, array, [axis + 1])
    times = heads // array.shape[axis]
    spread = expand(program, wide, [*array.shape[: axis + 1], times, *array.shape[axis + 1 :]])
    shape: Sequence[Extent] = [
        *array.shape[:axis],
        multiply_extents([array.shape[axis], times]),
        *array.shape[axis + 1 :],
    ]
    return reshape(program, spread, shape, "repeated")
