"""Single operators that PyTorch has, too: the text of each, and the function of PyTorch that computes the same.

A function is given the module `torch`, and the model's inputs and weights in the order of their declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class SingleOperator(NamedTuple):
    title: str
    text: str
    function: Callable[..., Any]


SCAN_CHUNK = 16
"""Steps of a selective scan that PyTorch computes in one function: a loop over all of them takes minutes to compile."""


def scan_chunk(torch: Any, h: Any, x: Any, delta: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Some steps of a selective scan: their coefficients together, and then step after step."""
    decay, added = torch.exp(delta[:, :, None] * a), (delta * x)[:, :, None] * b[:, None, :]
    sums = []
    for step in range(SCAN_CHUNK):
        h = decay[step] * h + added[step]
        sums.append((h * c[step]).sum(-1))
    return h, torch.stack(sums)


def _scan(torch: Any, x: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any, run: Callable[..., Any]) -> Any:
    """`run` is `scan_chunk`, compiled or not."""
    h, parts, delta, a = torch.zeros_like(a), [], delta.abs(), -a.abs()
    for first in range(0, len(x), SCAN_CHUNK):
        chunk = slice(first, first + SCAN_CHUNK)
        h, part = run(torch, h, x[chunk], delta[chunk], a, b[chunk], c[chunk])
        parts.append(part)
    return torch.cat(parts) + skip * x


def _cumsum(rows: int, columns: int) -> SingleOperator:
    return SingleOperator(
        f"cumsum of {rows} rows of {columns}",
        f"""
dim rows = {rows}
dim d = {columns}
input x : f32[rows, d]
output z[rows, i] = sum[k <= i](x[rows, k])
""",
        lambda torch, x: torch.cumsum(x, 1),
    )


OPERATORS = {
    "conv2d": SingleOperator(
        "conv2d, 64 to 64 channels, 3 x 3, 8 images of 56 x 56",
        """
dim n = 8
dim c = 64
dim y = 56
input x : f32[n, c, y, y]
weight k : f32[c, c, 3, 3]
output z[n, c, h = 56, w = 56] = x[n, i, h + r - 1, w + s - 1, outside = 0] * k[c, i, r, s]
""",
        lambda torch, x, k: torch.nn.functional.conv2d(x, k, padding=1),
    ),
    "softmax": SingleOperator(
        "softmax of 4096 rows of 1024",
        """
dim rows = 4096
dim d = 1024
input x : f32[rows, d]
output z = softmax(x)
""",
        lambda torch, x: torch.softmax(x, -1),
    ),
    "layernorm": SingleOperator(
        "layernorm of 4096 rows of 1024",
        """
dim rows = 4096
dim d = 1024
input x : f32[rows, d]
weight a : f32[d]
weight b : f32[d]
output z = layernorm(x, a, b, eps = 1e-5)
""",
        lambda torch, x, a, b: torch.nn.functional.layer_norm(x, (1024,), a, b, 1e-5),
    ),
    "cumsum64": _cumsum(64, 4096),
    "cumsum4096": _cumsum(4096, 64),
    "gather": SingleOperator(
        "gather, 65,536 rows of 128 from 32,000",
        """
dim rows = 32000
dim d = 128
dim tokens = 65536
input x : f32[rows, d]
input ids : i64[tokens]
output z[tokens, d] = x[ids[tokens], d]
""",
        lambda torch, x, ids: torch.nn.functional.embedding(ids, x),
    ),
    "groupnorm": SingleOperator(
        "groupnorm, 8 groups of 16 channels, 8 images of 56 x 56",
        """
dim n = 8
dim c = 128
dim h = 56
dim w = 56
input x : f32[n, c, h, w]
weight a : f32[c]
weight b : f32[c]
output z = groupnorm(x, a, b, 8)
""",
        lambda torch, x, a, b: torch.nn.functional.group_norm(x, 8, a, b, 1e-5),
    ),
    "selective_scan": SingleOperator(
        "selective scan of 2,048 steps, 1,536 channels, 16 states",
        """
dim t = 2048
dim d = 1536
dim n = 16
input x : f32[t, d]
input delta : f32[t, d]
input a : f32[d, n]
input b : f32[t, n]
input c : f32[t, n]
input skip : f32[d]
output z = selective_scan(x, abs(delta), -abs(a), b, c, skip)
""",
        _scan,
    ),
}
"""By the names of their cases, which are those of their models, too."""
