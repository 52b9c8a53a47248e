"""The kernel `attention` in Triton: {causal, scale, q_lens, k_lens, window, extras}; it writes results and their lse.

A program has a tile of query rows of one sequence: some queries, each with all query heads of a group, so that the keys
and values of a group are read once for it, be it one query or thousands. It goes through the keys that its rows can see
in blocks, with running maxima and sums. Keys that all rows see need no mask and have a loop of their own. Where there
are few rows and many keys (decoding), the keys are shared out among programs, whose results are merged by their lse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from runtime.dtypes import Array, storage
from runtime.kernels.attention_signature import Signature, parse
from runtime.kernels.base import Invocation, dtype_name
from runtime.kernels.merge_signature import Merge
from runtime.kernels.triton_merges import plan_merge_logsumexp
from runtime.kernels.triton_source import (
    LANGUAGE,
    Argument,
    Call,
    Operand,
    Plan,
    ScratchPlan,
    Table,
    assembled,
    power_of_two,
    wide,
)

PROGRAMS = 264
"""Where there are fewer programs, keys are shared out: two for each multiprocessor of a large GPU."""

SHARE = 512
"""The fewest keys in a share."""

SHARES = 16
"""At most; the merge has as many operands."""

LARGE_MEMORY = 160 << 10
"""Bytes of shared memory of a multiprocessor from which on blocks of keys are loaded two ahead."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a program's work: rows and keys in a tile, warps, and stages of the loads' pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int

    @staticmethod
    def choose(kind: str, head: int, rows: int, memory: int) -> Shape:
        """By type, width of heads and rows that there are. 16-bit types use tensor cores, whose tiles are large."""
        stages = 3 if memory >= LARGE_MEMORY else 2
        if kind in ("f16", "bf16"):
            large = 128 if head <= 128 and stages == 3 else 64 if head <= 256 else 32
            keys = 64 if head <= 128 else 32
            most = min(large, max(16, power_of_two(rows)))
            return Shape(most, keys, 8 if most * head >= 128 * 128 else 4, stages)
        small = 32 if kind == "f32" and head <= 128 else 16
        return Shape(min(2 * small, max(16, power_of_two(rows))), small, 4, 2)


