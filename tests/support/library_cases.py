"""Calls of the library's definitions, each with what it means in numpy, written anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator], Array]

IMAGE = "x : T[batch, channels, rows, columns]"
SIZES = "dim batch = 2\ndim channels = 6\ndim rows = 9\ndim columns = 8\ndim new = 4\ndim tokens = 5\n"


@dataclass(frozen=True)
class LibraryCase:
    """A call over declared tensors; `shapes` are theirs, and `draws` those of data that must be of some kind."""

    tensors: str
    call: str
    meaning: Callable[..., Any]
    draws: dict[str, Draw] = field(default_factory=dict)
    results: str = "y"

    def text(self, dtype: str) -> str:
        inputs = "".join(f"input {part.strip()}\n" for part in self.tensors.replace("T[", f"{dtype}[").split(";"))
        return f"model m\n{SIZES}{inputs}output {self.results} = {self.call}\n"


def convolve(x: Array, kernel: Array, stride: int = 1, padding: int = 0, dilation: int = 1) -> Array:
    """A convolution over all dimensions behind the first two, window by window."""
    places = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * places])
    spans = [dilation * (extent - 1) + 1 for extent in kernel.shape[2:]]
    shape = [(extent - span) // stride + 1 for extent, span in zip(x.shape[2:], spans, strict=True)]
    y = np.zeros((len(x), len(kernel), *shape))
    for at in np.ndindex(*shape):
        window = x[(slice(None), slice(None), *(
            slice(stride * i, stride * i + span, dilation) for i, span in zip(at, spans, strict=True)
        ))]  # fmt: skip
        axes = tuple(range(1, x.ndim))
        y[(slice(None), slice(None), *at)] = np.tensordot(window, kernel, (axes, axes))
    return y


def transpose_convolution(x: Array, kernel: Array, stride: int, padding: int) -> Array:
    """Each element of x adds its multiple of the kernel."""
    high, wide = ((n - 1) * stride + k for n, k in zip(x.shape[2:], kernel.shape[2:], strict=True))
    y = np.zeros((len(x), kernel.shape[1], high, wide))
    for h in range(x.shape[2]):
        for w in range(x.shape[3]):
            part = np.tensordot(x[:, :, h, w], kernel, (1, 0))
            y[:, :, stride * h : stride * h + kernel.shape[2], stride * w : stride * w + kernel.shape[3]] += part
    return y[:, :, padding : high - padding, padding : wide - padding]


def attend_packed(q: Array, k: Array, v: Array, q_lens: Array, k_lens: Array, *, causal: bool) -> Array:
    """Sequence by sequence, query by query; 0 for tokens behind all sequences."""
    o = np.zeros((*q.shape[:2], v.shape[2]))
    q_ends, k_ends = np.cumsum(q_lens).tolist(), np.cumsum(k_lens).tolist()
    for queries, keys, q_end, k_end in zip(q_lens.tolist(), k_lens.tolist(), q_ends, k_ends, strict=True):
        for t in range(q_end - queries, q_end):
            last = k_end - (q_end - 1 - t) * causal
            seen = slice(k_end - keys, max(last, k_end - keys))
            for head in range(len(q)):
                shared = head * len(k) // len(q)
                weights = np.exp(k[shared, seen] @ q[head, t] / np.sqrt(q.shape[2]))
                o[head, t] = weights @ v[shared, seen] / max(weights.sum(), 1e-300)
    return o


PACKED = "q : T[4, 18, 6]; k : T[2, 27, 6]; v : T[2, 27, 3]; n : i64[columns]; m : i32[columns]"
PACKED_LENGTHS: dict[str, Draw] = {
    "n": lambda rng: rng.permutation([3, 0, 1, 4, 2, 0, 5, 1]),
    "m": lambda rng: rng.permutation([3, 2, 1, 4, 2, 7, 5, 0]),
}


def windows(x: Array, size: int, stride: int, padding: int, fill: float) -> Array:
    """All windows of images, along the last axis."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    high, wide = ((n - size) // stride + 1 for n in x.shape[2:])
    return np.stack(
        [
            x[:, :, r : r + stride * (high - 1) + 1 : stride, s : s + stride * (wide - 1) + 1 : stride]
            for r in range(size)
            for s in range(size)
        ],
        -1,
    )


