"""The family `attention`: queries, which may be packed sequences, and the keys and values that they see.

Heads are cut in groups. Queries are cut between sequences or anywhere. Keys are cut anywhere: each function puts out a
partial result over its own keys, and these are combined as tuples with the logarithms of their sums. The intervals of
keys say only how many parts there are: where a part ends is free, so the proof does not derive it. It proves instead
that the parts of the same queries follow one another without a gap, from the first key that one of the queries may see
up to the last one. So each pair of a query and a key counts exactly once.

Where `blocks` are an input, keys and values lie in blocks of equally many tokens, in any order, and may be those of
several sequences: row s of this table has the numbers of the blocks of sequence s, which are data. A function reads all
blocks then, and only heads and sequences are cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.terms import (
    MAX_TOTAL_LENGTH,
    Application,
    IndexForm,
    Interval,
    OperatorMeaning,
    TensorForm,
    ends_of,
    unique_names,
)
from einc_runtime.plan.schema import FLOATS, INTEGERS, NARROW_FLOATS, Attribute, Block, Function, JointAggregation

EXTRAS = ("mask", "positions", "blocks", "spans")
"""The inputs that may follow queries, keys and values."""
_REQUIRED = ("causal", "scale", "q_lens", "k_lens", "window", "extras")


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Which keys a query may see, as far as it is known without data: all of its sequence if positions are an input."""

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    causal: bool
    window: int  # 0 for all keys

    def by(self, queries: Interval) -> Interval:
        """The keys from the first to the last one that any of these packed queries may see."""
        q_ends, k_ends = ends_of(self.q_lens), ends_of(self.k_lens)
        first, last = bisect_right(q_ends, queries[0]), bisect_left(q_ends, queries[1])
        lower, upper = k_ends[first] - self.k_lens[first], k_ends[last]
        if self.window:  # query i of a sequence is at place i + keys - queries among its keys
            key = queries[0] - q_ends[first] + self.k_lens[first]
            lower += max(key - self.window + 1, 0)
        if self.causal:
            upper -= min(q_ends[last] - queries[1], self.k_lens[last])
        return lower, upper

    def rows(self, queries: Interval) -> Interval:
        """The sequences that these packed queries belong to."""
        q_ends = ends_of(self.q_lens)
        return bisect_right(q_ends, queries[0]), bisect_left(q_ends, queries[1]) + 1


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """What the functions of an attention read and write."""

    applied: Application
    extras: tuple[str, ...]
    seen: SeenKeys

    def require(self, cuts: Sequence[tuple[Interval, ...]], functions: Sequence[Function]) -> None:
        """Raises PlanFault where a function, whose intervals are those of the same position in `cuts`, has another
        block than it must."""
        all_queries, shapes = sum(self.seen.q_lens), [tensor.shape for tensor in self.applied.inputs[:3]]
        table = read_extra(self.extras, self.applied.inputs, "blocks")
        reached = 0
        for f, ((heads, sequences, queries, keys), function) in enumerate(zip(cuts, functions, strict=True)):
            if all_queries not in (sequences[1] - sequences[0], queries[1] - queries[0]):
                raise PlanFault(
                    "attention is cut between sequences or along queries, not both", where=f"functions[{f}]"
                )
            seen_queries = max(queries[0], sequences[0]), min(queries[1], sequences[1])
            part = function.inputs[1].lower[1], function.inputs[1].upper[1]
            lower, upper = self.seen.by(seen_queries) if table is None else (0, shapes[1][1])
            follows = part[0] <= lower if keys[0] == 0 else part[0] == reached
            reached = part[1]
            if not follows or (keys[1] == sum(self.seen.k_lens) and reached < upper):
                message = f"it has the keys {part[0]}:{part[1]}, and its queries see {lower}:{upper}"
                raise PlanFault(message, where=f"functions[{f}].inputs[1]")
            bounds = () if table is None else (self.seen.rows(seen_queries), (0, table.shape[1]))
            inputs, outputs = place_blocks(shapes, self.extras, heads, seen_queries, part, bounds)
            for field, stated, expected in (
                ("inputs", function.inputs, inputs),
                ("outputs", function.outputs, outputs),
            ):
                if stated != expected:
                    k = next(k for k in range(len(stated)) if stated[k] != expected[k])
                    message = f"{stated[k]}, where attention has {expected[k]}"
                    raise PlanFault(message, where=f"functions[{f}].{field}[{k}]")


_Tensor = TypeVar("_Tensor")


def read_extra(extras: Sequence[str], inputs: Sequence[_Tensor], name: str) -> _Tensor | None:
    """The input of this name behind queries, keys and values; None where there is none."""
    return inputs[3 + extras.index(name)] if name in extras else None


