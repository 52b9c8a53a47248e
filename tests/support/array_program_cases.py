"""Operations of `einc.importers.arrays`, each with what it means in numpy, and the running of the texts they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.moving import concat, expand, flip, pad, reshape, slice_axis, squeeze, take, transpose
from einc.importers.arrays.products import einsum, matmul
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import accumulate, find_extreme, log_softmax, reduce, softmax, topk
from einc.importers.arrays.values import Array
from einc.importers.arrays.windows import MovingWindows, average_pool, convolve, convolve_transposed, max_pool
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import compiled

Elements = np.ndarray[Any, np.dtype[Any]]
Build = Callable[..., Array]


@dataclass(frozen=True)
class ArrayCase:
    """What is built from inputs of these shapes, and what it means."""

    shapes: tuple[tuple[int, ...], ...]
    build: Build
    meaning: Callable[..., Any]
    dtypes: str = "f4"

    def draw(self, seed: int = 0) -> list[Elements]:
        rng = np.random.default_rng(seed)
        dtypes = self.dtypes.split() * len(self.shapes)
        return [draw_elements(rng, shape, dtype) for shape, dtype in zip(self.shapes, dtypes, strict=False)]


def draw_elements(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Elements:
    if dtype == "?":
        return rng.random(shape) < 0.5
    if dtype[0] in "iu":
        return rng.integers(0 if dtype[0] == "u" else -3, 4, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def write_program(build: Build, arrays: Sequence[Elements]) -> ArrayProgram:
    """The program of one output `y`, of inputs `x0`, `x1`, ... like these arrays."""
    program = ArrayProgram("case")
    inputs = [program.input(f"x{k}", array.shape, ElementType(array.dtype.name)) for k, array in enumerate(arrays)]
    program.output("y", build(program, *inputs))
    return program


def run_program(program: ArrayProgram, arrays: Sequence[Elements], sites: int) -> Elements:
    session = Session(compiled(program.text(), sites))
    for name, weight in program.weights.items():
        session.load(name, weight)
    feeds = {}
    for k, array in enumerate(arrays):
        feeds[f"x{k}"] = array.astype(ElementType(array.dtype.name).carrier.numpy())
    return next(iter(session.run(feeds).values()))


def _convolution(x: Elements, kernel: Elements) -> Elements:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 2)))
    y = np.zeros((2, 5, 4, 5))
    for h in range(4):
        for w in range(5):
            y[:, :, h, w] = np.tensordot(padded[:, :, h : h + 4 : 2, 2 * w : 2 * w + 3], kernel, ((1, 2, 3), (1, 2, 3)))
    return y


def _grouped(x: Elements, kernel: Elements) -> Elements:
    y = np.zeros((2, 6, 5))
    for o in range(6):
        for t in range(5):
            y[:, o, t] = np.tensordot(x[:, o // 3 * 2 : o // 3 * 2 + 2, t : t + 2], kernel[o], ((1, 2), (0, 1)))
    return y


def _transposed(x: Elements, kernel: Elements) -> Elements:
    y = np.zeros((2, 5, 10))
    for t in range(4):
        y[:, :, 2 * t : 2 * t + 3] += np.einsum("nc,cor->nor", x[:, :, t], kernel)
    return y[:, :, 1:]


def _average(x: Elements) -> Elements:
    y = np.zeros((1, 2, 3))
    for t, (lo, up) in enumerate(((0, 2), (1, 4), (3, 5))):
        y[:, :, t] = x[:, :, lo:up].mean(2)
    return y


CASES: dict[str, ArrayCase] = {
    "broadcasting": ArrayCase(
        ((2, 1, 4), (3, 1)), lambda p, x, y: apply(p, "sub", x, y), lambda x, y: x - y
    ),
    "a bias": ArrayCase(((2, 3, 4), (4,)), lambda p, x, y: apply(p, "add", x, y), lambda x, y: x + y),
    "a number of no dimensions": ArrayCase(((2, 3), ()), lambda p, x, y: apply(p, "mul", x, y), lambda x, y: x * y),
    "equal extents": ArrayCase(((3, 3), (3, 1)), lambda p, x, y: apply(p, "div", x, y), lambda x, y: x / y),
    "bytes wrap around": ArrayCase(
        ((5, 4),) * 2, lambda p, x, y: apply(p, "sub", apply(p, "mul", x, 100), y), lambda x, y: x * 100 - y, "u1"
    ),
    "integers are divided towards 0": ArrayCase(
        ((5, 4),) * 2, lambda p, x, y: apply(p, "div", x, apply(p, "add", apply(p, "abs", y), 2)),
        lambda x, y: np.fix(x / (abs(y) + 2)), "i8",
    ),
    "a choice": ArrayCase(
        ((3, 4), (3, 4)), lambda p, c, x: where(p, c, x, -np.inf), lambda c, x: np.where(c, x, -np.inf), "? f4"
    ),
    "a choice of two numbers": ArrayCase(
        ((3, 4),), lambda p, x: where(p, apply(p, "gt", x, 0), p.constant(1.0, x.type), 2.0),
        lambda x: np.where(x > 0, 1, 2),
    ),
    "a cast to bytes": ArrayCase(
        ((3, 5),), lambda p, x: cast(p, cast(p, x, ElementType.I8), ElementType.I64), lambda x: x.astype("i1"), "i4"
    ),
    "a reshape": ArrayCase(((2, 6, 3), ), lambda p, x: reshape(p, x, [4, -1]), lambda x: x.reshape(4, 9)),
    "no dimensions": ArrayCase(((1, 1),), lambda p, x: reshape(p, x, []), lambda x: x.reshape(())),
    "a transpose of equal extents": ArrayCase(
        ((3, 3, 2),), lambda p, x: transpose(p, x, [2, 1, 0]), lambda x: x.transpose(2, 1, 0)
    ),
    "an expansion": ArrayCase(((3, 1),), lambda p, x: expand(p, x, [2, 1, 4]), lambda x: np.broadcast_to(x, (2, 3, 4))),
    "a slice": ArrayCase(((5, 7),), lambda p, x: slice_axis(p, x, 1, 1, -1), lambda x: x[:, 1:-1]),
    "a slice with steps": ArrayCase(((5, 7),), lambda p, x: slice_axis(p, x, 1, 1, 100, 3), lambda x: x[:, 1::3]),
    "a slice from the end": ArrayCase(((5, 7),), lambda p, x: slice_axis(p, x, 0, -2, -100, -2), lambda x: x[-2::-2]),
    "a flip": ArrayCase(((5, 7),), lambda p, x: flip(p, x, [0, 1]), lambda x: x[::-1, ::-1]),
    "a concatenation": ArrayCase(
        ((2, 3), (2, 2), (2, 2)), lambda p, x, y, z: concat(p, [x, y, z, y], 1), lambda x, y, z: np.hstack([x, y, z, y])
    ),
    "places that are known": ArrayCase(
        ((4, 6),), lambda p, x: take(p, x, p.constant([4, 2, 0]), 1), lambda x: x[:, [4, 2, 0]]
    ),
    "places that are data": ArrayCase(
        ((4, 3), (2, 5)), lambda p, x, at: take(p, x, at, 0), lambda x, at: x[at], "f4 i8"
    ),
    "padding": ArrayCase(
        ((4, 3),), lambda p, x: pad(p, x, [(1, 2), (0, -1)], 7.0),
        lambda x: np.pad(x, ((1, 2), (0, 0)), constant_values=7)[:, :-1],
    ),
    "reflections": ArrayCase(
        ((4, 3),), lambda p, x: pad(p, x, [(2, 3), (0, 1)], "reflect"), lambda x: np.pad(x, ((2, 3), (0, 1)), "reflect")
    ),
    "a mean": ArrayCase(
        ((2, 3, 3),), lambda p, x: reduce(p, x, "mean", [0, 2], keep=True), lambda x: x.mean((0, 2), keepdims=True)
    ),
    "whether any": ArrayCase(((2, 5),), lambda p, x: reduce(p, x, "max", [1]), lambda x: x.any(1), "?"),
    "running sums": ArrayCase(
        ((3, 6),), lambda p, x: accumulate(p, x, "sum", 1, exclusive=True, reverse=True),
        lambda x: x[:, ::-1].cumsum(1)[:, ::-1] - x,
    ),
    "a softmax": ArrayCase(
        ((3, 3, 2),), lambda p, x: softmax(p, x, 0), lambda x: np.exp(x) / np.exp(x).sum(0)
    ),
    "a logarithm of shares": ArrayCase(
        ((3, 4),), lambda p, x: log_softmax(p, x), lambda x: x - np.log(np.exp(x).sum(1, keepdims=True))
    ),
    "the smallest": ArrayCase(
        ((3, 3, 6),), lambda p, x: topk(p, x, 2, 1, largest=False)[0], lambda x: np.sort(x, 1)[:, :2]
    ),
    "the last largest": ArrayCase(
        ((7, 5),), lambda p, x: find_extreme(p, x, 0, keep=True, last=True),
        lambda x: 6 - x[::-1].argmax(0, keepdims=True), "i4",
    ),
    "a matrix product of batches": ArrayCase(((2, 1, 3, 4), (5, 4, 3)), matmul, lambda x, y: x @ y),
    "a matrix product of rows": ArrayCase(((3, 4), (4,)), matmul, lambda x, y: x @ y),
    "a sum of products": ArrayCase(
        ((2, 3, 4), (5, 4), (3,)), lambda p, *xs: einsum(p, "...ij,kj,i->...k", xs),
        lambda *xs: np.einsum("...ij,kj,i->...k", *xs),
    ),
    "a convolution": ArrayCase(
        ((2, 3, 5, 7), (5, 3, 2, 3)),
        lambda p, x, k: convolve(p, x, k, None, MovingWindows.of((2, 3), (1, 2), (2, 1), ((1, 0), (2, 2)))),
        _convolution,
    ),
    "a convolution in groups": ArrayCase(
        ((2, 4, 6), (6, 2, 2)), lambda p, x, k: convolve(p, x, k, None, MovingWindows.of((2,)), 2), _grouped
    ),
    "a transposed convolution": ArrayCase(
        ((2, 3, 4), (3, 5, 3)),
        lambda p, x, k: convolve_transposed(p, x, k, None, MovingWindows.of((3,), (2,), None, ((1, 0),)), 1, [1]),
        _transposed,
    ),
    "the largest of windows": ArrayCase(
        ((1, 2, 5),), lambda p, x: max_pool(p, x, MovingWindows.of((3,), (2,), None, ((1, 0),), ceil=True)),
        lambda x: np.stack([x[:, :, :2].max(2), x[:, :, 1:4].max(2), x[:, :, 3:].max(2)], 2),
    ),
    "means of windows": ArrayCase(
        ((1, 2, 5),), lambda p, x: average_pool(p, x, MovingWindows.of((3,), (2,), None, ((1, 1),))), _average
    ),
    "arithmetic of shapes": ArrayCase(
        ((2, 3, 4),),
        lambda p, x: reshape(p, squeeze(p, reshape(p, x, [2, 1, 12]), [1]), [2, 2, 6]), lambda x: x.reshape(2, 2, 6),
    ),
}  # fmt: skip
