"""Index equations that read at expressions of indices and at data, each with what it means in numpy, written anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType
from einc.frontend import build
from einc.ops.base import Operator
from einc.ops.evaluate import evaluate_ranges
from einc.ops.index_operator import IndexOperator
from tests.support.block_slices import slices
from tests.support.definition_oracle import Array, random_array

Draw = Callable[[np.random.Generator], Array]
SIZES = {"n": 2, "c": 3, "height": 7, "width": 5, "o": 4, "rows": 9, "tokens": 6, "d": 5}


@dataclass(frozen=True)
class IndexCase:
    """An equation over declared tensors, the draws of data that not every array will do for, and its result."""

    tensors: str
    equation: str
    meaning: Callable[..., Any]
    draws: dict[str, Draw] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("f32", "f16", "bf16", "f64", "i32")

    def operator(self, dtype: str) -> Operator:
        """The last operator of the model that has this equation."""
        dims = "".join(f"dim {name} = {extent}\n" for name, extent in SIZES.items())
        inputs = "".join(f"input {text.strip()}\n" for text in self.tensors.replace("T[", f"{dtype}[").split(";"))
        graph = build(f"model m\n{dims}{inputs}output {self.equation.replace('T', dtype)}\n", "m.ein")
        operator = graph.nodes[-1].operator
        assert isinstance(operator, IndexOperator), self.equation
        return operator

    def arrays(self, operator: Operator, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        names = [text.split(":")[0].strip() for text in self.tensors.split(";")]
        order = names if len(names) == len(operator.inputs) else names[: len(operator.inputs)]
        return [
            np.asarray(self.draws[name](rng)).astype(desc.dtype.numpy())
            if name in self.draws
            else random_array(desc, rng)
            for name, desc in zip(order, operator.inputs, strict=True)
        ]


def concrete(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """What a piece computes: the definition, with nothing of its tensors but its blocks."""
    assert isinstance(operator, IndexOperator)
    arrays = []
    lookup = operator.program.lookup
    for block, desc, part in zip(function.inputs, operator.inputs, blocks, strict=True):
        garbage: object = True if desc.dtype is DType.BOOL else 99
        if lookup is not None and lookup.table == len(arrays):  # rows that a block lacks count as 0
            garbage = 0
        array = np.full(desc.shape, garbage).astype(desc.dtype.numpy())
        array[slices(block)] = part
        arrays.append(array)
    ranges = operator.find_ranges(function)
    results = [output.dtype for output in operator.outputs]
    return evaluate_ranges(operator.program, arrays, operator.read_types, operator.scalar, results, ranges)


def _convolve(x: Array, k: Array, stride: int, padding: int, dilation: int = 1) -> Array:
    """A convolution of images by loops over its windows."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = k.shape[2:]
    high = (x.shape[2] - dilation * (rows - 1) - 1) // stride + 1
    wide = (x.shape[3] - dilation * (columns - 1) - 1) // stride + 1
    result = np.zeros((len(x), len(k), high, wide), np.result_type(x, np.float64))
    for h in range(high):
        for w in range(wide):
            at = x[:, :, h * stride :, w * stride :][
                :, :, : dilation * rows : dilation, : dilation * columns : dilation
            ]
            result[:, :, h, w] = np.tensordot(at[:, :, :rows, :columns], k, ((1, 2, 3), (1, 2, 3)))
    return result


def _ids(extent: int, *shape: int) -> Draw:
    return lambda rng: rng.permutation(np.arange(math.prod(shape)) % extent).reshape(shape)


_IMAGE = "x : T[n, c, height, width]"
_FLOATS = ("f32", "f16", "bf16", "f64")

