"""What operators and constants of other libraries are called here: hints for those who write them from habit."""

from __future__ import annotations

from collections.abc import Mapping

_SHAPE = "`reshape(x, rows=4, columns=5)` gives the same elements new dimensions"
_PRODUCT = "`matmul(a, b)` multiplies matrices, an index equation anything: `y[i, k] = a[i, j] * b[j, k]`"
_CONSTANT = "numbers stand in expressions (`x + 1.0`); a tensor of them, positions too, is an input"
_LOOKUP = "`embedding(ids, table)` picks rows by integers"
_SCATTER = "an index equation: `y[n] = sum[e](where(to[e] == at[n], x[e], 0.0))`, at = 0, 1, 2, ..."
_CONVOLUTION = "a convolution is a sum of products with slices: `matmul(slice(x, time=[k, k + length]), w)` for each k"
_MAX, _MIN = '`max(a, b)`, or `max(x, over="dim")`', '`min(a, b)`, or `min(x, over="dim")`'

HINTS: Mapping[str, str] = {
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze"), _SHAPE),
    **dict.fromkeys(("einsum", "dot", "bmm", "mm", "linear"), _PRODUCT),
    **dict.fromkeys(("zeros", "ones", "full", "arange", "range", "iota"), _CONSTANT),
    **dict.fromkeys(("gather", "take", "index_select", "onehot", "one_hot"), _LOOKUP),
    **dict.fromkeys(("maximum", "amax", "reduce_max"), _MAX),
    **dict.fromkeys(("minimum", "amin", "reduce_min"), _MIN),
    **dict.fromkeys(("cat", "stack"), '`concat(a, b, over="dim")`'),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "segment_sum"), _SCATTER),
    **dict.fromkeys(("conv", "conv1d", "conv2d", "unfold"), _CONVOLUTION),
    **dict.fromkeys(("clip", "clamp"), "`min(max(x, 0.0), 1.0)`"),
    **dict.fromkeys(("sort", "argsort"), '`topk(x, 5, "dim")` gives the largest in descending order, and their places'),
    **dict.fromkeys(("split", "chunk", "narrow"), "`slice(x, dim=[start, stop])`"),
    **dict.fromkeys(
        ("expand", "broadcast_to", "tile"), "elementwise operands are broadcast by the names of dimensions"
    ),
    "cumsum": "sums up to a place: `y[i] = sum[j](where(at[j] <= at[i], x[j], 0.0))`, at = 0, 1, 2, ...",
    "pad": 'what to pad with is an input: `concat(x, zeros, over="dim")`',
    "dropout": "a plan runs what has been trained: leave it out",
    "permute": '`transpose(x, "dim", ...)` takes all dimensions in their new order',
    "scaled_dot_product_attention": "`attention(q, k, v, causal=true)`",
}

NAMES: Mapping[str, str] = dict.fromkeys(
    ("inf", "nan", "infinity"),
    "numbers are finite; -1e30 (-60000.0 in f16) is low enough to count for nothing in a softmax",
)
"""The same for names that are no operators."""
