"""Attention with grouped queries over packed sequences (paper, Example 4), also cut along its queries and keys.

A query head attends to the keys of the head that its group shares, within its own sequence. Cutting `heads_kv` also
cuts the query heads. `sequence` is cut between sequences, queries and keys together. Cutting `queries`, which the paper
does not, cuts inside of sequences, too: each part reads the keys that its queries see. Cutting `keys` cuts the keys of
every sequence and makes partial results: each part is normalised over its own keys, and the parts are combined by the
logarithms of their sums of exponentials.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from einc.core.intervals import Interval, Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    format_value,
    is_integer,
    read_lengths,
    read_number,
    reject_others,
    require_tensors,
)
from einc.ops.base import Attributes, Operator, find_product_precision
from einc.ops.derived import DerivedOperator, derive_family
from einc.ops.sequence_packing import SequencePacking
from einc_runtime.plan.meaning.attention import EXTRAS, SeenKeys, divide_keys, place_blocks
from einc_runtime.plan.meaning.terms import ends_of
from einc_runtime.plan.work import AttentionWork

CALLS = ("attention",)
INSTEAD_OF_TENSORS = dict.fromkeys(
    ("seq_lens", "q_lens", "k_lens"),
    "lengths that are data: spans=packed_spans(q, q_lens, k_lens), or packed_causal_spans",
)
_ROLES = ("queries", "keys", "values")
_ATTRIBUTES = ("causal", "scale", "q_lens", "k_lens", "window", "extras")

_BY_TOKENS = (1, 0, 2)


@dataclass(frozen=True, slots=True)
class Attention(DerivedOperator):
    """softmax(scale * q k^T) v for every query head, over the keys that a query sees. With a soft cap c other than 0,
    scores s become c * tanh(s / c) first.

    `queries` is [heads_q, tokens_q, d], `keys` [heads_kv, tokens_k, d], `values` [heads_kv, tokens_k, dv]. `mask` is
    bool[tokens_k]: only keys where it holds are seen. `spans` are integers [tokens_q, 2]: of its sequence, a query sees
    the keys from the first to before the second of its row alone. `positions` are integers [tokens_q], the places of
    the queries in their own sequences; without them the queries stand at a sequence's end. With `blocks`, integers
    [sequences, n], keys and values are [heads_kv, places, d]: sequence s has its keys in the blocks of these numbers, n
    one after the other, all of k_len / n places; numbers beyond the blocks are taken as the nearest one. The outputs
    are the results [heads_q, tokens_q, dv], and the logarithm of the sum of exponentials of every query's scores
    [heads_q, tokens_q].
    A query that sees nothing has 0 and -inf.
    """

    family: ClassVar[str] = "attention"

    queries: TensorDesc
    keys: TensorDesc
    values: TensorDesc
    mask: TensorDesc | None
    positions: TensorDesc | None
    blocks: TensorDesc | None
    spans: TensorDesc | None
    extras: tuple[str, ...]
    causal: bool
    scale: float
    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    window: int
    softcap: float
    shares_rows: bool = False
    """Whether keys and values are one tensor. Only costs depend on it, and plans say it by their operands."""

    def apply_to(self, inputs: Sequence[str]) -> Attention:
        shares_rows = inputs[1] == inputs[2]
        return self if shares_rows == self.shares_rows else replace(self, shares_rows=shares_rows)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        further = (getattr(self, name) for name in self.extras)
        return (self.queries, self.keys, self.values, *(desc for desc in further if desc is not None))

    @property
    def attributes(self) -> Attributes:
        cap: Attributes = {"softcap": self.softcap} if self.softcap else {}
        return {**{name: getattr(self, name) for name in _ATTRIBUTES}, **cap}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        packing = self._packing()
        heads, queries, keys = ShardableIndex("heads_kv", self.keys.shape[0]), packing.queries(), packing.keys()
        if self.blocks is not None:  # any sequence may have keys anywhere
            queries, keys = (ShardableIndex(index.name, index.extent, ()) for index in (queries, keys))
        return (heads, packing.sequences(), queries, keys)

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        heads_kv, sequences, parts, shares = intervals
        if len(sequences) > 1 and len(parts) > 1:
            raise ValueError("attention is cut between sequences or along queries, not both")
        packing = self._packing()
        if len(parts) > 1:
            read = [(queries, packing.seen_keys(queries, len(shares))) for queries in parts]
        else:
            read = [(queries, self._read_keys(queries)) for queries in sequences]
        tokens = [(queries, part) for queries, keys in read for part in packing.key_bounds(queries, keys, shares)]
        shapes = [desc.shape for desc in (self.queries, self.keys, self.values)]
        blocks = (
            place_blocks(shapes, self.extras, heads, *bounds, self._read_table(bounds[0]))
            for heads in heads_kv
            for bounds in tokens
        )
        return JoinAggSpec(tuple(FunctionSpec(inputs, outputs) for inputs, outputs in blocks))

    @property
    def memory_orders(self) -> tuple[tuple[int, ...] | None, ...]:
        """By tokens, as the projections before and after have them: each of those is one product of matrices then."""
        return (_BY_TOKENS, _BY_TOKENS, _BY_TOKENS, *(None for _ in self.extras), _BY_TOKENS, None)

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        """One sequence and head after the other, with all scores at once."""
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        q, k, v = arrays[:3]
        extras = dict(zip(self.extras, arrays[3:], strict=True))
        if self.blocks is not None:  # gathered, they are packed as they are without blocks
            k, v = (self._gather(array, extras["blocks"]) for array in (k, v))
        wide = find_accumulating_dtype(self.queries.dtype)
        results, totals = (np.zeros(desc.shape, wide) for desc in self.outputs)
        for rows, columns in zip(_make_slices(self.q_lens), _make_slices(self.k_lens), strict=True):
            q_len, k_len = rows.stop - rows.start, columns.stop - columns.start
            key_places = np.arange(q_len) + k_len - q_len
            if "positions" in extras:  # those beyond the bounds see the same; differences then fit into 64 bits
                key_places = np.clip(extras["positions"][rows].astype(np.int64), -(1 << 61), 3 << 61)
            behind = key_places[:, np.newaxis] - np.arange(k_len)  # how far every key is behind every query
            seen: Array = np.ones((q_len, k_len), bool)
            if self.causal:
                seen &= behind >= 0
            if self.window:
                seen &= behind < self.window
            if "mask" in extras:
                seen &= extras["mask"][columns]
            if "spans" in extras:
                first, last = extras["spans"][rows].T[:, :, np.newaxis]
                seen &= (np.arange(k_len) >= first) & (np.arange(k_len) < last)
            for head in range(len(q)):
                shared = head * len(k) // len(q)
                scores = q[head, rows].astype(wide) @ k[shared, columns].astype(wide).T * self.scale
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                scores[~seen] = -np.inf
                largest = np.max(scores, axis=1, where=seen, initial=np.finfo(wide).min)
                powers = np.exp(scores - largest[:, None])
                sums = powers.sum(axis=1)
                values = v[shared, columns].astype(wide)
                values[~seen.any(axis=0)] = 0  # what no query sees may be anything, even nan
                results[head, rows] = powers @ values / np.where(sums > 0, sums, 1)[:, None]
                results[head, rows][sums == 0] = 0
                with np.errstate(divide="ignore"):
                    totals[head, rows] = largest + np.log(sums)
        o, lse = self.outputs
        return results.astype(o.dtype.numpy()), totals.astype(lse.dtype.numpy())

    def flops(self, function: FunctionSpec) -> int:
        """For each query head and each pair of a query and a key that it sees: a product for the score, a product with
        the value, and the softmax; a soft cap takes three more operations.

        If positions are an input, every query is taken to see every key of its sequence.
        """
        q, _, v = function.inputs[:3]
        pairs = self._packing().pairs((q.lower[1], q.upper[1]), self._seen(function))
        return q.shape[0] * pairs * (2 * q.shape[2] + 2 * v.shape[2] + (8 if self.softcap else 5))

    def work(self, function: FunctionSpec) -> AttentionWork:
        q, _, v = function.inputs[:3]
        tokens_q, tokens_k = (q.lower[1], q.upper[1]), self._seen(function)
        return AttentionWork(
            heads=q.shape[0],
            group=self.queries.shape[0] // self.keys.shape[0],
            sequences=self._packing().count_sequences(tokens_q),
            queries=q.shape[1],
            keys=tokens_k[1] - tokens_k[0],
            pairs=self._packing().pairs(tokens_q, tokens_k),
            width=q.shape[2],
            value_width=v.shape[2],
        )

    def traffic(self, function: FunctionSpec) -> int:
        """Of all blocks, those of the sequences are read. What is key and value at once is read once: kernels have both
        of a tile of tokens at hand, or in the cache."""
        (first, last), (keys, values) = self._seen(function), function.inputs[1:3]
        key, value = (block.shape[0] * block.shape[2] for block in (keys, values))
        unread = keys.shape[1] * (key + value) - (last - first) * (key if self.shares_rows else key + value)
        return DerivedOperator.traffic(self, function) - unread * self.keys.dtype.itemsize

    @property
    def precision(self) -> str:
        return find_product_precision(self.queries)

    def _read_keys(self, queries: Interval) -> Interval:
        """The keys that a function with these queries reads."""
        return self._packing().all_keys(queries) if self.blocks is None else (0, self.keys.shape[1])

    def _read_table(self, queries: Interval) -> tuple[Interval, ...]:
        """The part of the table of blocks that it reads."""
        rows = SeenKeys(self.q_lens, self.k_lens, self.causal, self.window).rows(queries)
        return () if self.blocks is None else (rows, (0, self.blocks.shape[1]))

    def _seen(self, function: FunctionSpec) -> Interval:
        """The packed keys of the sequences of a function."""
        q, k = function.inputs[:2]
        if self.blocks is None:
            return k.lower[1], k.upper[1]
        return self._packing().all_keys((q.lower[1], q.upper[1]))

    def _gather(self, array: Array, blocks: Array) -> Array:
        """The keys or values of all sequences, one sequence after the other."""
        size = self.k_lens[0] // blocks.shape[1]
        divided = array.reshape(array.shape[0], -1, size, array.shape[2])
        return divided[:, blocks.clip(0, divided.shape[1] - 1)].reshape(array.shape[0], -1, array.shape[2])

    def _packing(self) -> SequencePacking:
        """Which queries see which keys, as far as this is known without data."""
        if self.positions is not None:
            return SequencePacking(self.q_lens, self.k_lens)
        return SequencePacking(self.q_lens, self.k_lens, self.causal, self.window)


def _make_slices(lens: tuple[int, ...]) -> list[slice]:
    return [slice(lo, up) for lo, up in itertools.pairwise((0, *ends_of(lens)))]


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`attention(q, k, v, causal=true, seq_lens=[...])`; see docs/operators.md for all that it takes."""
    extra_names = attributes.get("extras", ())  # the registry's names of the last tensors
    further = {key: value for key, value in attributes.items() if key != "extras"}
    reject_others(name, further, "causal", "scale", "seq_lens", "q_lens", "k_lens", "window", "softcap", *EXTRAS)
    names = tuple(map(str, extra_names)) if isinstance(extra_names, tuple) else ()
    count = len(arguments) - len(names)
    q, k, v = require_tensors(name, arguments[:count], 3)
    _check_tensors(q, k, v)
    extras = {key: desc for key, desc in zip(names, arguments[count:], strict=True) if isinstance(desc, TensorDesc)}
    mask, positions, blocks, spans = (extras.get(name) for name in EXTRAS)
    if mask is not None:
        _check_vector("mask", mask, (DType.BOOL,), k, "keys")
    if positions is not None:
        _check_vector("positions", positions, (DType.I64, DType.I32), q, "queries")
    if spans is not None:
        _check_vector("spans", spans, (DType.I64, DType.I32), q, "queries", (2,))
    causal, window = attributes.get("causal", False), attributes.get("window", 0)
    if not isinstance(causal, bool):
        raise OperatorError(f"{name}: 'causal' must be true or false, not {format_value(causal)}", argument="causal")
    if not is_integer(window) or not 0 <= window < 1 << 62:
        hint = "the number of keys that a query sees; 0 for all"
        raise OperatorError(
            f"{name}: 'window' must be 0 or more, not {format_value(window)}", argument="window", hint=hint
        )
    if positions is not None and not causal and not window:
        hint = "add causal=true or window=..., or leave them out"
        raise OperatorError(f"{name}: 'positions' mean nothing here", argument="positions", hint=hint)
    scale = read_number(name, attributes, "scale", 1 / math.sqrt(q.shape[2]), above=0)
    softcap = read_number(name, attributes, "softcap", above=0) if "softcap" in attributes else 0.0
    q_lens, k_lens = _read_lengths(name, attributes, q, k, blocks)
    if blocks is not None:
        _check_blocks(blocks, names, k_lens, k)
    return Attention(q, k, v, mask, positions, blocks, spans, names, causal, scale, q_lens, k_lens, window, softcap)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The attention with these attributes; raises OperatorError if they are not those of an attention."""
    derive_family(Attention.family, inputs, attributes)
    return call("attention", inputs, attributes)


def _read_lengths(
    name: str, attributes: Attributes, q: TensorDesc, k: TensorDesc, blocks: TensorDesc | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths of the packed sequences: in queries, and in keys, which are not packed where they lie in blocks."""
    both = "seq_lens" in attributes
    for key, missing in (("q_lens", "k_lens"), ("k_lens", "q_lens")):
        if key in attributes and both:
            raise OperatorError(f"{name}: 'seq_lens' and '{key}' are both given", argument=key, hint="leave one out")
        if key in attributes and missing not in attributes:
            hint = "where queries and keys have the same lengths: seq_lens=[...]"
            raise OperatorError(f"{name}: '{key}' is given without '{missing}'", argument=key, hint=hint)
    q_lens = read_lengths(name, attributes, "seq_lens" if both else "q_lens", q.shape[1], q.dims[1])
    keys = k.shape[1]
    if blocks is not None:
        stated = attributes.get("k_lens", attributes.get("seq_lens", (keys,)))
        keys = sum(n for n in stated if is_integer(n)) if isinstance(stated, tuple) else 0
    k_lens = read_lengths(name, attributes, "seq_lens" if both else "k_lens", keys, k.dims[1])
    if len(q_lens) != len(k_lens):
        raise OperatorError(
            f"{name}: 'k_lens' has {len(k_lens)} sequences, expected {len(q_lens)}, as 'q_lens'", argument="k_lens"
        )
    return q_lens, k_lens


