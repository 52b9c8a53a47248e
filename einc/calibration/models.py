"""The models whose tasks are measured: products of many shapes, a transformer block, experts, and operators bound by
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PRODUCTS = """
model products
dim rows = 512
dim inner = 512
dim columns = 512
input  a : f32[rows, inner]
weight b : f32[inner, columns]
weight c : f32[columns, rows]
p = matmul(a, b)
q = matmul(c, p)
y = matmul(p, q)
output y
"""

TRANSFORMER_LAYER = """
model layer
param seq_lens = [256, 256]
dim tokens   = sum(seq_lens)
dim d_model  = 512
dim heads    = 8
dim groups   = 2
dim d_head   = 64
dim d_ff     = 1024
input  x  : f32[tokens, d_model]
weight g  : f32[d_model]
weight wq : f32[heads, d_head, d_model]
weight wk : f32[groups, d_head, d_model]
weight wv : f32[groups, d_head, d_model]
weight wo : f32[d_model, heads, d_head]
weight wg : f32[d_ff, d_model]
weight wu : f32[d_ff, d_model]
weight wd : f32[d_model, d_ff]
h = rmsnorm(x, g, eps=1e-5)
q[heads, tokens, d_head]  = h[tokens, d_model] * wq[heads, d_head, d_model]
k[groups, tokens, d_head] = h[tokens, d_model] * wk[groups, d_head, d_model]
v[groups, tokens, d_head] = h[tokens, d_model] * wv[groups, d_head, d_model]
rq = rope(q, theta=10000.0, seq_lens=seq_lens)
rk = rope(k, theta=10000.0, seq_lens=seq_lens)
a = attention(rq, rk, v, causal=true, seq_lens=seq_lens)
o[tokens, d_model] = a[heads, tokens, d_head] * wo[d_model, heads, d_head]
r = x + o
n = rmsnorm(r, g, eps=1e-5)
gate[tokens, d_ff] = n[tokens, d_model] * wg[d_ff, d_model]
up[tokens, d_ff]   = n[tokens, d_model] * wu[d_ff, d_model]
f = silu(gate) * up
down[tokens, d_model] = f[tokens, d_ff] * wd[d_model, d_ff]
y = r + down
output y
"""

STREAMS = """
model streams
dim rows  = 1024
dim width = 1024
input  x : f32[rows, width]
weight g : f32[width]
weight b : f32[width]
l = layernorm(x, g, b, eps=1e-5)
s = softmax(l, "width")
e = exp(x) * l
m[rows] = max[width](e[rows, width])
t[width] = sum[rows](s[rows, width])
u = e + s
w[width, rows] = u[rows, width] * 2.0
output m
output t
output w
"""

EXPERTS = """
model experts
dim tokens  = 256
dim d_model = 512
dim d_ff    = 1024
dim experts = 8
input  x      : f32[tokens, d_model]
input  scores : f32[tokens, experts]
weight up     : f32[experts, d_ff, d_model]
weight down   : f32[experts, d_model, d_ff]
shares, picks = topk(scores, 2, "experts")
h = expert_matmul(x, up, picks)
y = expert_matmul(h, down, picks)
output y
"""

Definitions = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A model that is compiled and run: its text and definitions, its dtype, and the seed that draws its cuts."""

    text: str
    definitions: Definitions
    dtype: str = "f32"
    seed: int = 0


def _define(**values: object) -> Definitions:
    return tuple((name, str(value).replace(" ", "")) for name, value in values.items())


def _products(rows: int, inner: int, columns: int) -> Probe:
    return Probe(PRODUCTS, _define(rows=rows, inner=inner, columns=columns))


def _block(seq_lens: Sequence[int], d_model: int, heads: int, groups: int, d_head: int, d_ff: int) -> Probe:
    lengths = f"[{seq_lens[0]}]*{len(seq_lens)}"
    return Probe(
        TRANSFORMER_LAYER,
        _define(seq_lens=lengths, d_model=d_model, heads=heads, groups=groups, d_head=d_head, d_ff=d_ff),
    )


QUICK = (
    _products(384, 768, 512),
    _block([128] * 4, 256, 8, 4, 32, 768),
    Probe(STREAMS, _define(rows=1024, width=1024)),
    _products(1024, 256, 768),
    _block([512], 512, 8, 2, 64, 1024),
    Probe(STREAMS, _define(rows=96, width=640)),
)
"""What `--quick` measures, in f32 alone. The first three have all kinds of tasks."""

MORE = (
    _products(96, 512, 256),
    _products(1536, 128, 1536),
    _products(640, 2560, 320),
    _products(1024, 1024, 1024),
    _products(3584, 64, 1792),
    _products(192, 3072, 3072),
    _products(2560, 2560, 96),
    _products(64, 256, 3072),
    _products(96, 512, 4096),
    _block([1024], 512, 8, 2, 64, 1792),
    _block([64] * 32, 256, 8, 2, 32, 896),
    _block([2048], 256, 8, 2, 32, 896),
    _block([32] * 3, 768, 12, 12, 64, 3072),
    Probe(EXPERTS, _define(tokens=256, d_model=512, d_ff=1024, experts=8)),
    Probe(EXPERTS, _define(tokens=16, d_model=768, d_ff=640, experts=16)),
    Probe(EXPERTS, _define(tokens=1024, d_model=256, d_ff=384, experts=4)),
    Probe(STREAMS, _define(rows=4096, width=512)),
    Probe(STREAMS, _define(rows=300, width=3000)),
)


def list_probes(quick: bool, dtypes: Sequence[str]) -> tuple[Probe, ...]:
    """The models to measure, those that matter most first. Other dtypes than f32 are measured on few of them."""
    f32 = QUICK if quick else (*QUICK, *MORE, *(replace(probe, seed=1) for probe in QUICK))
    converted = [replace(probe, dtype=dtype) for dtype in dtypes if dtype != "f32" for probe in QUICK[:4]]
    return (*(f32 if "f32" in dtypes else ()), *converted)
