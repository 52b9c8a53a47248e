"""Models whose operators, taken together, are all that there are; a test holds them against the registry.

What they compare or choose by comes straight from inputs, so that rounding cannot turn a choice.
"""

from __future__ import annotations

ELEMENTWISE = """
model elementwise
param n = 37
dim rows = n
dim columns = 131
input  a    : f32[rows, columns]
input  b    : f32[rows, columns]
input  keep : bool[rows, columns]
input  i    : i64[rows, columns]
input  j    : i64[rows, columns]
weight row  : f32[columns]
size = abs(a) + 0.5
one = sub(mul(neg(a), relu(b)), div(gelu(a), size)) + row
two = gelu_tanh(a) + silu(b) * tanh(a) + sigmoid(b)
three = exp(min(a, 2.0)) + log(size) + sqrt(size) * rsqrt(size + 1.0) + pow(size, 1.5)
four = where(and(keep, not(lt(a, 0.0))), max(a, b), copy(b))
five = where(or(ge(a, b), gt(row, 0.5)), add(a, row), where(le(b, 0.25), a, 2.0 * b))
six = floordiv(i * 3 - 5, j + 1) + mod(i - 4, j + 2)
seven = and(eq(i, j), ne(i, 3))
angles = sin(a) + cos(b) + tan(clip(a, -1.0, 1.0)) + atan(b) + atan2(a, size) + erf(a)
powers = exp2(a) + expm1(min(a, 2.0)) + log2(size) + log1p(size)
whole = floor(a) + 2.0 * ceil(b) + 4.0 * round(a) + 8.0 * trunc(b) + 16.0 * sign(a)
bits = bitxor(bitand(i, 6) + bitor(j, 9), shiftleft(i, 2)) - shiftright(j * 7, 1)
finite = or(isnan(log(a)), and(isfinite(a), not(isinf(b))))
eight[columns, rows] = a[rows, columns] + row[columns]
output one, two, three, four, five, six, seven, eight, angles, powers, whole, bits, finite
"""

REDUCTIONS = """
model reductions
param n = 3
dim batch = 4 * n
dim rows = 19
dim columns = 70
input  x : f32[batch, rows, columns]
input  i : i64[batch, rows]
weight w : f32[columns]
total = sum(x, "rows")
middle = mean(x, over=["batch", "columns"])
largest = max(x, "columns")
least = min(x, over=["rows", "columns"])
product = prod(sigmoid(x) + 0.5, "rows")
counts = sum(i, "batch")
norm[batch, rows] = sum[columns](x[batch, rows, columns] * x[batch, rows, columns] * w[columns])
place, value = argmax(x, "columns")
best, places = topk(x, 5, "columns")
first, where_first = argmax(x, "batch")
output total, middle, largest, least, product, counts, norm, place, value, best, places, first, where_first
"""

ROWS = """
model rows
param n = 2
dim heads = 4 * n
dim tokens = 23
dim d_head = 16
dim d_model = 8 * 16
dim vocabulary = 61
input  ids    : i64[tokens]
input  places : i64[tokens]
input  cache  : f32[heads, rows, d_head]
input  keep   : bool[tokens]
dim rows = 40
weight table  : f32[vocabulary, d_model]
weight gain   : f32[d_model]
weight bias   : f32[d_model]
weight wq     : f32[heads, d_model, d_head]
weight narrow : f32[d_head]
x = embedding(ids, table)
h = rmsnorm(x, gain, eps=1e-6)
q = matmul(h, wq)
r = rope(rmsnorm(q, narrow, offset=1.0), theta=500.0, seq_lens=[11, 12])
p = rope(q, positions=places, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_length=16)
c = append(cache, r + p, places, cache_lens=[18, 22], new_lens=[11, 12])
l = layernorm(x, gain, bias)
both = concat(l, h, over="tokens", into="both")
m = meanpool(slice(both, both=[6, 29]), keep, seq_lens=[3, 20], into="sentences")
s = softmax(h, "d_model")
t = transpose(reshape(s, tokens=tokens, heads=8, d_head=16), "heads", "tokens", "d_head")
half = cast(m, "f32")
output c, m, t, half
"""

ATTENTION = """
model attention_cases
param n = 1
dim heads_q = 8 * n
dim heads_kv = 4 * n
dim tokens = 77
dim cached = 90
dim d = 32
input q : f32[heads_q, tokens, d]
input k : f32[heads_kv, tokens, d]
input v : f32[heads_kv, tokens, d]
input far_k : f32[heads_kv, cached, d]
input far_v : f32[heads_kv, cached, d]
input seen  : bool[tokens]
plain = attention(q, k, v)
causal, lse = attention(q, k, v, causal=true, seq_lens=[40, 1, 36])
masked = attention(q, k, v, mask=seen, seq_lens=[30, 47])
across = attention(q, far_k, far_v)
capped = attention(q, k, v, causal=true, scale=0.5, softcap=2.0)
output plain, causal, lse, masked, across, capped
"""

