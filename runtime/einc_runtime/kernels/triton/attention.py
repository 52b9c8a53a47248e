"""The kernel `attention` in Triton: {causal, scale, q_lens, k_lens, window, softcap, extras}; it writes o and lse.

A program has a tile of query rows of one sequence: some queries, each with all query heads of a group, so that the keys
and values of a group are read once for all of them. It goes through the keys that its rows can see in blocks, with
running maxima and sums. Keys that all rows see need no mask and have a loop of their own. Where there are few rows and
many keys (decoding), keys are divided among programs, and their results are combined by their lse. Where keys lie in
blocks, each key of a tile is looked up in the table of its sequence.

In reproducible plans (`ordered`), blocks of keys begin at multiples of their length from the start of a sequence, tiles
have one size, and one program goes through all keys. A block that a row does not see multiplies its sums by 1 and adds
0, whether it is computed or not. The sums of weights are kept for each place in a block, and added up at the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION, AttentionCall
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.gpu import F8_ARCHITECTURES
from einc_runtime.kernels.triton.attention_tiles import AttentionTile, divide_columns, name_parts
from einc_runtime.kernels.triton.joint_aggregation import build_logsumexp
from einc_runtime.kernels.triton.launches import Argument, KernelLaunch, LaunchSequence, Table, WorkspaceAllocator
from einc_runtime.kernels.triton.ordered_sums import write_tree
from einc_runtime.kernels.triton.scalar import HELPERS
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
)
from einc_runtime.kernels.triton.tiles import MULTIPROCESSORS

ORDERED_ROWS = 64
"""The rows of a tile in reproducible plans, also where there are fewer: the fewest for which all tensor cores have
instructions of one kind."""

MIN_SHARE = 512
"""The least number of keys in a share."""

MAX_SHARES = 16
"""The greatest number of shares; the kernel that combines them has as many operands."""

_NARROW_TYPES = {"f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5"}


def build_ordered_attention(invocation: Invocation[Array], architecture: str) -> LaunchSequence:
    """The same, with one order for every query, whatever the queries beside it are."""
    return build_attention(invocation, architecture, ordered=True).without_fusion()


def build_attention(invocation: Invocation[Array], architecture: str, ordered: bool = False) -> LaunchSequence:
    """softmax(scale * q k^T) v, over the keys that each query sees; 0, with an lse of -inf, where it sees none."""
    call = AttentionCall.parse(invocation)
    head = max(sum(span for _, span in divide_columns(view.shape[2])) for view in (call.q, call.v))
    group = call.q.shape[0] // call.k.shape[0]
    heads = min(group, 64)
    longest = max((rows.queries.stop - rows.queries.start for rows in call.sequences()), default=1)
    shape = AttentionTile.choose(dtype_name(call.q), head, ORDERED_ROWS if ordered else heads * longest, architecture)
    shape = replace(shape, rows=min(shape.rows, ORDERED_ROWS), warps=8) if ordered else shape
    heads = min(heads, shape.rows)
    work = _list_tiles(call, max(1, shape.rows // heads))
    programs = len(work) * call.k.shape[0] * -(-group // heads)
    keys = max((int(row[3] - row[2]) for row in work), default=0)
    share_limit = 2 * MULTIPROCESSORS // programs  # with fewer programs, keys are divided among several
    shares = 1 if ordered else max(1, min(MAX_SHARES, share_limit, keys // MIN_SHARE))
    results = call.o, call.lse
    if shares == 1:
        return LaunchSequence((_AttentionSource(call, shape, heads, results, 1, ordered, architecture).call(work),))
    scratch = WorkspaceAllocator()
    parts = scratch.take((shares, *call.o.shape), call.lse.dtype)
    logs = scratch.take((shares, *call.lse.shape), call.lse.dtype)
    first = _AttentionSource(call, shape, heads, (parts, logs), shares, ordered, architecture).call(work)
    copies = [(parts[n], logs[n]) for n in range(shares)]
    like = (parts[0], call.lse)  # the types that are combined; results are rounded as they are written
    combined = build_logsumexp(JointAggregationCall(copies, like, ((0, 1, 2), (0, 1))), rounded=call.o)
    return LaunchSequence((first, *combined.steps), scratch.size)


def _list_tiles(call: AttentionCall, queries: int) -> Array:
    """A row for every tile: its first query, the number of queries, the first key of its sequence and the end of its
    keys, how far queries are ahead of keys, and where the sequence starts, which may be before the block; also the row
    of the sequence in the table of blocks, if keys lie in some.

    Tiles that see most keys come first, so that the last programs to start are short.
    """
    rows = [
        (
            part.queries.start,
            part.queries.stop - part.queries.start,
            *part.keys,
            part.ahead,
            part.origin,
            *([] if call.blocks is None else [part.table_row]),
        )
        for sequence in call.sequences()
        for part in sequence.split(queries)
    ]

    def seen(row: tuple[int, ...]) -> int:
        if call.positions is not None:
            return 0
        first, count, low, up, ahead, _ = row
        low, up = call.visible.span(first + ahead, first + count - 1 + ahead, (low, up))
        return up - low

    columns = 6 if call.blocks is None else 7
    return np.array(sorted(rows, key=lambda row: (-seen(row), row)), np.int64).reshape(-1, columns)


class _AttentionSource:
    """Writes the source for tiles of query rows, with `heads` heads of a group for each query.

    Keys may be in shares; then the `outputs` o and lse have the shares as their first dimension.
    """

    def __init__(
        self,
        s: AttentionCall,
        shape: AttentionTile,
        heads: int,
        outputs: tuple[Array, Array],
        shares: int,
        ordered: bool,
        architecture: str,
    ) -> None:
        self.architecture = architecture
        self.s, self.shape, self.heads, self.shares, self.ordered = s, shape, heads, shares, ordered
        o, lse = outputs
        self.kind = dtype_name(s.q)
        self.number = LANGUAGE["f64" if self.kind == "f64" else "f32"]
        self.group = s.q.shape[0] // s.k.shape[0]
        self.chunks = -(-self.group // heads)  # of the heads of a group
        # Rows that are keys and values are loaded once; not where a mask hides some, which may be nan, as values alone.
        same = s.k.shape == s.v.shape and PointerOperand.of("k", s.k) == PointerOperand.of("k", s.v)
        self.shares_rows = same and s.mask is None
        arrays = {"q": s.q, "k": s.k, "v": None if self.shares_rows else s.v, "o": o, "lse": lse, "mask": s.mask,
                  "positions": s.positions, "blocks": s.blocks, "spans": s.spans}  # fmt: skip
        views = {name: view for name, view in arrays.items() if view is not None}
        self.items = {name: PointerOperand.of(name, view) for name, view in views.items()}
        casts = (index_cast([self.items[name]], view.shape) for name, view in views.items())
        self.cast = next(filter(None, casts), "")
        width, depth = s.q.shape[2], s.v.shape[2]
        self.q_parts, self.v_parts = list(name_parts("e", width)), list(name_parts("f", depth))
        self.factor = s.scale * math.log2(math.e) if not s.softcap else s.scale / s.softcap
        self.tanh = "tanh64" if self.kind == "f64" else "tanh"
        # A positive factor can be applied after the maximum: scaling and subtracting are then one instruction.
        self.times = f" * {self.factor!r}" if self.factor > 0 and not s.softcap else ""

    def call(self, work: Array) -> KernelLaunch:
        s, visible, (kv_heads, keys) = self.s, self.s.visible, self.s.k.shape[:2]
        grid = len(work) * kv_heads * self.chunks * self.shares
        number = "i64" if self.cast or np.abs(work).max(initial=0) >= 1 << 30 else "i32"
        tables: list[tuple[str, Argument, str]] = [("work", Table.of(work.astype(storage_dtype(number))), number)]
        title = (
            f"attention of {s.q.shape[1]} queries with {self.group} heads for each of {kv_heads}, {keys} keys"
            f"{', causal' if visible.causal else ''}{f', window {visible.window}' if visible.window else ''}"
            f"{f', soft cap {s.softcap}' if s.softcap else ''}"
            f"{f', keys in {self.shares} shares' if self.shares > 1 else ''}"
        )
        lines = [
            *self._write_rows(*work.shape),
            *self._write_limits(),
            *self._write_start(),
            *self._write_loops(),
            *self._write_end(),
        ]
        items, shape = list(self.items.values()), self.shape
        helpers = HELPERS[self.tanh] if s.softcap else ""
        helpers += write_tree("add_in_order", shape.rows, shape.keys) if self.ordered else ""
        return assemble(
            "attention", title, items, s.q.shape, lines, grid, LaunchOptions(helpers, tables, shape.warps, shape.stages)
        )

    def _write_rows(self, tiles: int, columns: int) -> list[str]:
        """Lines that find a program's rows: m, with the query and the head of each, e and f along them."""
        heads, chunks = self.heads, self.chunks
        lines = [f"tile = tl.program_id(0){self.cast}"]
        if self.shares > 1:
            lines += [f"share = tile % {self.shares}", f"tile = tile // {self.shares}"]
        return [
            *lines,
            f"row = work + (tile % {tiles}) * {columns}",
            f"head = tile // {tiles}",
            "first = tl.load(row)",
            "count = tl.load(row + 1)",
            "start = tl.load(row + 2)",
            "stop = tl.load(row + 3)",
            "ahead = tl.load(row + 4)",
            f"m = tl.arange(0, {self.shape.rows})",
            f"query = m // {heads}",
            f"member = {f'(head % {chunks}) * {heads} + ' if chunks > 1 else ''}m % {heads}",
            f"inside = (query < count) & (query < {max(1, self.shape.rows // heads)}) & (member < {self.group})",
            "query = first + tl.minimum(query, count - 1)",
            f"own = {self._head_of_keys} * {self.group} + tl.minimum(member, {self.group - 1})",
            *(f"{part.columns} = {part.arange}{self.cast}" for part in (*self.q_parts, *self.v_parts)),
        ]

    def _write_limits(self) -> list[str]:
        """Lines that set every row's place, and the start and stop of the keys that some row may see."""
        visible, lines = self.s.visible, ["place = query + ahead"]
        if self.s.positions is not None:
            positions = _tile_address("positions", ("query", self.items["positions"].strides[0]))
            lines = [
                f"place = tl.maximum(tl.load({positions}).to(tl.int64), {LOWEST_POSITION})",
                f"place = tl.minimum(place, {HIGHEST_POSITION}) + ahead.to(tl.int64)",
            ]
        if self.s.spans is not None:
            steps = self.items["spans"].strides
            for name, column in (("low", 0), ("high", steps[1])):
                at = f"{_tile_address('spans', ('query', steps[0]))} + {column}"
                lines += [
                    f"{name} = tl.maximum(tl.load({at}).to(tl.int64), 0)",
                    f"{name} = tl.minimum({name}, {HIGHEST_POSITION}) + tl.load(row + 5).to(tl.int64)",
                ]
            lines += ["start = tl.maximum(start, tl.min(low, 0))", "stop = tl.minimum(stop, tl.max(high, 0))"]
        if visible.causal:
            lines.append("stop = tl.minimum(stop, tl.max(place, 0) + 1)")
        if visible.window:
            lines.append(f"start = tl.maximum(start, tl.min(place, 0) - {visible.window - 1})")
        lines.append("stop = tl.maximum(stop, start)")
        if self.ordered:
            keys = self.shape.keys
            lines += ["here = start", "start = tl.load(row + 5)", f"start += (here - start) // {keys} * {keys}"]
        if self.shares > 1:
            keys = self.shape.keys
            lines += [
                f"each = (stop - start + {self.shares * keys - 1}) // {self.shares * keys} * {keys}",
                "start = tl.minimum(start + share * each, stop)",
                "stop = tl.minimum(start + each, stop)",
            ]
        return lines

    def _write_start(self) -> list[str]:
        """Lines that load the queries, and initialize maxima, totals and sums."""
        s = self.s
        loads = []
        for part in self.q_parts:
            row = f"{part.columns}[None, :]"
            terms = zip(("own[:, None]", "query[:, None]", row), self._strides("q"), strict=True)
            where = mask_arguments("inside[:, None]", part.inside(row), fallback="0")
            loads += [f"at = {_tile_address('q', *terms)}", f"queries{part.number} = tl.load(at{where})"]
        return [
            *([] if s.blocks is None else [f"table = blocks + tl.load(row + 6) * {self.items['blocks'].strides[0]}"]),
            f"k_base = k + {self._head_of_keys} * {self._strides('k')[0]}",
            *([] if self.shares_rows else [f"v_base = v + {self._head_of_keys} * {self._strides('v')[0]}"]),
            *loads,
            f'most = tl.full([{self.shape.rows}], float("-inf"), {self.number})',
            f"total = tl.zeros([{self.shape.rows}{f', {self.shape.keys}' if self.ordered else ''}], {self.number})",
            *(
                f"sums{part.number} = tl.zeros([{self.shape.rows}, {part.span}], {self.number})"
                for part in self.v_parts
            ),
        ]

    def _write_loops(self) -> list[str]:
        """Lines that go through the keys, in two loops if only the last keys may be hidden from a row."""
        keys, visible = self.shape.keys, self.s.visible
        hidden = ["    " + line for line in self._write_block(hiding=True)]
        parts = self.ordered and any(part.keys[0] > part.origin for part in self.s.sequences())
        if self.s.mask is not None or self.s.spans is not None or visible.window or parts:
            return [f"for begin in range(start, stop, {keys}):", *hidden]
        seen = "tl.minimum(stop, tl.min(place, 0) + 1)" if visible.causal else "stop"
        return [
            f"full = start + tl.maximum({seen} - start, 0) // {keys} * {keys}",
            f"for begin in range(start, full, {keys}):",
            *("    " + line for line in self._write_block(hiding=False)),
            f"for begin in range(full, stop, {keys}):",
            *hidden,
        ]

    def _write_block(self, hiding: bool) -> list[str]:
        """Lines for one block of keys, some of which may be hidden from a row."""
        s, kind, times = self.s, self.kind, self.times
        precision = "" if kind in ("f16", "bf16") else ', input_precision="ieee"'
        if kind == "f64":  # otherwise Triton sums in f32, or reports a type error
            precision += ", out_dtype=tl.float64"
        k_there = f"{self._known}[None, :]" if hiding else ""
        v_there = ("let[:, None]" if s.mask is not None else f"{self._known}[:, None]") if hiding else ""
        n = "n" if s.blocks is None else "lies"
        loads, adding, product = [], [], ""
        for part in self.q_parts:
            column = f"{part.columns}[:, None]"
            at = _tile_address("k_base", (column, self._strides("k")[2]), (f"{n}[None, :]", self._strides("k")[1]))
            mask = mask_arguments(k_there, part.inside(column), fallback="0")
            loads.append(f"keys{part.number} = {self._widen(f'tl.load({at}{mask})')}")
            product = f"tl.dot(queries{part.number}, keys{part.number}{product and f', {product}'}{precision})"
        for part in self.v_parts:
            row, number, values = f"{part.columns}[None, :]", part.number, f"tl.trans(keys{part.number})"
            if not self.shares_rows:
                at = _tile_address("v_base", (f"{n}[:, None]", self._strides("v")[1]), (row, self._strides("v")[2]))
                values = self._widen(f"tl.load({at}{mask_arguments(v_there, part.inside(row), fallback='0')})")
            adding += [
                f"values{number} = {values}",
                f"sums{number} = sums{number} * fade[:, None]",
                f"sums{number} = tl.dot(weights.to({LANGUAGE[kind]}), values{number}, sums{number}{precision})",
            ]
        careful = hiding or self.ordered  # with infinite scores, it would matter which loop a block is in
        base = "base" if careful else "new"
        return [
            f"n = begin + tl.arange(0, {self.shape.keys}){self.cast}",
            *self._write_places(hiding),
            *loads,
            f"scores = {product}{'' if times else f' * {self.factor!r}'}",
            *([f"scores = {self.tanh}(scores) * {s.softcap * math.log2(math.e)!r}"] if s.softcap else []),
            *(self._write_hiding() if hiding else []),
            f"new = tl.maximum(most, tl.max(scores, 1){times})",
            *(['base = tl.where(new == float("-inf"), 0.0, new)'] if careful else []),
            f"weights = tl.exp2(scores{times} - {base}[:, None])",
            f"fade = tl.exp2(most - {base})",
            "total = total * fade[:, None] + weights" if self.ordered else "total = total * fade + tl.sum(weights, 1)",
            *adding,
            "most = new",
        ]

    def _write_places(self, hiding: bool) -> list[str]:
        """Lines that look up where keys lie, if they lie in blocks; numbers beyond those are the nearest one."""
        s = self.s
        if s.blocks is None:
            return []
        size = s.block_size
        where = mask_arguments(self._known if hiding else "", fallback="0")
        return [
            f"lies = tl.load(table + n // {size} * {self.items['blocks'].strides[1]}{where})",
            f"lies = tl.minimum(tl.maximum(lies, 0), {s.k.shape[1] // size - 1}).to(n.dtype) * {size} + n % {size}",
        ]

    def _widen(self, loaded: str) -> str:
        """Keys or values in the type of the queries, which has all values of floats of 8 bits. Newer GPUs have an
        instruction for that."""
        stored = self.items["k"].dtype
        if stored == self.kind:
            return loaded
        known = self.architecture in F8_ARCHITECTURES
        wide = f"{loaded}.to({_NARROW_TYPES[stored]}, bitcast=True)" if known else self.items["k"].convert(loaded)
        return f"{wide}.to({LANGUAGE[self.kind]})"

    def _write_hiding(self) -> list[str]:
        """Lines that set scores to -inf where a row does not see a key."""
        visible, lines, seen = self.s.visible, [], [f"{self._known}[None, :]"]
        if visible.causal:
            seen.append("(n[None, :] <= place[:, None])")
        if visible.window:
            seen.append(f"(n[None, :] > place[:, None] - {visible.window})")
        if self.s.spans is not None:
            seen += ["(n[None, :] >= low[:, None])", "(n[None, :] < high[:, None])"]
        if self.s.mask is not None:
            lines = [f"let = tl.load(mask + n * {self.items['mask'].strides[0]}, mask={self._known}, other=0) != 0"]
            seen.append("let[None, :]")
        return [*lines, f'scores = tl.where({" & ".join(seen)}, scores, float("-inf"))']

    def _write_end(self) -> list[str]:
        """Lines that write results and their lse; 0 and -inf where no key was seen."""
        kinds = {name: LANGUAGE[self.items[name].dtype] for name in ("o", "lse")}
        share = {name: [("share", self.items[name].strides[0])] if self.shares > 1 else [] for name in kinds}
        lse_terms = zip(("own", "query"), self._strides("lse"), strict=True)
        stores = []
        for part in self.v_parts:
            sums, row = f"sums{part.number}", f"{part.columns}[None, :]"
            terms = zip(("own[:, None]", "query[:, None]", row), self._strides("o"), strict=True)
            stores += [
                *([f"{sums} = {sums} + 0.0"] if self.ordered else []),  # a hidden block may have changed -0 to 0
                f"{sums} = tl.where((total == 0)[:, None], 0.0, {sums} / tl.where(total == 0, 1.0, total)[:, None])",
                f"at = {_tile_address('o', *share['o'], *terms)}",
                f"tl.store(at, {sums}.to({kinds['o']}){mask_arguments('inside[:, None]', part.inside(row))})",
            ]
        return [
            *(["total = add_in_order(total)"] if self.ordered else []),
            *stores,
            f"at = {_tile_address('lse', *share['lse'], *lse_terms)}",
            f"tl.store(at, ((most + tl.log2(total)) * {math.log(2)!r}).to({kinds['lse']}), mask=inside)",
        ]

    @property
    def _known(self) -> str:
        """The condition for keys that some row of the tile may see."""
        return "((n >= here) & (n < stop))" if self.ordered else "(n < stop)"

    @property
    def _head_of_keys(self) -> str:
        return f"(head // {self.chunks})" if self.chunks > 1 else "head"

    def _strides(self, name: str) -> tuple[int, ...]:
        """The strides of an operand, without that of the shares."""
        return self.items[name].strides[-2 if name == "lse" else -3 :]


def _tile_address(base: str, *terms: tuple[str, int]) -> str:
    """The address of a tile by subscripts and their strides. Unlike `PointerOperand.at`, it keeps the tile's shape."""
    return " + ".join([base, *(places if stride == 1 else f"{places} * {stride}" for places, stride in terms)])