def groupnorm(x: Array, gain: Array, bias: Array) -> Array:
    parts = x.reshape(2, 3, 2, 9, 8)
    mean, var = (f(parts, (2, 3, 4), keepdims=True) for f in (np.mean, np.var))
    normal = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return normal * gain[:, None, None] + bias[:, None, None]


def pooled(x: Array, mask: Array, lens: tuple[int, ...]) -> Array:
    """Sequence by sequence."""
    parts = zip(np.split(x, np.cumsum(lens)[:-1]), np.split(mask, np.cumsum(lens)[:-1]), strict=True)
    return np.stack([rows[kept].mean(0) if kept.any() else np.zeros(x.shape[1]) for rows, kept in parts])


def grouped(x: Array, kernel: Array) -> Array:
    halves = zip(np.split(x, 2, 1), np.split(kernel, 2, 0), strict=True)
    return np.concatenate([convolve(images, kernels, 1, 1) for images, kernels in halves], 1)


def linear_recurrence(a: Array, b: Array, start: Array | float = 0.0) -> Array:
    """Along the first dimension."""
    states = []
    for t in range(len(a)):
        states.append(a[t] * (states[-1] if t else start) + b[t])
    return np.stack(states)


def selective_scan(x: Array, delta: Array, a: Array, b: Array, c: Array, skip: Array) -> Array:
    """Each step of each channel by itself."""
    y = skip * x
    for i in range(len(x)):
        h = np.zeros(a.shape)
        for t in range(x.shape[1]):
            for d in range(x.shape[2]):
                h[d] = np.exp(delta[i, t, d] * a[d]) * h[d] + delta[i, t, d] * b[i, t] * x[i, t, d]
                y[i, t, d] += h[d] @ c[i, t]
    return y


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rnn(x: Array, w: Array, u: Array, bw: Array, bu: Array, start: Array) -> Array:
    states, h = [], start
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w.T + bw + h @ u.T + bu)
        states.append(h)
    return np.stack(states, 1)


def gru(x: Array, w: Array, u: Array, bw: Array, bu: Array) -> Array:
    states, h = [], np.zeros((len(x), u.shape[1]))
    for t in range(x.shape[1]):
        (r, z, n), (ur, uz, un) = np.split(x[:, t] @ w.T + bw, 3, 1), np.split(h @ u.T + bu, 3, 1)
        z = sigmoid(z + uz)
        h = (1 - z) * np.tanh(n + sigmoid(r + ur) * un) + z * h
        states.append(h)
    return np.stack(states, 1)


def lstm(x: Array, w: Array, u: Array, bw: Array, bu: Array, start: Array, start_cell: Array) -> Array:
    states, h, cell = [], start, start_cell
    for t in range(x.shape[1]):
        write, keep, new, show = np.split(x[:, t] @ w.T + bw + h @ u.T + bu, 4, 1)
        cell = sigmoid(keep) * cell + sigmoid(write) * np.tanh(new)
        h = sigmoid(show) * np.tanh(cell)
        states.append(h)
    return np.stack(states, 1)


def adamw(w: Array, g: Array, m: Array, s: Array, rate: Array, step: Array) -> Array:
    """The new weight, by the steps of the paper's Algorithm 2."""
    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
    corrected, spread = m / (1 - 0.9**step), np.sqrt(s / (1 - 0.999**step))
    return w - rate * (corrected / (spread + 1e-8) + 0.01 * w)


_SEQUENCE = "x : T[batch, tokens, channels]"
_DECAY = {"a": lambda rng: rng.uniform(-1, 1, (5, 6)), "delta": lambda rng: rng.uniform(0.1, 0.9, (2, 5, 6))}


def _gates(count: int) -> str:
    return (
        f"{_SEQUENCE}; w : T[{4 * count}, channels]; u : T[{4 * count}, new]; bw : T[{4 * count}]; bu : T[{4 * count}]"
    )


SETTINGS = np.array(
    [[1, 1, -np.inf, 0], [2, 0.5, -np.inf, 0], [0.5, 0.9, -2, 40], [1, 1, -np.inf, 1], [0.001, 0.99, -np.inf, 0]]
)
"""1 / temperature, top-p, the logarithm of min-p, and top-k. The last row draws none: the list of 64 is too short."""


def draw_words(rng: np.random.Generator) -> Array:
    """Integers of 32 bits, for all elements of a shape that a case has."""
    return rng.integers(-(2**31), 2**31, (5, 2))


