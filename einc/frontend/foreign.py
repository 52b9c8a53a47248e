"""What operators of other libraries are called here: a hint for those who write them from habit."""

from __future__ import annotations

from collections.abc import Mapping

_SHAPE = "`regroup(x, rows=4, columns=5)` gives the same elements new dimensions"
_PRODUCT = "`matmul(a, b)` multiplies matrices, an index equation anything: `y[i, k] = a[i, j] * b[j, k]`"
_CONSTANT = "numbers stand in expressions (`x + 1.0`); a tensor of them, positions too, is an input"
_LOOKUP = "`embedding(ids, table)` picks rows by integers"
_MAX, _MIN = '`max(a, b)`, or `max(x, over="dim")`', '`min(a, b)`, or `min(x, over="dim")`'

HINTS: Mapping[str, str] = {
    **dict.fromkeys(("reshape", "view", "flatten", "squeeze", "unsqueeze"), _SHAPE),
    **dict.fromkeys(("einsum", "dot", "bmm", "mm", "linear"), _PRODUCT),
    **dict.fromkeys(("zeros", "ones", "full", "arange", "range", "iota"), _CONSTANT),
    **dict.fromkeys(("gather", "take", "index_select", "onehot", "one_hot"), _LOOKUP),
    **dict.fromkeys(("maximum", "amax", "reduce_max"), _MAX),
    **dict.fromkeys(("minimum", "amin", "reduce_min"), _MIN),
    **dict.fromkeys(("cat", "stack"), '`concat(a, b, over="dim")`'),
    "permute": '`transpose(x, "dim", ...)` takes all dimensions in their new order',
    "scaled_dot_product_attention": "`attention(q, k, v, causal=true)`",
}