def plan_attention(invocation: Invocation[Array], memory: int = LARGE_MEMORY) -> Plan:
    """softmax(scale * q k^T) v, over the keys of a block that the queries of a block see; 0 and -inf where none."""
    signature = parse(invocation)
    kind = dtype_name(signature.q)
    head = power_of_two(max(16, signature.q.shape[2], signature.v.shape[2]))
    group = signature.q.shape[0] // signature.k.shape[0]
    heads = min(group, 64)
    longest = max((rows.queries.stop - rows.queries.start for rows in signature.sequences()), default=1)
    shape = Shape.choose(kind, head, heads * longest, memory)
    heads = min(heads, shape.rows)
    work = _work(signature, max(1, shape.rows // heads))
    programs = len(work) * signature.k.shape[0] * -(-group // heads)
    keys = max((int(row[3] - row[2]) for row in work), default=0)
    shares = max(1, min(SHARES, PROGRAMS // programs, keys // SHARE))
    if shares == 1:
        return Plan((_call(signature, kind, shape, heads, work, signature.o, signature.lse, 1),))
    scratch = ScratchPlan()
    parts = scratch.take((shares, *signature.o.shape), signature.lse.dtype)
    logs = scratch.take((shares, *signature.lse.shape), signature.lse.dtype)
    first = _call(signature, kind, shape, heads, work, parts, logs, shares)
    copies = [(parts[n], logs[n]) for n in range(shares)]
    like = (parts[0], signature.lse)  # the types that are merged; results are rounded as they are written
    merge = plan_merge_logsumexp(Merge(copies, like, ((0, 1, 2), (0, 1))), rounded=signature.o)
    return Plan((first, *merge.steps), scratch.size)


def _work(signature: Signature, queries: int) -> Array:
    """For every tile: its first query, how many, the keys of its sequence, and how far queries are ahead of keys.

    Tiles that see most keys come first, so that the last programs to start are short.
    """
    rows = [
        (part.queries.start, part.queries.stop - part.queries.start, part.keys[0], part.keys[1], part.ahead)
        for sequence in signature.sequences()
        for part in sequence.split(queries)
    ]

    def seen(row: tuple[int, int, int, int, int]) -> int:
        if signature.positions is not None:
            return 0
        first, count, low, up, ahead = row
        low, up = signature.visible.span(first + ahead, first + count - 1 + ahead, (low, up))
        return up - low

    return np.array(sorted(rows, key=lambda row: (-seen(row), row)), np.int64).reshape(-1, 5)


def _call(
    signature: Signature,
    kind: str,
    shape: Shape,
    heads: int,
    work: Array,
    o: Array,
    lse: Array,
    shares: int,
) -> Call:
    s = signature
    group, kv_heads, queries = s.q.shape[0] // s.k.shape[0], s.k.shape[0], s.q.shape[1]
    per_tile = max(1, shape.rows // heads)
    arrays = {"q": s.q, "k": s.k, "v": s.v, "o": o, "lse": lse, "mask": s.mask, "positions": s.positions}
    views = {name: view for name, view in arrays.items() if view is not None}
    items = {name: Operand.of(name, view) for name, view in views.items()}
    sixty_four = any(wide([items[name]], view.shape) for name, view in views.items())
    number = LANGUAGE["f64" if kind == "f64" else "f32"]
    width, depth = s.q.shape[2], s.v.shape[2]
    q_span, v_span = power_of_two(max(16, width)), power_of_two(max(16, depth))
    chunks = -(-group // heads)
    cast = ".to(tl.int64)" if sixty_four else ""
    q_in = f" & (e[None, :] < {width})" if width % q_span else ""
    v_in = f" & (f[None, :] < {depth})" if depth % v_span else ""
    visible, limited = s.visible, s.visible.limited
    simple = s.mask is None and visible.window == 0  # then the first keys are seen by all rows
    work_type = "i64" if sixty_four or np.abs(work).max(initial=0) >= 1 << 30 else "i32"

    def strides(name: str) -> tuple[int, ...]:
        return items[name].strides[-3:] if name != "lse" else items[name].strides[-2:]

    def share_of(name: str) -> list[tuple[str, int]]:
        return [("share", items[name].strides[0])] if shares > 1 else []

    factor = s.scale * math.log2(math.e)
    folded = factor > 0  # then the maximum is that of the products, and scaling and subtracting are one instruction
    times = f" * {factor!r}" if folded else ""
    precision = "" if kind in ("f16", "bf16") else ', input_precision="ieee"'
    if kind == "f64":  # Triton has sums in f32 otherwise, or says that they are not
        precision += ", out_dtype=tl.float64"

    def block(masked: bool) -> list[str]:
        """One block of keys."""
        lines = [f"n = begin + tl.arange(0, {shape.keys}){cast}"]
        k_mask = ["(n[None, :] < stop)"] if masked else []
        if q_in:
            k_mask.append(f"(e[:, None] < {width})")
        lines.append(
            f"keys = tl.load({_at('k_base', ('e[:, None]', strides('k')[2]), ('n[None, :]', strides('k')[1]))}"
            + (f", mask={' & '.join(k_mask)}, other=0)" if k_mask else ")")
        )
        lines.append(f"scores = tl.dot(queries, keys{precision}){'' if folded else f' * {factor!r}'}")
        if masked:
            hide = ["(n[None, :] < stop)"]
            if visible.causal:
                hide.append("(n[None, :] <= place[:, None])")
            if visible.window:
                hide.append(f"(n[None, :] > place[:, None] - {visible.window})")
            if s.mask is not None:
                lines.append(f"let = tl.load(mask + n * {items['mask'].strides[0]}, mask=n < stop, other=0) != 0")
                hide.append("let[None, :]")
            lines.append(f'scores = tl.where({" & ".join(hide)}, scores, float("-inf"))')
        lines.append(f"new = tl.maximum(most, tl.max(scores, 1){times})")
        if masked:
            lines.append('base = tl.where(new == float("-inf"), 0.0, new)')
        base = "base" if masked else "new"
        lines += [
            f"weights = tl.exp2(scores{times} - {base}[:, None])",
            f"fade = tl.exp2(most - {base})",
            "total = total * fade + tl.sum(weights, 1)",
        ]
        v_mask = [("let[:, None]" if s.mask is not None else "(n[:, None] < stop)")] if masked else []
        if v_in:
            v_mask.append(f"(f[None, :] < {depth})")
        lines += [
            f"values = tl.load({_at('v_base', ('n[:, None]', strides('v')[1]), ('f[None, :]', strides('v')[2]))}"
            + (f", mask={' & '.join(v_mask)}, other=0)" if v_mask else ")"),
            "sums = sums * fade[:, None]",
            f"sums = tl.dot(weights.to({LANGUAGE[kind]}), values, sums{precision})",
            "most = new",
        ]
        return lines

    head_of_keys = f"(head // {chunks})" if chunks > 1 else "head"
    lines = [f"tile = tl.program_id(0){cast}"]
    if shares > 1:
        lines += [f"share = tile % {shares}", f"tile = tile // {shares}"]
    lines += [
        f"row = work + (tile % {len(work)}) * 5",
        f"head = tile // {len(work)}",
        "first = tl.load(row)",
        "count = tl.load(row + 1)",
        "start = tl.load(row + 2)",
        "stop = tl.load(row + 3)",
        "ahead = tl.load(row + 4)",
        f"m = tl.arange(0, {shape.rows})",
        f"query = m // {heads}",
        f"member = {f'(head % {chunks}) * {heads} + ' if chunks > 1 else ''}m % {heads}",
        f"inside = (query < count) & (query < {per_tile}) & (member < {group})",
        "query = first + tl.minimum(query, count - 1)",
        f"own = {head_of_keys} * {group} + tl.minimum(member, {group - 1})",
        f"e = tl.arange(0, {q_span}){cast}",
        f"f = tl.arange(0, {v_span}){cast}",
    ]
    if s.positions is not None:
        given = _at("positions", ("query", items["positions"].strides[0]))
        lines.append(f"place = tl.load({given}).to(tl.int64) + ahead.to(tl.int64)")
    else:
        lines.append("place = query + ahead")
    if visible.causal:
        lines.append("stop = tl.minimum(stop, tl.max(place, 0) + 1)")
    if visible.window:
        lines.append(f"start = tl.maximum(start, tl.min(place, 0) - {visible.window - 1})")
    lines.append("stop = tl.maximum(stop, start)")
    if shares > 1:
        lines += [
            f"each = (stop - start + {shares * shape.keys - 1}) // {shares * shape.keys} * {shape.keys}",
            "start = tl.minimum(start + share * each, stop)",
            "stop = tl.minimum(start + each, stop)",
        ]
    lines += [
        f"k_base = k + {head_of_keys} * {strides('k')[0]}",
        f"v_base = v + {head_of_keys} * {strides('v')[0]}",
        f"at = {_at('q', *zip(('own[:, None]', 'query[:, None]', 'e[None, :]'), strides('q'), strict=True))}",
        f"queries = tl.load(at, mask=inside[:, None]{q_in}, other=0)",
        f'most = tl.full([{shape.rows}], float("-inf"), {number})',
        f"total = tl.zeros([{shape.rows}], {number})",
        f"sums = tl.zeros([{shape.rows}, {v_span}], {number})",
    ]
    if simple:
        seen = "tl.minimum(stop, tl.min(place, 0) + 1)" if limited else "stop"
        lines += [
            f"full = start + tl.maximum({seen} - start, 0) // {shape.keys} * {shape.keys}",
            f"for begin in range(start, full, {shape.keys}):",
            *("    " + line for line in block(False)),
            f"for begin in range(full, stop, {shape.keys}):",
            *("    " + line for line in block(True)),
        ]
    else:
        lines += [f"for begin in range(start, stop, {shape.keys}):", *("    " + line for line in block(True))]
    o_kind, lse_kind = items["o"].dtype, items["lse"].dtype
    o_terms = zip(("own[:, None]", "query[:, None]", "f[None, :]"), strides("o"), strict=True)
    lines += [
        "sums = sums / tl.where(total == 0, 1.0, total)[:, None]",
        f"at = {_at('o', *share_of('o'), *o_terms)}",
        f"tl.store(at, sums.to({LANGUAGE[o_kind]}), mask=inside[:, None]{v_in})",
        f"at = {_at('lse', *share_of('lse'), *zip(('own', 'query'), strides('lse'), strict=True))}",
        f"tl.store(at, ((most + tl.log2(total)) * {math.log(2)!r}).to({LANGUAGE[lse_kind]}), mask=inside)",
    ]
    tables: list[tuple[str, Argument, str]] = [("work", Table.of(work.astype(storage(work_type))), work_type)]
    title = (
        f"attention of {queries} queries with {group} heads for each of {kv_heads}, {s.k.shape[1]} keys"
        f"{', causal' if visible.causal else ''}{f', window {visible.window}' if visible.window else ''}"
        f"{f', keys in {shares} shares' if shares > 1 else ''}"
    )
    grid = len(work) * kv_heads * chunks * shares
    return assembled(
        "attention", title, list(items.values()), s.q.shape, lines, grid, "", tables, shape.warps, shape.stages
    )


def _at(base: str, *terms: tuple[str, int]) -> str:
    """The address of a tile by subscripts and their strides; unlike `Operand.at` it keeps the tile's shape."""
    return " + ".join([base, *(places if stride == 1 else f"{places} * {stride}" for places, stride in terms)])