def _check_tensors(q: TensorDesc, k: TensorDesc, v: TensorDesc) -> None:
    """Checks the ranks, element types and extents of the three tensors."""
    for position, (role, desc) in enumerate(zip(_ROLES, (q, k, v), strict=True)):
        if desc.rank != 3:
            raise OperatorError(
                f"attention: the {role} have three dimensions (heads, tokens, width), found {desc}",
                argument=position,
                hint="reshape and transpose bring a tensor into that form",
            )
        if not desc.dtype.is_float and not (position and desc.dtype.is_narrow_float):
            raise OperatorError(
                f"attention does not take {desc.dtype}", argument=position, hint='convert it: cast(x, "f32")'
            )
        if desc.dtype is not q.dtype and not (desc.dtype.is_narrow_float and desc.dtype is k.dtype):
            raise OperatorError(
                f"attention: the {role} are {desc.dtype} where the queries are {q.dtype}",
                argument=position,
                hint=f'convert one of them: cast(x, "{q.dtype}")',
            )
    _check_extent(1, "width", k, 2, q, 2, "the queries'")
    _check_extent(2, "heads", v, 0, k, 0, "the keys'")
    _check_extent(2, "tokens", v, 1, k, 1, "the keys'")
    if q.shape[0] % k.shape[0] != 0:
        raise OperatorError(
            f"attention: expected a multiple of {k.shape[0]} query heads, the extent of dimension '{k.dims[0]}' of the "
            f"keys; found {q.shape[0]}, that of dimension '{q.dims[0]}'",
            argument=0,
            hint="every head of the keys serves as many query heads",
        )