def mixed(words: Array) -> Array:
    """lowbias32 of hash-prospector, word by word."""
    results = []
    for word in words.ravel().tolist():
        x = word % 2**32
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        x ^= x >> 16
        results.append(x - 2**32 * (x >= 2**31))
    return np.array(results).reshape(words.shape)


def drawn(x: Array, settings: Array, keys: Array) -> Array:
    """Tokens by the definition: probabilities are sorted and cut, and the largest sum with noise is taken."""
    tokens = []
    for row, (factor, top_p, least, top_k), (first, second) in zip(x, settings, keys, strict=True):
        high = mixed(np.array([int(first) + token * 0x9E3779B9 for token in range(len(row))]))
        low = mixed(high ^ int(second))
        share = (high % 2**32 >> 9) / 2**23 + (low % 2**32 >> 9) / 2**46
        score = (row - row.max()) * factor
        order = np.argsort(-score, kind="stable")[: int(top_k) or None]
        sums = np.cumsum(np.exp(score[order]))
        kept = order[: int(np.searchsorted(sums, top_p * sums[-1])) + 1] if top_p < 1 else order
        kept = kept[score[kept] >= least]
        token = kept[np.argmax(score[kept] - np.log(-np.log1p(-share[kept])))]
        tokens.append(-1 if not top_k and top_p < 1 and len(kept) > 64 else token)
    return np.array(tokens)


_IDS = {"ids": lambda rng: rng.integers(0, 9, 5)}
_FEW = {"ids": lambda rng: np.array([3, 0, 3, 8, 12])}
_WEIGHT = "w : T[rows, columns]; g : T[rows, columns]"
_FLAGS = "f : bool[batch, rows]"
_TIED: dict[str, Draw] = {"x": lambda rng: tied(rng)}
_POOLED = "x : T[rows, columns]; m : bool[rows]"
_KEPT = {"m": lambda rng: np.array([1, 0, 0, 1, 0, 1, 0, 0, 0], bool)}

