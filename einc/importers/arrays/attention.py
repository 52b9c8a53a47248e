"""Attention: packed for einc's operator where masks allow it, and spelled out elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import arrange, expand, reshape, transpose, unsqueeze
from einc.importers.arrays.products import matmul
from einc.importers.arrays.program import ArrayProgram, recorded
from einc.importers.arrays.reducing import softmax
from einc.importers.arrays.values import Array, UnsupportedError


def attend(
    program: ArrayProgram, query: Array, key: Array, value: Array, mask: Array | None, causal: bool, scale: float,
    hint: str = "attention",
) -> Array:  # fmt: skip
    """softmax(scale q k^T + mask) v of queries [..., heads, tokens, d]; grouped where keys have fewer heads.

    A mask of booleans holds where a key is seen; one of floats is added. With `causal`, key i is seen from query i on.
    """
    narrow = [_find_repeated_heads(program, array) for array in (key, value)]
    if key.rank < 3 or narrow[0].shape[-3] == narrow[1].shape[-3]:
        key, value = narrow
    seen = find_seen_keys(query.shape[-2], key.shape[-2], mask, causal)
    if seen is not None and query.rank in (3, 4) and key.rank == value.rank == query.rank:
        return _attend_packed(program, query, key, value, seen, scale, hint)
    return _attend_plainly(program, query, key, value, mask, causal, scale, hint)


def attend_seen(
    program: ArrayProgram, query: Array, key: Array, value: Array, seen: str, scale: float, hint: str,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    """The same of three or four dimensions each, for arguments of einc's attention that say who sees whom.

    With `sinks` [heads], a score for each head stands beside all keys and has no value.
    """
    narrow = [_find_repeated_heads(program, array) for array in (key, value)]
    if key.rank == 4 and narrow[0].shape[1] == narrow[1].shape[1]:
        key, value = narrow
    return _attend_packed(program, query, key, value, seen, scale, hint, sinks)


@recorded
def rotate(program: ArrayProgram, array: Array, rates: str, hint: str = "rotated") -> Array:
    """Heads [..., tokens, d] rotated by their positions, at the rates that arguments of einc's rope say."""
    placed = program.place(array)
    return program.call(hint, f"rope({{0}}, {rates})", [placed], array.shape, array.type, placed.dims)


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


def _attend_packed(
    program: ArrayProgram, query: Array, key: Array, value: Array, seen: str, scale: float, hint: str,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    """Batches one after another along the tokens, as einc's attention has them."""
    batch = query.shape[0] if query.rank == 4 else make_extent(1)
    queries, keys = query.shape[-2], key.shape[-2]
    q, k, v = (_pack(program, array) for array in (query, key, value))
    heads, width = q.shape[0], v.shape[-1]
    if heads.value % max(1, k.shape[0].value):
        raise UnsupportedError(f"{heads.text} heads of queries and {k.shape[0].text} of keys")
    times = batch.text if len(batch.terms) == 1 else f"({batch.text})"
    lengths = f", q_lens=[{queries.text}] * {times}, k_lens=[{keys.text}] * {times}"
    if batch == make_extent(1):
        lengths = ""
    text = f"attention({{0}}, {{1}}, {{2}}{seen}{lengths}, scale={scale!r})"
    shape = (heads, queries * batch, width)
    dims = (q.dims[0], q.dims[1], v.dims[2])
    if sinks is None:
        packed = program.call(hint, text, [q, k, v], shape, query.type, dims)
    else:
        lse_type = ElementType.F64 if query.type is ElementType.F64 else ElementType.F32
        results = [(shape, query.type, dims), (shape[:2], lse_type, dims[:2])]
        plain, lse = program.calls(hint, text, [q, k, v], results)
        packed = _weigh_against_sinks(program, plain, lse, sinks)
    return _unpack(program, packed, query, width, hint)


def _weigh_against_sinks(program: ArrayProgram, packed: Array, lse: Array, sinks: Array) -> Array:
    """Results, whose weights were normalized over the keys, normalized over keys and sinks: times
    exp(lse) / (exp(lse) + exp(sink))."""
    wide = unsqueeze(program, cast(program, sinks, lse.type), [1])
    share = apply(program, "sigmoid", apply(program, "sub", lse, wide), hint="share")
    return apply(program, "mul", packed, unsqueeze(program, cast(program, share, packed.type), [2]), hint=packed.name)


def _pack(program: ArrayProgram, array: Array) -> Array:
    """[batch, heads, tokens, d] as [heads, batch * tokens, d]."""
    if array.rank == 3:
        return program.place(array)
    batch, heads, tokens, width = array.shape
    moved = array if batch == make_extent(1) else transpose(program, array, [1, 0, 2, 3], "packed")
    return program.place(reshape(program, moved, [heads, batch * tokens, width], "packed"))


def _unpack(program: ArrayProgram, packed: Array, query: Array, width: Extent, hint: str) -> Array:
    if query.rank == 3:
        return packed
    batch, heads, tokens, _ = query.shape
    if batch == make_extent(1):
        return reshape(program, packed, [batch, heads, tokens, width], hint)
    split = reshape(program, packed, [heads, batch, tokens, width], hint)
    return transpose(program, split, [1, 0, 2, 3], hint)


def _attend_plainly(
    program: ArrayProgram, query: Array, key: Array, value: Array, mask: Array | None, causal: bool, scale: float,
    hint: str,
) -> Array:  # fmt: skip
    """Scores, their softmax in f32 at least, and its product with the values. Who sees nothing gets zeros."""
    if query.rank > 2 and key.rank == query.rank and key.shape[-3] != query.shape[-3]:
        key, value = (repeat_heads(program, array, query.shape[-3]) for array in (key, value))
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
    weights = softmax(program, scores, -1, "weights")
    if visible is not None:
        weights = where(program, visible, weights, 0.0, "weights")
    weights = cast(program, weights, query.type)
    return matmul(program, weights, value, hint)


def repeat_heads(program: ArrayProgram, array: Array, heads: Extent) -> Array:
    """Each head as often as its group of queries has heads: [..., heads_kv, tokens, d] to [..., heads, tokens, d]."""
    axis = array.rank - 3
    wide = unsqueeze(program, array, [axis + 1])
    times = heads // array.shape[axis]
    spread = expand(program, wide, [*array.shape[: axis + 1], times, *array.shape[axis + 1 :]])
    shape: Sequence[Extent] = [
        *array.shape[:axis],
        multiply_extents([array.shape[axis], times]),
        *array.shape[axis + 1 :],
    ]
    return reshape(program, spread, shape, "repeated")


def _find_repeated_heads(program: ArrayProgram, array: Array) -> Array:
    """The heads [batch, heads_kv, tokens, d] of which an array repeats each several times in a row, or the array."""
    outer = program.find_origin(array, "reshape")
    spread = program.find_origin(outer[0], "expand") if outer is not None and array.rank == 4 else None
    if outer is None or spread is None or outer[0].rank != 5:
        return array
    wide: Array = outer[0]
    narrow: Array = spread[0]
    if narrow.rank != 5 or narrow.shape[2] != make_extent(1) or narrow.shape[:2] != wide.shape[:2]:
        return array
    if narrow.shape[3:] != wide.shape[3:] or array.shape[2:] != wide.shape[3:]:
        return array
    return reshape(program, narrow, [*narrow.shape[:2], *narrow.shape[3:]], array.name)