MERGES = """
model merges
param n = 2
dim columns = 67 * n
input x : f32[columns]
input i : i64[columns]
place, value = argmax(x, "columns")
best, places = topk(x, 5, "columns")
total = sum(sigmoid(x), "columns")
largest = max(x, "columns")
least = min(x, "columns")
product = prod(sigmoid(x) + 0.5, "columns")
counts = sum(i, "columns")
output place, value, best, places, total, largest, least, product, counts
"""
"""With one dimension there is nothing else to cut: sites aggregate what each of them found."""

EPILOGUES = """
model epilogues
param n = 8
dim tokens = 24 * n
dim d = 64
dim f = 160
input  x  : f32[tokens, d]
weight w1 : f32[d, f]
weight w2 : f32[f, d]
weight b1 : f32[f]
weight b2 : f32[d]
bias   = relu(matmul(x, w1) + b1)
both   = matmul(bias, w2) + x + b2
curved = gelu_tanh(matmul(both, w1))
plain  = matmul(curved, w2) + b2
last   = relu(matmul(plain, w1))
sum    = matmul(last, w2) + plain
output sum, both
"""
"""Steps that products of matrices may take with them."""

QUANTIZED = """
model quantized
dim tokens = 23
dim d = 96
dim f = 64
input  x    : f32[tokens, d]
weight up   : f32[f, d] as i8
weight down : f32[d, f] as i4(group=32, zeros=true)
h[tokens, f] = x[tokens, d] * up[f, d]
y[tokens, d] = h[tokens, f] * down[d, f]
wide = abs(down)
output y, wide
"""
"""Weights of 8 and 4 bits: in products, and widened for something else."""

ROUNDED = """
model rounded
dim tokens = 23
dim d = 96
dim f = 64
input  x    : f32[tokens, d]
weight up   : f32[f, d] as i8(inputs=8)
weight down : f32[d, f] as i8(inputs=8)
h[tokens, f] = x[tokens, d] * up[f, d]
y[tokens, d] = h[tokens, f] * down[d, f]
output y, h
"""
"""Products of integers of 8 bits."""

EXPERTS = """
model experts
dim tokens = 70
dim d = 96
dim f = 72
dim experts = 5
input  x      : f32[tokens, d]
input  scores : f32[tokens, experts]
weight up     : f32[experts, f, d]
weight down   : f32[experts, d, f]
shares, picks = topk(scores, 2, "experts")
h = silu(expert_matmul(x, up, picks)) * shares
y = sum(expert_matmul(h, down, picks), "k")
few = expert_matmul(slice(x, tokens=[3, 9]), up, slice(picks, tokens=[3, 9]))
output y, few
"""
"""Each token is multiplied with two experts of five: many tokens, and a few."""

POSITIONS = """
model positions
dim batch = 2
dim channels = 24
dim rows = 19
dim columns = 17
dim tokens = 13
input  x      : f32[batch, channels, rows, columns]
input  ids    : i64[tokens]
input  table  : f32[40, 24]
weight kernel : f32[32, channels, 3, 3]
near = abs(ids) % 40
images = conv2d(x, kernel, padding=1)
halves = conv2d(x, kernel, stride=2)
largest = max_pool2d(x, 3, 2, 1)
moved = roll(pad(x, "rows", 1, 2, 0.5), "columns", 3)
lines[tokens, c] = 2.0 * table[near[tokens], c]
sums = cumsum(x, "columns")
masked = tril(x) + repeat_places(flip(x, "channels"), "batch", 1)
back[row = 40] = sum[t](where(near[t] == row, cast(t, "f32"), 0.0))
output images, halves, largest, moved, lines, sums, masked, back
"""
"""Convolutions, shifts, lookups and running sums: reads at expressions of indices and at data."""

RECURRENCES = """
model recurrences
dim batch = 2
dim steps = 37
dim channels = 48
dim states = 16
dim hidden = 150
input  x       : f32[batch, steps, channels]
input  delta   : f32[batch, steps, channels]
input  b       : f32[batch, steps, states]
input  c       : f32[batch, steps, states]
input  start   : f32[batch, hidden]
weight a       : f32[channels, states]
weight skip    : f32[channels]
weight inward  : f32[450, channels]
weight across  : f32[450, hidden]
weight bias    : f32[450]
weight biases  : f32[450]
scanned = selective_scan(x, abs(delta) * 0.1, -abs(a), b, c, skip)
gated = gru(x, 0.1 * inward, 0.1 * across, bias, biases, start)
output scanned, gated
"""
"""A selective scan, with its states in registers, and a network whose steps have launches of their own."""

TEXTS = {
    "recurrences": RECURRENCES,
    "positions": POSITIONS,
    "epilogues": EPILOGUES,
    "elementwise": ELEMENTWISE,
    "reductions": REDUCTIONS,
    "rows": ROWS,
    "attention_cases": ATTENTION,
    "merges": MERGES,
    "quantized": QUANTIZED,
    "rounded": ROUNDED,
    "experts": EXPERTS,
}