CASES: dict[str, LibraryCase] = {
    "linear_recurrence": LibraryCase("a : T[tokens, channels]; b : T[tokens, channels]",
        'linear_recurrence(a, b, "tokens")', linear_recurrence, _DECAY),
    "linear_recurrence started": LibraryCase("a : T[tokens, channels]; b : T[tokens, channels]; s : T[channels]",
        'linear_recurrence(a, b, "tokens", s)', linear_recurrence, _DECAY),
    "selective_scan": LibraryCase(
        f"{_SEQUENCE}; delta : T[batch, tokens, channels]; a : T[channels, new]; b : T[batch, tokens, new];"
        "c : T[batch, tokens, new]; s : T[channels]", "selective_scan(x, delta, a, b, c, s)", selective_scan,
        {"a": lambda rng: -rng.uniform(0.2, 1.5, (6, 4)), "delta": _DECAY["delta"]}),
    "rnn": LibraryCase(_gates(1) + "; s : T[batch, new]", "rnn(x, w, u, bw, bu, s)", rnn),
    "gru": LibraryCase(_gates(3), "gru(x, w, u, bw, bu)", gru),
    "lstm": LibraryCase(_gates(4) + "; s : T[batch, new]; z : T[batch, new]", "lstm(x, w, u, bw, bu, s, z)", lstm,
        results="y, cells"),
    "conv1d": LibraryCase("x : T[batch, channels, rows]; k : T[new, channels, 3]", "conv1d(x, k, 2, 1)",
                          lambda x, k: convolve(x, k, 2, 1)),
    "conv2d": LibraryCase(f"{IMAGE}; k : T[new, channels, 3, 3]", "conv2d(x, k, padding=1)",
                          lambda x, k: convolve(x, k, 1, 1)),
    "conv2d strided": LibraryCase(f"{IMAGE}; k : T[new, channels, 3, 2]", "conv2d(x, k, stride=2, dilation=2)",
                                  lambda x, k: convolve(x, k, 2, 0, 2)),
    "conv3d": LibraryCase("x : T[batch, new, 4, 5, 3]; k : T[tokens, new, 2, 2, 3]", "conv3d(x, k, 1, 1)",
                          lambda x, k: convolve(x, k, 1, 1)),
    "grouped_conv2d": LibraryCase(f"{IMAGE}; k : T[new, 3, 3, 3]", "grouped_conv2d(x, k, 2, padding=1)", grouped),
    "depthwise_conv2d": LibraryCase(
        f"{IMAGE}; k : T[channels, 3, 3]", "depthwise_conv2d(x, k)",
        lambda x, k: np.concatenate([convolve(x[:, c : c + 1], k[None, c : c + 1]) for c in range(6)], 1)),
    "conv_transpose2d": LibraryCase(f"{IMAGE}; k : T[channels, new, 3, 2]", "conv_transpose2d(x, k, 2, 1)",
                                    lambda x, k: transpose_convolution(x, k, 2, 1)),
    "causal_conv1d": LibraryCase(
        "x : T[batch, rows, new]; k : T[new, 3]", "causal_conv1d(x, k)",
        lambda x, k: sum(np.pad(x, ((0, 0), (2, 0), (0, 0)))[:, r : r + 9] * k[:, r] for r in range(3))),
    "max_pool2d": LibraryCase(IMAGE, "max_pool2d(x, 3, 2, 1)", lambda x: windows(x, 3, 2, 1, -np.inf).max(-1)),
    "avg_pool2d": LibraryCase(IMAGE, "avg_pool2d(x, 2, 2)", lambda x: windows(x, 2, 2, 0, 0).mean(-1)),
    "pad": LibraryCase(IMAGE, 'pad(x, "rows", 1, 2, 0.5)',
                       lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 0)), constant_values=0.5)),
    "flip": LibraryCase(IMAGE, 'flip(x, "channels")', lambda x: x[:, ::-1]),
    "roll": LibraryCase(IMAGE, 'roll(x, "columns", 3)', lambda x: np.roll(x, 3, 3)),
    "roll back": LibraryCase(IMAGE, 'roll(x, "rows", -2)', lambda x: np.roll(x, -2, 2)),
    "repeat_places": LibraryCase(IMAGE, 'repeat_places(x, "rows", 2)', lambda x: np.repeat(x, 2, 2)),
    "gather": LibraryCase("x : T[batch, rows, columns]; ids : i64[tokens]", 'gather(x, ids, "rows")',
                          lambda x, ids: x[:, ids], _IDS),
    "scatter_add": LibraryCase(
        "ids : i64[tokens]; x : T[batch, tokens]", 'scatter_add(x, ids, "tokens", 10)',
        lambda ids, x: np.stack([x[:, ids == row].sum(1) for row in range(10)], 1), _FEW),
    "one_hot": LibraryCase("ids : i64[tokens]", "one_hot(ids, 9)", lambda ids: np.eye(9)[ids], _IDS),
    "tril": LibraryCase("x : T[batch, rows, columns]", "tril(x, -1)", lambda x: np.tril(x, -1)),
    "triu": LibraryCase("x : T[batch, rows, columns]", "triu(x)", np.triu),
    "packed_spans": LibraryCase(PACKED, "attention(q, k, v, spans=packed_spans(q, n, m))",
                                partial(attend_packed, causal=False), PACKED_LENGTHS),
    "packed_causal_spans": LibraryCase(PACKED, "attention(q, k, v, spans=packed_causal_spans(q, n, m))",
                                       partial(attend_packed, causal=True), PACKED_LENGTHS),
    "causal_mask": LibraryCase("x : T[batch, new, rows]", "softmax(causal_mask(x))", lambda x: masked(x)),
    "cumsum": LibraryCase(IMAGE, 'cumsum(x, "rows")', lambda x: np.cumsum(x, 2)),
    "cumprod": LibraryCase(IMAGE, 'cumprod(x, "channels")', lambda x: np.cumprod(x, 1)),
    "cummax": LibraryCase(IMAGE, 'cummax(x, "columns")', lambda x: np.maximum.accumulate(x, 3)),
    "cummin": LibraryCase(IMAGE, 'cummin(x, "batch")', lambda x: np.minimum.accumulate(x, 0)),
    "logcumsumexp": LibraryCase(IMAGE, 'logcumsumexp(x, "rows")', lambda x: np.logaddexp.accumulate(x, 2)),
    "variance": LibraryCase(IMAGE, 'variance(x, "columns")', lambda x: x.var(3)),
    "logsumexp": LibraryCase(IMAGE, 'logsumexp(x, "rows")', lambda x: np.log(np.exp(x).sum(2))),
    "l2norm": LibraryCase(IMAGE, 'l2norm(x, "channels")', lambda x: np.sqrt((x * x).sum(1))),
    "argmin": LibraryCase(IMAGE, 'argmin(x, "columns")', lambda x: x.argmin(3)),
    "meanpool": LibraryCase(_POOLED, "meanpool(x, m)", lambda x, m: pooled(x, m, (9,)), _KEPT),
    "meanpool of equal lengths": LibraryCase(_POOLED, "meanpool(x, m, seq_lens=[3] * 3)",
        lambda x, m: pooled(x, m, (3, 3, 3)), _KEPT),
    "meanpool of other lengths": LibraryCase(_POOLED, 'meanpool(x, m, [1, 6, 2], "parts")',
        lambda x, m: pooled(x, m, (1, 6, 2)), _KEPT),
    "argmin of equal values": LibraryCase(IMAGE, 'argmin(x, "rows")', lambda x: x.argmin(2), _TIED),
    "argmax": LibraryCase(IMAGE, "argmax(x)", lambda x: x.argmax(3), results="y, value"),
    "argmax of equal values": LibraryCase(IMAGE, 'argmax(x, "rows")', lambda x: x.argmax(2), _TIED),
    "argmax with its value": LibraryCase(IMAGE, 'argmax(x, "channels")', lambda x: x.max(1), results="at, y"),
    "any": LibraryCase(_FLAGS, 'any(f, "batch")', lambda f: f.any(0)),
    "all": LibraryCase(_FLAGS, 'all(f, "batch")', lambda f: f.all(0)),
    "groupnorm": LibraryCase(f"{IMAGE}; g : T[channels]; b : T[channels]", "groupnorm(x, g, b, 3)", groupnorm),
    "cross_entropy": LibraryCase("x : T[tokens, rows]; ids : i64[tokens]", "cross_entropy(x, ids)",
        lambda x, ids: (np.log(np.exp(x).sum(1)) - x[np.arange(5), ids]).mean(), _IDS),
    "square_sum": LibraryCase(IMAGE, 'square_sum(x, "rows")', lambda x: (x * x).sum(2)),
    "sgd": LibraryCase(f"{_WEIGHT}; v : T[rows, columns]; rate : T[]", "sgd(w, g, v, rate, decay=0.1)",
        lambda w, g, v, rate: w - rate * (0.9 * v + g + 0.1 * w), results="y, velocity"),
    "adamw": LibraryCase(f"{_WEIGHT}; m : T[rows, columns]; s : T[rows, columns]; rate : T[]; step : T[]",
        "adamw(w, g, m, s, rate, step)", adamw,
        {"s": lambda rng: rng.uniform(0.1, 1, (9, 8)), "step": lambda rng: np.array(3.0)}, "y, m2, s2"),
    "lion": LibraryCase(f"{_WEIGHT}; m : T[rows, columns]; rate : T[]", "lion(w, g, m, rate, decay=0.1)",
        lambda w, g, m, rate: w * (1 - 0.1 * rate) - rate * np.sign(0.9 * m + 0.1 * g), results="y, m2"),
    "batchnorm": LibraryCase(
        f"{IMAGE}; m : T[channels]; v : T[channels]; g : T[channels]; b : T[channels]",
        "batchnorm(x, m, abs(v), g, b) + x",
        lambda x, m, v, g, b: x + (x - column(m)) / np.sqrt(column(abs(v)) + 1e-5) * column(g) + column(b)),
    "mix_bits": LibraryCase("k : i32[tokens, batch]", "mix_bits(k)", mixed, {"k": draw_words}),
    "largest64": LibraryCase("x : T[batch, 1100]", "largest64(x)", lambda x: -np.sort(-x)[:, :64]),
    "draw_token": LibraryCase("x : T[tokens, 70]; s : f32[tokens, 4]; k : i32[tokens, 2]", "draw_token(x, s, k)", drawn,
        {"s": lambda rng: SETTINGS, "k": draw_words}, "y, likely, most"),
}  # fmt: skip


def tied(rng: np.random.Generator) -> Array:
    """An image with equal values, infinities and not-a-number."""
    x = rng.integers(-2, 3, (2, 6, 9, 8)).astype("f8")
    for special in (np.inf, -np.inf, np.nan, -0.0):
        x[rng.random(x.shape) < 0.06] = special
    return x


def column(vector: Array) -> Array:
    """A vector along channels."""
    return vector[:, None, None]


def masked(x: Array) -> Array:
    """Softmax of scores where 4 queries are the last of 9 keys."""
    seen = np.tril(np.ones((4, 9), bool), 5)
    powers = np.where(seen, np.exp(x - x.max(-1, keepdims=True)), 0)
    return powers / powers.sum(-1, keepdims=True)
