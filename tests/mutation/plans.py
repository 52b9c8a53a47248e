"""The plans whose records are changed: small, and between them with everything that a plan can have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from einc.compiler import compile_model
from einc.graph.decode_step import StepRequest
from einc.logical.pins import parse_pin
from einc.ops.step_forms import CacheBlocks
from einc.options import CompileOptions
from einc_runtime.plan.codec import encode
from tests.support.tiled_plans import make_bundle, tile

MODELS = Path(__file__).parents[2] / "models"


@dataclass(frozen=True, slots=True)
class PlanCase:
    """A model, and how its plan is made. `text` is that of the model, or the name of one of `models/`.
    `arrays` are inputs whose elements must be positions; `steps` has such ones of each run of a plan with states."""

    text: str
    machine: str
    sites: int
    cuts: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, list[int]] = field(default_factory=dict)
    steps: tuple[dict[str, list[int]], ...] = ({},)
    reference: str | None = "f64"
    """The type in which the model is computed beside the plan; None: those of its text."""
    tiles: tuple[str, int, int] | None = None
    """An operator that is computed in tiles: its name, the index that is cut, and how many tiles a site has."""

    @property
    def file(self) -> str:
        return "model.ein" if "\n" in self.text else f"{self.text}.ein"

    @property
    def source(self) -> str:
        return self.text if "\n" in self.text else (MODELS / self.file).read_text(encoding="utf-8")

    def compile_options(self) -> CompileOptions:
        """A selector that cuts small operators, too: `fastest` would compute most of them whole."""
        given = {"selector": "eindecomp", "schedule": "naive", **self.options}
        pins = tuple(parse_pin(cut) for cut in self.cuts)
        return CompileOptions(machine=self.machine, devices=self.sites, pins=pins, **given)


CHAIN = """
dim a = 6
dim b = 5
dim c = 8
input  x  : {dtype}[a, b]
weight w1 : {dtype}[b, c] from "mlp.up.weight"
weight w2 : {dtype}[c, b] from "mlp.down.weight"
h = relu(matmul(x, w1))
y = matmul(h, w2)
output y
"""

ROWS = """
dim tokens = 7
dim d = 6
dim f = 4
dim n = 3
input  x : f32[tokens, d]
weight q : f32[f, d] from "qkv[0:4]"
weight k : f32[f, d] from "qkv[4:8]"
weight v : f32[f, d] from "qkv[8:12]"
weight e : f32[n, d] from "experts.*.gain"
a[t, i] = x[t, d] * q[i, d]
b[t, i] = x[t, d] * k[i, d]
c[t, i] = x[t, d] * v[i, d]
s[t, i] = (a[t, i] - b[t, i]) * c[t, i]
z[t, n] = x[t, d] * e[n, d]
output s, z
"""

STEPS = """
dim t = 5
dim d = 6
dim n = 3
input x : f32[t, d]
input b : f32[t, n]
weight a : f32[d, n]
weight w : f32[d, d]
input start : f32[d]
h[t, d, n] = exp(-abs(a[d, n] * x[t, d])) * h[t - 1, d, n, outside = 0.5] + x[t, d] * b[t, n]
y[t, d] = sum[n](h[t, d, n] * b[t, n])
scan t {
    r[t, d] = tanh(x[t, d] + sum[k](w[d, k] * z[t - 1, k, outside = start]))
    z[t, d] = r[t, d] * 0.5 + z[t - 1, d, outside = start]
}
output y, r, z
"""

BLOCKS = """
dim t = 2001
dim d = 1
input a : f32[t, d]
input x : f32[t, d]
input start : f32[d]
h[t, d] = 1 / (1 + exp(a[t, d])) * h[t - 1, d, outside = start] + x[t, d]
output h
"""

SOFTMAX = """
dim rows = 8
dim width = 10
input x : f32[rows, width]
y = softmax(x, "width")
output y
"""

SOFTMAX_EQUATION = """
dim rows = 4
dim width = 9
input x : f32[rows, width]
m[i] = max[j](x[i, j])
e[i, j] = exp(x[i, j] - m[i])
s[i] = sum[j](e[i, j])
y[i, j] = e[i, j] / s[i]
output y
"""

ATTENTION = """
dim tokens = 12
dim keys = 12
dim heads = 4
dim groups = 2
dim d = 6
input q : f32[heads, tokens, d]
input k : f32[groups, keys, d]
input v : f32[groups, keys, d]
y = attention(q, k, v{arguments})
output y
"""

LARGEST = """
dim rows = 5
dim vocabulary = 12
input x : f32[rows, vocabulary]
best, at = topk(x, 3, "vocabulary")
where_, most = argmax(x, "vocabulary")
output best, at, where_, most
"""

DEFINED = """
dim rows = 3
dim width = 12
input x : f32[rows, width]
aggregate logaddexp(a, b) { identity -inf; return max(a, b) + log1p(exp(-abs(a - b))) }
l[i] = logaddexp[j](x[i, j])
n[i], m[i], s[i] = moments[j](1.0, x[i, j], 0.0)
least[j], at[j] = smallest[i](x[i, j], i)
output l, m, least, at
output v = s / n
"""

CASTS = """
dim n = 6
dim m = 7
input x : bf16[n, m]
input i : i32[n, m]
weight w : f16[m, n]
a = cast(x, "f32")
b = cast(i, "f32") * 0.125
c[n, k] = a[n, m] * cast(w, "f32")[m, k]
d[n] = sum[m](a[n, m] + b[n, m])
e = cast(c, "bf16")
f = where(i > 3, a, 0.5)
output d, e, f
output g = mod(i, 3) + cast(a * 4.0, "i32")
"""

INTEGERS = """
dim n = 6
dim m = 8
dim k = 5
input a : i64[n, m]
input b : i64[m, k]
input s : i32[n]
y[n, k] = a[n, m] * b[m, k]
t[k] = max[n](y[n, k])
z = y - t
u[m] = prod[n](a[n, m] + cast(s, "i64")[n])
output z, u
"""

REDUCTIONS = """
dim n = 9
dim m = 8
input x : f64[n, m]
a[m] = max[n](x[n, m])
b[m] = min[n](x[n, m])
c[m] = sum[n](x[n, m] * x[n, m])
d = mean(x, over="n")
e[m] = prod[n](x[n, m])
y = where(a > 0.5, exp(c * 0.1), b) + d
output y, e
"""

LOOKUPS = """
dim tokens = 7; dim d = 8; dim heads = 2; dim d_head = 4; dim vocabulary = 9; dim rows = 14
input  ids    : i64[tokens]
input  places : i64[tokens]
input  cache  : f32[heads, rows, d_head]
input  keep   : bool[tokens]
weight table  : f32[vocabulary, d]
weight gain   : f32[d]
weight bias   : f32[d]
weight wq     : f32[heads, d, d_head]
x = embedding(ids, table)
h = rmsnorm(x, gain, eps=1e-6)
q = matmul(h, wq)
r = rope(q, theta=500.0, seq_lens=[3, 4])
c = append(cache, r, places, cache_lens=[6, 8], new_lens=[3, 4])
l = layernorm(x, gain, bias)
whole = concat(l, h, over="tokens", into="both")
m = meanpool(slice(whole, both=[2, 9]), keep, seq_lens=[3, 4], into="sentences")
output c, m
output f = reshape(transpose(q, "tokens", "heads", "d_head"), tokens=tokens, d=d)
"""

STATES = """
dim heads = 3
dim rows = 11
dim d = 4
dim new = 3
input  k      : f32[heads, new, d]
input  places : i64[new]
state  cache  : f32[heads, rows, d]
weight gain   : f32[d]
c = append(cache, k * gain, places, cache_lens=[6, 5], new_lens=[2, 1])
y[heads, d] = sum[rows](c[heads, rows, d])
output y
"""

TRAINING = """
dim n = 9
dim w = 4
dim h = 6
input x  : f32[n, w]
input t  : f32[n, h]
weight u : f32[w, h]
weight b : f32[h]
e = tanh(matmul(x, u) + b) - t
output loss = mean(e * e, "n", "h")
"""

QUANTIZED = """
dim rows = 5
dim width = 64
dim hidden = 6
dim wide = 8
input  x    : {dtype}[rows, width]
weight up   : {dtype}[hidden, width] as i4(group=32, zeros=true) from "mlp.up"
weight down : {dtype}[wide, hidden] as i8 from "mlp.down"
weight last : {dtype}[hidden, wide] as i4 from "mlp.last"
weight side : {dtype}[hidden, width] as i8(zeros=true, channels=1)
h[rows, hidden] = x[rows, width] * up[hidden, width]
y[rows, wide] = h[rows, hidden] * down[wide, hidden]
z[rows, hidden] = y[rows, wide] * last[hidden, wide]
output z
output s = side * 0.5
"""

ROUNDED = """
dim rows = 5
dim width = 12
dim hidden = 6
dim wide = 8
input  x    : {dtype}[rows, width]
weight up   : {dtype}[hidden, width] as i8(inputs=8)
weight gate : {dtype}[hidden, width] as i8(inputs=8)
weight down : {dtype}[wide, hidden] as i8(inputs=8)
h[rows, hidden] = x[rows, width] * up[hidden, width]
g[rows, hidden] = x[rows, width] * gate[hidden, width]
y[rows, wide] = h[rows, hidden] * down[wide, hidden]
output y, g
"""


NARROW = """
dim rows = 3
dim width = 64
dim hidden = 6
dim wide = 64
dim heads = 2
dim places = 7
dim d = 4
input  x    : f32[rows, width]
input  k    : f32[heads, rows, d]
input  at   : i64[rows]
state  keys : f8e4m3[heads, places, d]
weight up   : f32[hidden, width] as f8e4m3(inputs=8)
weight gate : f32[wide, width] as mxfp8
weight down : f32[hidden, wide] as mxfp4
weight last : f32[hidden, width] as nvfp4
c = append(keys, k, at, cache_lens=[7], new_lens=[3])
a = attention(k, c, c, causal=true, q_lens=[3], k_lens=[7], positions=at)
h[rows, hidden] = x[rows, width] * up[hidden, width]
g[rows, wide] = x[rows, width] * gate[wide, width]
y[rows, hidden] = g[rows, wide] * down[hidden, wide]
z[rows, hidden] = x[rows, width] * last[hidden, width]
output a, h, y, z
"""
"""Floats of 8 and of 4 bits, as they are stored, rounded to, and kept in a cache that attention reads."""


def _preset(**definitions: object) -> dict[str, Any]:
    return {"preset": "tiny", "definitions": tuple((name, str(value)) for name, value in definitions.items())}


WINDOWS = """
model windows
dim c = 2
dim height = 7
dim width = 4
dim tokens = 5
input x    : f32[c, height, width]
input ids  : i64[tokens]
weight k   : f32[3, c, 3, 3]
y[o, h = 7, w = 4] = x[c, h + r - 1, w + s - 1, outside = 0] * k[o, c, r, s]
m[c, h = 3, w = 2] = max[r = 3, s = 2](x[c, 2 * h + r, 2 * w + s])
z[c, i = 9, w = 4] = x[c, (i + 1) // 2, w] + x[c, i % 7, 3 - w] * 0.5
g[c, tokens, w]    = x[c, ids[tokens], w] + cast(w, "f32")
s[c, i, w]         = sum[k <= i](x[c, k, w])
b[row = 7, c]      = sum[t = 5](where(ids[t] == row, x[c, t, 0], 0.0))
output y, m, z, g, s, b
"""
"""Reads at sums of indices, at quotients and at data, running sums, and sums by position: cut with halos."""

TABLES = """
dim tokens = 8
dim heads = 4
dim groups = 2
dim d = 6
dim d_head = 4
input x : f32[tokens, d]
weight wq : f32[heads, d_head, d]
weight wk : f32[groups, d_head, d]
weight wv : f32[groups, d_head, d]
q[heads, tokens, d_head] = x[tokens, d] * wq[heads, d_head, d]
k[groups, tokens, d_head] = x[tokens, d] * wk[groups, d_head, d]
v[groups, tokens, d_head] = x[tokens, d] * wv[groups, d_head, d]
y = attention(rope(q, theta=500.0), rope(k, theta=500.0), v, causal=true)
output y
"""
"""Of which a step is derived that keeps keys and values in blocks, found by a table."""

CASES: dict[str, PlanCase] = {
    "chain": PlanCase(CHAIN.format(dtype="f32"), "host", 4),
    "tiles": PlanCase(CHAIN.format(dtype="f32"), "dgx-h100", 3, ("y=c/3", "h*=c/3"), tiles=("y", 0, 2)),
    "chain-inner": PlanCase(CHAIN.format(dtype="f32"), "host", 3, ("y=c/3", "h*=c/3")),
    "chain-synthesized": PlanCase(CHAIN.format(dtype="bf16"), "dgx-v100", 8, (), {"schedule": "synthesized"}),
    "chain-one-site": PlanCase(CHAIN.format(dtype="f64"), "host", 1),
    "chain-fastest": PlanCase("ffn", "dgx-a100", 2, (), {
        "selector": "fastest", "schedule": "synthesized",
        "definitions": (("tokens", "6"), ("d_model", "8"), ("d_ff", "10"))}),
    "replicas": PlanCase(CHAIN.format(dtype="f32"), "host", 4, ("h*=a/2,replicas/2", "y=b/2,replicas/2")),
    "baselines": PlanCase("chain_a", "dgx-a100", 3, (), {
        "baselines": ("single", "data"), "schedule": "synthesized", "definitions": (("scale", "2048"),)}),
    "once": PlanCase(CHAIN.format(dtype="f32"), "dgx-v100", 4, (), {
        "input_placement": "once", "schedule": "synthesized"}),
    "softmax-rows": PlanCase(SOFTMAX, "host", 2, ("*=rows/2",)),
    "softmax-width": PlanCase(SOFTMAX_EQUATION, "dgx-a100", 3, ("*=j/3",), {"schedule": "synthesized"}),
    "attention-sequence": PlanCase(ATTENTION.format(arguments=", causal=true"), "host", 3, ("y=keys/3",)),
    "attention-window": PlanCase(
        ATTENTION.format(arguments=", causal=true, window=4, q_lens=[5, 7], k_lens=[5, 7]"), "host", 4),
    "llama": PlanCase("llama_block", "dgx-a100", 3, (), {"schedule": "synthesized", **_preset(seq_lens=[3, 4])}),
    "decode": PlanCase(
        "llama_decode", "dgx-v100", 2, (), _preset(n_layers=1, cache=5, vocab=19),
        steps=({"positions": [1, 3]}, {"positions": [2, 4]}, {"positions": [3, 0]})),
    "decode-some": PlanCase(
        "llama_decode", "dgx-a100", 3, (), {"schedule": "synthesized", **_preset(
            n_layers=1, lengths=[2, 1], cache=4, vocab=13, d_model=12, heads_q=2, heads_kv=1, d_ff=10)},
        steps=({"positions": [0, 1, 2]}, {"positions": [2, 3, 3]}, {"positions": [3, 1, 0]})),
    "decode-gathers": PlanCase(
        "llama_decode", "dgx-h100", 3,
        ("*.[hnr]=tokens/3", "x*=tokens/3", "last_x=tokens/3", "logits=vocab/3", "*.a=heads_kv/3", "*.[kv]=heads_kv/3",
         "*.rk=heads_kv/3", "*.?s=heads_kv/3", "*.[qo]=heads_q/3", "*.rq=heads_q/3", "*.gate=d_ff/3", "*.up=d_ff/3",
         "*.f=d_ff/3", "*.down=d_ff/3"),
        {"schedule": "synthesized", **_preset(
            n_layers=1, batch=3, cache=5, vocab=11, d_model=8, heads_q=3, heads_kv=3, d_head=4, d_ff=6)},
        steps=({"positions": [1, 3, 0]}, {"positions": [2, 4, 1]}, {"positions": [3, 0, 2]})),
    "tables": PlanCase(
        TABLES, "host", 2, (), {"step": StepRequest("tokens", 1, 2, CacheBlocks(5, 4))},
        steps=(
            {"positions": [0, 5], "cache_places": [4, 17], "cache_blocks": [1, 3, 2, 4]},
            {"positions": [1, 6], "cache_places": [5, 18], "cache_blocks": [1, 3, 2, 4]},
            {"positions": [4, 2], "cache_places": [12, 2], "cache_blocks": [1, 3, 0, 4]})),
    "states": PlanCase(
        STATES, "host", 4, ("c=rows/4",),
        steps=({"places": [4, 0, 3]}, {"places": [1, 5, 4]}, {"places": [2, 3, 3]})),
    "states-replicas": PlanCase(
        STATES, "host", 4, ("c=heads/2,replicas/2",),
        steps=({"places": [4, 0, 3]}, {"places": [1, 5, 4]}, {"places": [2, 3, 3]})),
    "training": PlanCase(
        TRAINING, "host", 3, ("e=n/3", "u.next=i1/3", "b.next=replicas/2"), {"train": "loss", "optimizer": "sgd"},
        steps=({}, {}, {})),
    "quantized": PlanCase(
        QUANTIZED.format(dtype="f32"), "host", 3, ("h=hidden/3", "y=wide/3", "z=hidden/3")),
    "quantized-sums": PlanCase(
        QUANTIZED.format(dtype="bf16"), "dgx-a100", 4, ("h=width/2,rows/2", "y=wide/2,hidden/2"),
        {"schedule": "synthesized"}),
    "narrow": PlanCase(
        NARROW, "dgx-h100", 2, ("[ca]=heads/2", "h=width/2", "g=wide/2", "y=wide/2", "z=hidden/2"), reference=None,
        steps=({"at": [0, 1, 2]}, {"at": [3, 4, 5]}, {"at": [4, 5, 6]})),
    "rounded": PlanCase(ROUNDED.format(dtype="f32"), "host", 3, ("h=hidden/3", "g=width/3", "y=hidden/3")),
    "experts": PlanCase("moe", "dgx-a100", 4, (), {"schedule": "synthesized", **_preset(tokens=6, d_ff=8)}),
    "defined": PlanCase(DEFINED, "dgx-a100", 4, ("l=j/4", "n=j/4", "least=i/3")),
    "largest": PlanCase(LARGEST, "host", 4, ("*=vocabulary/4", "where_=k/4")),
    "casts": PlanCase(CASTS, "host", 5),
    "integers": PlanCase(INTEGERS, "host", 7),
    "reductions": PlanCase(
        REDUCTIONS, "dgx-h100", 4, ("a=n/4", "b=n/4", "c=n/2,...", "e=n/4"), {"schedule": "synthesized"}),
    "lookups": PlanCase(LOOKUPS, "host", 3, arrays={"places": [3, 0, 4, 1, 7, 2, 5], "keep": [1, 1, 0, 1, 0, 1, 1]}),
    "reproducible": PlanCase("llama_block", "host", 3, (), {"reproducible": True, **_preset(seq_lens=[3, 4])}),
    "recurrences": PlanCase(STEPS, "host", 4, ("y=d/2,n/2",)),
    "recurrences-reproducible": PlanCase(STEPS, "host", 3, ("y=d/3",), {"reproducible": True}),
    "scan-blocks": PlanCase(BLOCKS, "dgx-h100", 2, (), {"selector": "fastest", "schedule": "synthesized"}),
    "rows": PlanCase(ROWS, "host", 2),
    "windows": PlanCase(WINDOWS, "host", 3, ("y=h/3", "m=h/3", "z=i/3", "g=tokens/3", "s=k/3", "b=row/3"),
                        arrays={"ids": [3, 0, 6, 3, 5]}),
}  # fmt: skip


@cache
def make_plan(name: str) -> bytes:
    """The bytes of a case's plan file."""
    case = CASES[name]
    compiled = compile_model(case.source, case.file, case.compile_options())
    return encode(compiled.bundle if case.tiles is None else make_bundle(tile(compiled.plan, *case.tiles)))