CASES: dict[str, IndexCase] = {
    "conv2d": IndexCase(
        f"{_IMAGE}; k : T[o, c, 3, 3]",
        "y[n, o, h = 7, w = 5] = x[n, c, h + r - 1, w + s - 1, outside = 0] * k[o, c, r, s]",
        lambda x, k: _convolve(x, k, 1, 1),
    ),
    "conv2d_strided": IndexCase(
        f"{_IMAGE}; k : T[o, c, 3, 2]",
        "y[n, o, h = 3, w = 2] = 0.5 * x[n, c, 2 * h + r, 2 * w + s] * k[o, c, r, s]",
        lambda x, k: 0.5 * _convolve(x, k, 2, 0)[:, :, :3, :2],
        dtypes=_FLOATS,
    ),
    "conv2d_dilated": IndexCase(
        f"{_IMAGE}; k : T[o, c, 3, 3]",
        "y[n, o, h = 7, w = 5] = x[n, c, h + 2 * r - 2, w + 2 * s - 2, outside = 0] * k[o, c, r, s]",
        lambda x, k: _convolve(x, k, 1, 2, 2),
    ),
    "conv2d_grouped": IndexCase(
        "x : T[n, o, height, width]; k : T[o, 3, 3]",
        "y[n, o, h = 5, w = 3] = x[n, o, h + r, w + s] * k[o, r, s]",
        lambda x, k: np.stack([_convolve(x[:, i : i + 1], k[None, i : i + 1], 1, 0)[:, 0] for i in range(4)], 1),
    ),
    "ramp_from_a_number": IndexCase(
        "x : T[]", 'y[i = 9] = x[] + cast(i, "T")', lambda x: x + np.arange(9), dtypes=("f32", "f64", "i32")
    ),
    "product_with_a_new_index": IndexCase(
        "x : T[tokens, d]; w : T[d]",
        "y[i = 2, tokens] = sum[d](x[tokens, d] * w[d])",
        lambda x, w: np.stack([x @ w, x @ w]),
        dtypes=("f32", "bf16"),
    ),
    "conv1d_causal": IndexCase(
        "x : T[tokens, d]; k : T[d, 4]",
        "y[tokens, d] = sum[r](x[tokens + r - 3, d, outside = 0] * k[d, r])",
        lambda x, k: sum(np.pad(x, ((3, 0), (0, 0)))[r : r + 6] * k[:, r] for r in range(4)),
    ),
    "max_pool": IndexCase(
        _IMAGE,
        "y[n, c, h = 3, w = 2] = max[r = 3, s = 2](x[n, c, 2 * h + r, 2 * w + s])",
        lambda x: np.max([x[:, :, r : r + 5 : 2, s : s + 3 : 2] for r in range(3) for s in range(2)], 0),
    ),
    "average_pool": IndexCase(
        _IMAGE,
        "y[n, c, h = 3, w = 2] = sum[r = 2, s = 2](x[n, c, 2 * h + r, 2 * w + s] * 0.25)",
        lambda x: np.mean([x[:, :, r : r + 5 : 2, s : s + 3 : 2] for r in range(2) for s in range(2)], 0),
        dtypes=_FLOATS,
    ),
    "pad": IndexCase(
        "x : T[rows, d]",
        "y[i = 12, j = 7] = x[i - 2, j - 1, outside = 3]",
        lambda x: np.pad(x, ((2, 1), (1, 1)), constant_values=3),
    ),
    "pad_nearest": IndexCase(
        "x : T[rows, d]",
        "y[i = 12, j = 7] = x[i - 2, j - 1, outside = nearest]",
        lambda x: np.pad(x, ((2, 1), (1, 1)), mode="edge"),
    ),
    "flip": IndexCase("x : T[rows, d]", "y[i = 9, d] = x[8 - i, d] * 2", lambda x: x[::-1] * 2),
    "roll": IndexCase("x : T[rows, d]", "y[i = 9, d] = x[(i + 2) % 9, d]", lambda x: np.roll(x, -2, 0)),
    "upsample": IndexCase(
        "x : T[rows, d]", "y[i = 17, d] = x[(i + 1) // 2, d]", lambda x: np.repeat(x, 2, 0)[1:18]
    ),
    "part": IndexCase("x : T[rows, d]", "y[i = 4, j = 3] = x[i + 3, j + 1] + 1", lambda x: x[3:7, 1:4] + 1),
    "one_row": IndexCase("x : T[rows, d]", "y[d] = x[3, d] - x[0, d]", lambda x: x[3] - x[0]),
    "differences": IndexCase("x : T[rows, d]", "y[i = 8, d] = x[i + 1, d] - x[i, d]", lambda x: np.diff(x, axis=0)),
    "gather": IndexCase(
        "x : T[rows, d]; ids : i64[tokens]", "y[tokens, d] = x[ids[tokens], d]", lambda x, ids: x[ids],
        {"ids": _ids(9, 6)},
    ),
    "gather_moved": IndexCase(
        "x : T[rows, d]; ids : i32[tokens]", "y[tokens, d] = 2 * x[2 * ids[tokens] + 1, d]",
        lambda x, ids: 2 * x[2 * ids + 1], {"ids": _ids(4, 6)},
    ),
    "gather_along": IndexCase(
        "x : T[rows, d]; ids : i64[rows, 3]", "y[rows, k] = x[rows, ids[rows, k]] + 1",
        lambda x, ids: np.take_along_axis(x, ids, 1) + 1, {"ids": _ids(5, 9, 3)},
    ),
    "gather_outside": IndexCase(
        "x : T[rows, d]; ids : i64[tokens]", "y[tokens, d] = x[ids[tokens], d, outside = 7]",
        lambda x, ids: np.where(((ids >= 0) & (ids < 9))[:, None], x[np.clip(ids, 0, 8)], 7),
        {"ids": lambda rng: rng.permutation(np.array([-3, 0, 8, 9, 40, 5]))},
    ),
    "gather_two": IndexCase(
        "x : T[rows, d]; a : i64[tokens]; b : i64[tokens]", "y[tokens] = x[a[tokens], b[tokens]]",
        lambda x, a, b: x[a, b], {"a": _ids(9, 6), "b": _ids(5, 6)},
    ),
    "gather_sum": IndexCase(
        "x : T[rows, d]; ids : i64[tokens, 3]; w : T[tokens, 3]", "y[tokens, d] = x[ids[tokens, k], d] * w[tokens, k]",
        lambda x, ids, w: np.einsum("tkd,tk->td", x[ids].astype(float), w.astype(float)), {"ids": _ids(9, 6, 3)},
    ),
    "scatter": IndexCase(
        "ids : i64[tokens]; x : T[tokens, d]", "y[row = 9, d] = sum[t](where(ids[t] == row, x[t, d], 0))",
        lambda ids, x: np.stack([x[ids == row].astype(float).sum(0) for row in range(9)]), {"ids": _ids(4, 6)},
    ),
    "cumsum": IndexCase(
        "x : T[rows, d]", "y[i, d] = sum[k <= i](x[k, d])", lambda x: np.cumsum(x.astype(float), 0)
    ),
    "cumsum_before": IndexCase(
        "x : T[rows, d]", "y[d, i] = sum[k < i](x[k, d])", lambda x: (np.cumsum(x.astype(float), 0) - x).T
    ),
    "cummax_behind": IndexCase(
        "x : T[rows, d]", "y[i, d] = max[k >= i](x[k, d])", lambda x: np.maximum.accumulate(x[::-1], 0)[::-1]
    ),
    "cumsum_last": IndexCase(
        "x : T[rows, d]", "y[rows, i] = sum[k <= i](x[rows, k])", lambda x: np.cumsum(x.astype(float), 1)
    ),
    "cumprod_of_sums": IndexCase(
        "x : T[rows, d]; w : T[d]", "y[i, d] = prod[k >= i](x[k, d] + w[d])",
        lambda x, w: np.cumprod((x.astype(float) + w)[::-1], 0)[::-1], dtypes=("f32", "f64", "i32"),
    ),
    "cummin_behind": IndexCase(
        "x : T[rows, d]", "y[i, d] = min[k > i](x[k, d])",
        lambda x: np.concatenate([np.minimum.accumulate(x[::-1], 0)[::-1][1:], np.full((1, 5), np.inf)]),
        dtypes=_FLOATS,
    ),
    "shifted_cumsum": IndexCase(
        "x : T[rows, d]", "y[i = 6, d] = sum[k](where(k <= i + 1, x[k, d], 0))",
        lambda x: np.cumsum(x.astype(float), 0)[1:7],
    ),
    "cumsum_of_positions": IndexCase(
        "x : T[rows, d]", "y[j, i = 12] = sum[k](where(i - 2 >= k, x[k, j] * cast(k + j, \"T\"), 0))",
        lambda x: np.cumsum(np.pad(x * np.add.outer(np.arange(9.0), np.arange(5)), ((2, 1), (0, 0))), 0).T,
    ),
    "cumsum_of_shifted": IndexCase(
        "x : T[rows, d]", "y[i = 9, d] = sum[k = 9](where(k <= i, x[k - 1, d, outside = 0], 0))",
        lambda x: np.cumsum(np.pad(x.astype(float), ((1, 0), (0, 0)))[:9], 0),
    ),
    "scatter_prod": IndexCase(
        "ids : i32[tokens]; x : T[d, tokens]",
        "y[d, row = 9] = prod[t](where(cast(2 * ids[t] + 1, \"i64\") == row, x[d, t], 1))",
        lambda ids, x: np.stack([x[:, 2 * ids + 1 == row].prod(1) for row in range(9)], 1), {"ids": _ids(5, 6)},
    ),
    "histogram": IndexCase(
        "ids : i64[tokens]; x : T[tokens]", "y[row = 9] = sum[t](where(ids[t] == row, x[t] * x[t], 0))",
        lambda ids, x: np.array([(x.astype(float) ** 2)[ids == row].sum() for row in range(9)]), {"ids": _ids(4, 6)},
    ),
    "lookup_by_sum": IndexCase(
        "ids : i64[tokens]; x : T[rows, d]", "y[tokens, d] = sum[row](where(ids[tokens] == row, x[row, d] * 2, 0))",
        lambda ids, x: np.where(((ids >= 0) & (ids < 9))[:, None], x[np.clip(ids, 0, 8)] * 2, 0),
        {"ids": lambda rng: rng.permutation(np.array([-3, 0, 8, 9, 40, 5]))},
    ),
    "lookup_by_prod": IndexCase(
        "ids : i64[tokens]; x : T[rows, d]",
        "y[d, tokens] = prod[row](where(row == ids[tokens], x[row, d] + cast(row, \"T\"), 1))",
        lambda ids, x: (x[ids] + ids[:, None]).T, {"ids": _ids(9, 6)},
    ),
    "moving_sum": IndexCase(
        "x : T[rows, d]", "y[i = 9, d] = sum[k = 3](x[i + k - 1, d, outside = nearest])",
        lambda x: sum(np.pad(x.astype(float), ((1, 1), (0, 0)), mode="edge")[k : k + 9] for k in range(3)),
    ),
    "tril": IndexCase(
        "x : T[rows, d]", "y[i, j] = where(j <= i + 1, x[i, j], 0)", lambda x: np.tril(x, 1)
    ),
    "positions": IndexCase(
        "x : T[rows, d]", "y[i, d] = x[i, d] + cast(3 * i - 1, \"T\")", lambda x: x + (3 * np.arange(9) - 1)[:, None]
    ),
    "one_hot": IndexCase(
        "ids : i64[tokens]", 'y[tokens, row = 9] = cast(ids[tokens] == row, "T")',
        lambda ids: ids[:, None] == np.arange(9), {"ids": _ids(9, 6)},
    ),
    "repeated": IndexCase(
        "x : T[rows, d]", "y[rows, r = 3, d] = x[rows, d]", lambda x: np.repeat(x[:, None], 3, 1)
    ),
    "counted": IndexCase(
        "x : T[rows, d]", "y[rows] = sum[d, r = 3](x[rows, d])", lambda x: 3 * x.astype(float).sum(1)
    ),
}  # fmt: skip