def _check_extent(
    position: int, meaning: str, tensor: TensorDesc, dim: int, expected: TensorDesc, expected_dim: int, whose: str
) -> None:
    if tensor.shape[dim] != expected.shape[expected_dim]:
        raise OperatorError(
            f"attention: dimension '{tensor.dims[dim]}' ({meaning}) of the {_ROLES[position]} has {tensor.shape[dim]} "
            f"positions, expected {expected.shape[expected_dim]}, as {whose} '{expected.dims[expected_dim]}'",
            argument=position,
            hint=f"{_ROLES[position]} are {tensor}",
        )


def _check_vector(
    name: str, desc: TensorDesc, dtypes: tuple[DType, ...], tokens: TensorDesc, role: str, more: tuple[int, ...] = ()
) -> None:
    """Checks `mask`, `positions` or `spans`: one element, or so many, for each token of the keys or queries."""
    if desc.dtype not in dtypes:
        expected = " or ".join(map(str, dtypes))
        hint = f'convert it: cast(x, "{dtypes[0]}")' if desc.dtype is not DType.BOOL else None
        raise OperatorError(f"attention: '{name}' must be {expected}, found {desc}", argument=name, hint=hint)
    if desc.shape != (*tokens.shape[1:2], *more):
        behind = "".join(f", and one of {count}" for count in more)
        raise OperatorError(
            f"attention: '{name}' must have one dimension of {tokens.shape[1]} positions, as '{tokens.dims[1]}' of the "
            f"{role}{behind}; found {desc}",
            argument=name,
        )


def _check_blocks(blocks: TensorDesc, names: Sequence[str], k_lens: tuple[int, ...], keys: TensorDesc) -> None:
    """Checks the table of blocks: a row for each sequence."""
    if blocks.dtype not in (DType.I64, DType.I32) or blocks.rank != 2 or blocks.shape[0] != len(k_lens):
        raise OperatorError(
            f"attention: 'blocks' must be i64[{len(k_lens)} sequences, blocks of each], found {blocks}",
            argument="blocks",
        )
    if "positions" not in names or {"mask", "spans"} & {*names}:
        raise OperatorError("attention: 'blocks' need 'positions', and take no 'mask' or 'spans'", argument="blocks")
    if not divide_keys(k_lens, blocks.shape, keys.shape[1]):
        raise OperatorError(
            f"attention: {blocks.shape[1]} blocks of each sequence do not have the equal lengths {list(k_lens)[:8]}, "
            f"in {keys.shape[1]} places of '{keys.dims[1]}'",
            argument="k_lens",
            hint="k_lens are the places of each sequence: the tokens of a block times the blocks of a sequence",
        )


FAMILIES = {Attention.family: restore}
