"""Kernels of reproducible plans, and parts of their work as sites may have them: parts have the bits of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation
from einc_runtime.plan.schema import Block

BF16 = np.dtype(ml_dtypes.bfloat16)
Part = tuple[Sequence[tuple[slice, ...]], Sequence[tuple[slice, ...]]]
"""What is read of every input, and written of every output."""


@dataclass(frozen=True)
class WholeCall:
    """An invocation on whole tensors; `cut` draws a part of it. Elements behind `compared` outputs are not promised."""

    kernel: str
    attributes: Mapping[str, object]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    cut: Callable[[np.random.Generator], Part] = field(repr=False)


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).normal(0.1, 1.3, shape).astype(dtype)


def choose(rng, extent):
    """A range that is not empty."""
    low, up = sorted(rng.choice(extent + 1, 2, replace=False).tolist())
    return slice(low, up)


def named(equation: str, extents: Mapping[str, int], dtype, kernel="contract", **attributes):
    """A kernel with an index equation. Indices of the result are cut."""
    left, _, out = equation.partition(" -> ")
    names = [part.split() for part in left.split(",")]
    inputs = [draw(*(extents[n] for n in part), dtype=dtype, seed=k) for k, part in enumerate(names)]
    key = "equation" if kernel == "contract" else "indices"

    def cut(rng):
        chosen = {n: choose(rng, extents[n]) for n in out.split()}
        if rng.random() < 0.3:
            chosen |= {n: slice(start := int(rng.integers(extents[n])), start + 1) for n in out.split()}
        slices = [tuple(chosen.get(n, slice(0, extents[n])) for n in part) for part in (*names, out.split())]
        return slices[:-1], slices[-1:]

    output = np.empty([extents[n] for n in out.split()], dtype)
    return WholeCall(kernel, {key: equation, **attributes}, inputs, [output], cut)


def rows(kernel, attributes, shape, axis, vectors=0, dtype=np.float32):
    """A kernel over rows along an axis; everything else is cut."""
    inputs = [draw(*shape, dtype=dtype), *(draw(shape[-1], dtype=dtype, seed=1 + n) for n in range(vectors))]

    def cut(rng):
        part = tuple(slice(0, n) if k == axis % len(shape) else choose(rng, n) for k, n in enumerate(shape))
        return [part, *[(slice(0, shape[-1]),)] * vectors], [part]

    return WholeCall(kernel, attributes, inputs, [np.empty(shape, dtype)], cut)


def attention(q_lens, k_lens, heads, dtype=np.float32, **changes):
    """Groups of heads and queries are cut, and sequences: keys of others are not there, nor those before a window."""
    base = {"causal": True, "scale": 0.3, "q_lens": q_lens, "k_lens": k_lens, "window": 0, "extras": []}
    attributes, (group, kv_heads, width, deep) = {**base, **changes}, heads
    q, k, query_heads = sum(q_lens), sum(k_lens), group * kv_heads
    inputs = [draw(query_heads, q, width, dtype=dtype), draw(kv_heads, k, width, dtype=dtype, seed=1),
              draw(kv_heads, k, deep, dtype=dtype, seed=2)]  # fmt: skip
    if "mask" in attributes["extras"]:
        inputs.append(np.random.default_rng(3).random(k) < 0.7)
    outputs = [
        np.empty((query_heads, q, deep), dtype),
        np.empty((query_heads, q), np.float64 if dtype == np.float64 else np.float32),
    ]
    q_ends, k_ends = np.cumsum([0, *q_lens]), np.cumsum([0, *k_lens])

    def cut(rng):
        members, queries = choose(rng, kv_heads), choose(rng, q)
        first, last = (
            int(np.searchsorted(q_ends, position, "right")) - 1 for position in (queries.start, queries.stop - 1)
        )
        low, up = int(k_ends[first]), int(k_ends[last + 1])
        if attributes["window"]:
            position = queries.start - int(q_ends[first + 1]) + int(k_ends[first + 1])
            low = max(low, position - attributes["window"] + 1)
        keys, wide = slice(low, up), slice(members.start * group, members.stop * group)
        every = slice(None)
        ins = [(wide, queries, every), (members, keys, every), (members, keys, every), (keys,)][: len(inputs)]
        return ins, [(wide, queries, every), (wide, queries)]

    return WholeCall("attention", attributes, inputs, outputs, cut)


def picked(tokens, slots, experts, width, depth, dtype=np.float32, *, each=False):
    """Tokens, slots and rows of matrices are cut."""
    shape = (tokens, slots, depth) if each else (tokens, depth)
    inputs = [draw(*shape, dtype=dtype), draw(experts, width, depth, dtype=dtype, seed=1),
              np.random.default_rng(9).integers(0, experts, (tokens, slots))]  # fmt: skip

    def cut(rng):
        token, slot, row = choose(rng, tokens), choose(rng, slots), choose(rng, width)
        token_part = (token, slot, slice(0, depth)) if each else (token, slice(0, depth))
        every = slice(None)
        return [token_part, (every, row, slice(0, depth)), (token, slot)], [(token, slot, row)]

    output = np.empty((tokens, slots, width), dtype)
    return WholeCall("expert_matmul", {"experts": experts}, inputs, [output], cut)


def rotated(heads, tokens, width):
    inputs = [draw(heads, tokens, width), np.random.default_rng(7).permutation(tokens)]

    def cut(rng):
        head_part, some = choose(rng, heads), choose(rng, tokens)
        return [(head_part, some, slice(0, width)), (some,)], [(head_part, some, slice(0, width))]

    return WholeCall(
        "rope", {"theta": 100.0, "scaling": "none"}, inputs, [np.empty((heads, tokens, width), np.float32)], cut
    )


CHAIN = "t0 = gelu x0; t1 = mul t0 x1; t2 = add t1 x1; t3 = tanh t2; t4 = mul t3 t0; t5 = sub t4 x0"


def mapped(dtype):
    return named("i j, j -> i j", {"i": 23, "j": 300}, dtype, "map", program=CHAIN)


def reduced(equation, extents, aggregation, dtype=np.float32):
    program = "t0 = copy x0" if "," not in equation else "t0 = mul x0 x1"
    return named(equation, extents, dtype, "reduce", program=program, aggregation=aggregation)


CALLS = {
    "product": named("i k, k j -> i j", {"i": 70, "k": 301, "j": 75}, np.float32),
    "product of 16 bits": named("i k, j k -> i j", {"i": 75, "k": 530, "j": 70}, BF16),
    "product of f16 with a scale": named("i k, k j -> i j", {"i": 5, "k": 40, "j": 90}, np.float16, scale=0.3),
    "product of f64": named("k i, k j -> j i", {"i": 40, "k": 64, "j": 50}, np.float64),
    "product over two indices": named("i h d, d h j -> i j", {"i": 20, "h": 3, "d": 17, "j": 40}, np.float32),
    "batch of products": named("i b k, k j -> b i j", {"b": 5, "i": 9, "k": 65, "j": 20}, np.float32),
    "product of three": named("i k, k j, j l -> i l", {"i": 9, "k": 30, "j": 8, "l": 20}, np.float32),
    "product with an index of one": named("i k m, k j -> i j", {"i": 21, "k": 33, "m": 5, "j": 18}, np.float32),
    "product of vectors": named("i k, i k -> i", {"i": 40, "k": 77}, np.float32),
    "contraction of one": named("i k j -> i", {"i": 40, "k": 77, "j": 3}, np.float32),
    "experts": picked(70, 2, 5, 40, 77, each=True),
    "experts of 16 bits": picked(60, 3, 4, 70, 130, BF16),
    "sum": reduced("i j k -> j", {"i": 5, "j": 9, "k": 70}, "sum"),
    "sum in chunks": reduced("i j -> j", {"i": 1500, "j": 3}, "sum"),
    "sum of a join": reduced("i j, j k -> k", {"i": 7, "j": 31, "k": 12}, "sum"),
    "product of all": reduced("i j -> i", {"i": 9, "j": 21}, "prod"),
    "largest": reduced("i j -> i", {"i": 9, "j": 700}, "max", BF16),
    "softmax": rows("softmax", {"axis": 1}, (9, 75, 6), 1),
    "softmax of long rows": rows("softmax", {"axis": -1}, (4, 17000), -1),
    "rmsnorm": rows("rmsnorm", {"eps": 0.1, "offset": 1.0}, (50, 70), -1, 1),
    "rmsnorm of long rows": rows("rmsnorm", {"eps": 0.1}, (3, 20000), -1, 1),
    "layernorm": rows("layernorm", {"eps": 0.1}, (4, 9, 130), -1, 2, BF16),
    "map": mapped(np.float32),
    "map of 16 bits": mapped(BF16),
    "rope": rotated(3, 20, 24),
    "attention": attention([70, 5], [70, 5], (2, 2, 24, 20)),
    "attention of 16 bits": attention([9, 3, 1], [70, 3, 140], (4, 2, 16, 16), BF16),
    "attention in a window": attention([80, 30], [85, 30], (1, 2, 16, 16), window=21, softcap=3.0),
    "attention with a mask": attention([30, 40], [30, 40], (1, 2, 16, 16), causal=False, extras=["mask"]),
    "attention of f64": attention([40], [40], (2, 1, 16, 16), np.float64),
}  # fmt: skip
"""Extents that are no multiples of tiles, and more terms than one tile has."""


def block_of(part: Sequence[slice], array: np.ndarray) -> Block:
    bounds = [piece.indices(n)[:2] for piece, n in zip(part, array.shape, strict=True)]
    return Block(tuple(low for low, _ in bounds), tuple(up for _, up in bounds))


def lay_out(array: np.ndarray, number: int) -> np.ndarray:
    """The same values as they are, one element away from where memory is aligned, transposed, or with gaps."""
    if number % 4 == 1:
        frame = np.zeros([n + 1 for n in array.shape], array.dtype)
        frame[(*(slice(1, None) for _ in array.shape),)] = array
        return frame[(*(slice(1, None) for _ in array.shape),)]
    if number % 4 == 2:
        return np.ascontiguousarray(array.T).T
    if number % 4 == 3:
        frame = np.zeros([2 * n for n in array.shape], array.dtype)
        frame[(*(slice(None, None, 2) for _ in array.shape),)] = array
        return frame[(*(slice(None, None, 2) for _ in array.shape),)]
    return np.ascontiguousarray(array)


def require_equal_parts(call: WholeCall, run: Callable[..., Sequence[np.ndarray]], trials: int) -> Sequence[np.ndarray]:
    """Runs the whole and parts of it, whose elements must have the same bits. Gives the whole outputs.

    `run` takes inputs, empty outputs, and the blocks of both.
    """
    full_blocks = [block_of([slice(None)] * x.ndim, x) for x in (*call.inputs, *call.outputs)]
    count, rng = len(call.inputs), np.random.default_rng(11)
    full = run(call.inputs, call.outputs, full_blocks[:count], full_blocks[count:])
    for trial in range(trials):
        ins, outs = call.cut(rng)
        inputs = [lay_out(x[part], trial) for x, part in zip(call.inputs, ins, strict=True)]
        outputs = [lay_out(np.zeros_like(x[part]), trial) for x, part in zip(full, outs, strict=True)]
        in_blocks = [block_of(part, x) for x, part in zip(call.inputs, ins, strict=True)]
        out_blocks = [block_of(part, x) for x, part in zip(full, outs, strict=True)]
        for computed, full_output, part in zip(run(inputs, outputs, in_blocks, out_blocks), full, outs, strict=True):
            assert computed.tobytes() == full_output[part].tobytes(), (trial, ins)
    return full


def compute_in_f64(call: WholeCall) -> Sequence[np.ndarray]:
    """What the whole call means: numpy's kernels on the same values in f64."""
    inputs = [x if x.dtype.kind in "ib" else x.astype(np.float64) for x in call.inputs]
    outputs = [np.empty(x.shape, x.dtype if x.dtype.kind in "ib" else np.float64) for x in call.outputs]
    blocks = [[block_of([slice(None)] * x.ndim, x) for x in arrays] for arrays in (inputs, outputs)]
    kernel = registry.prepare(Invocation(call.kernel, call.attributes, inputs, outputs, *blocks), "numpy")
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    return outputs