def place_blocks(
    shapes: Sequence[Sequence[int]],
    extras: Sequence[str],
    heads: Interval,
    queries: Interval,
    keys: Interval,
    table: Sequence[Interval] = (),
) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """What a function with these heads of keys, queries and keys reads and writes; `shapes` are those of all queries,
    keys and values, and `table` is the part of the table of blocks that it reads."""
    q, k, v = shapes
    group = q[0] // k[0]
    lead = heads[0] * group, heads[1] * group
    vectors = {"mask": [keys], "positions": [queries], "blocks": table, "spans": (queries, (0, 2))}
    inputs = (
        _box(lead, queries, (0, q[2])),
        _box(heads, keys, (0, k[2])),
        _box(heads, keys, (0, v[2])),
        *(_box(*vectors[name]) for name in extras),
    )
    return inputs, (_box(lead, queries, (0, v[2])), _box(lead, queries))


def _box(*bounds: Interval) -> Block:
    return Block(tuple(lower for lower, _ in bounds), tuple(upper for _, upper in bounds))


def attention(applied: Application) -> OperatorMeaning:
    """`extras` says which of a mask, positions, a table of blocks and spans follow the queries, keys and values."""
    applied.allow(_REQUIRED, ("softcap",))
    extras = applied.items("extras", str)
    known = set(extras) <= set(EXTRAS) and len(set(extras)) == len(extras)
    applied.require(known, "extras that are not mask, positions, blocks and spans")
    q, k, v, *further = applied.operands(3 + len(extras))
    _require_tensors(applied, dict(zip(extras, further, strict=True)))
    table = read_extra(extras, applied.inputs, "blocks")
    q_lens = applied.lengths("q_lens", q.shape[1])
    k_lens = applied.lengths("k_lens", k.shape[1]) if table is None else applied.items("k_lens", int)
    applied.require(len(q_lens) == len(k_lens), f"{len(q_lens)} sequences of queries, {len(k_lens)} of keys")
    causal, window = applied.value("causal", bool), applied.value("window", int)
    applied.require(0 <= window < MAX_TOTAL_LENGTH, f"a window of {window}")
    attributes: dict[str, Attribute] = {"causal": causal, "window": window, "extras": list(extras)}
    attributes.update(scale=applied.number("scale"), q_lens=list(q_lens), k_lens=list(k_lens))
    if "softcap" in applied.attributes:
        attributes["softcap"] = applied.number("softcap")
    free = "positions" in extras
    applied.require(causal or window > 0 or not free, "positions that hide no keys")
    if table is not None:
        fits = free and not {"mask", "spans"} & {*extras} and table.shape[:1] == (len(k_lens),)
        applied.require(fits and divide_keys(k_lens, table.shape, k.shape[1]) > 0, f"with the table of blocks {table}")
    cuts = None if table is None else ()  # blocks may be anywhere
    seen = SeenKeys(q_lens, k_lens, causal and not free, 0 if free else window)
    dims, shape = unique_names((*q.dims[:2], v.dims[2])), (*q.shape[:2], v.shape[2])
    return OperatorMeaning(
        "attention",
        attributes,
        (TensorForm(dims, shape, q.dtype), TensorForm(dims[:2], shape[:2], "f64" if q.dtype == "f64" else "f32")),
        (
            IndexForm("heads_kv", k.shape[0]),
            IndexForm("sequence", q.shape[1], ends_of(q_lens)[:-1]),
            IndexForm("queries", q.shape[1], cuts),
            IndexForm("keys", sum(k_lens), cuts),
        ),
        aggregations=("logsumexp", "logsumexp"),
        joint_aggregations=(JointAggregation((0, 1), ((0, 1, 2), (0, 1))),),
        partial=(3,),
        require_functions=AttentionBlocks(applied, extras, seen).require,
    )


def divide_keys(k_lens: Sequence[int], table: Sequence[int], rows: int) -> int:
    """The tokens of a block, where sequences of these lengths have the blocks of a table of this shape, which lie in so
    many rows; 0 where this does not fit."""
    longest = max(k_lens, default=0)
    fits = len(table) == 2 and table[1] > 0 and longest > 0 and {*k_lens} == {longest} and longest % table[1] == 0
    size = longest // table[1] if fits else 0
    return size if size and rows % size == 0 else 0


def _require_tensors(applied: Application, extras: dict[str, TensorForm]) -> None:
    q, k, v = applied.inputs[:3]
    fit = q.rank == k.rank == v.rank == 3 and k.dtype == v.dtype in (q.dtype, *NARROW_FLOATS) and q.dtype in FLOATS
    fit = fit and q.shape[2] == k.shape[2] and v.shape[:2] == k.shape[:2] and q.shape[0] % k.shape[0] == 0
    applied.require(fit, f"of {q}, {k} and {v}")
    shapes = {"mask": k.shape[1:2], "positions": q.shape[1:2], "spans": (q.shape[1], 2)}
    for name, extra in extras.items():
        fit = extra.dtype in (("bool",) if name == "mask" else INTEGERS)
        applied.require(fit and extra.shape == shapes.get(name, extra.shape), f"the {name} are {extra}")
