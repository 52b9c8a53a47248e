"""Models of which decode steps are derived: with keys and values, windows of convolutions, running aggregates, learned
positions, and what else depends on tokens."""

from __future__ import annotations

HEADS = """
dim heads = 4
dim groups = 2
dim d = 6
dim width = 9
"""

ATTENTION = """
q[heads, tokens, d] = x[tokens, width] * w_q[heads, d, width]
k[groups, tokens, d] = x[tokens, width] * w_k[groups, d, width]
v[groups, tokens, d] = x[tokens, width] * w_v[groups, d, width]
"""

PROJECTIONS = """
weight w_q : f32[heads, d, width]
weight w_k : f32[groups, d, width]
weight w_v : f32[groups, d, width]
weight w_o : f32[width, heads, d]
"""

STEP_MODELS = {
    "learned positions": f"""
model learned
dim tokens = 11
{HEADS}
dim vocab = 23
input ids : i64[tokens]
weight table : f32[vocab, width]
weight places : f32[tokens, width]
{PROJECTIONS}
x = embedding(ids, table) + places
{ATTENTION}
a = attention(q, k, v, causal=true)
o[tokens, width] = a[heads, tokens, d] * w_o[width, heads, d]
last = slice(x + o, tokens=[tokens - 1, tokens])
logits[row, vocab] = last[row, width] * table[vocab, width]
output logits, o
""",
    "windows and soft caps": f"""
model gemma
dim tokens = 11
{HEADS}
input x : f32[tokens, width]
input seen : bool[tokens]
{PROJECTIONS}
{ATTENTION}
local = attention(rope(q), rope(k), v, causal=true, window=3, softcap=5.0)
all = attention(rope(q), rope(k), v, causal=true, mask=seen)
both = concat(local, all, over="d", into="e")
o = reshape(transpose(both, "tokens", "heads", "e"), tokens=tokens, n=heads * 2 * d)
output o
""",
    "packed documents": f"""
model packed
dim tokens = 11
dim documents = 4
{HEADS}
input x : f32[tokens, width]
input ends : i64[tokens, 2]
input lens : i64[documents]
weight fixed : i64[tokens, 2]
{PROJECTIONS}
{ATTENTION}
a = attention(q, k, v, causal=true, spans=packed_spans(q, lens, lens))
b = attention(q, k, v, causal=true, window=5, spans=ends)
o = a + b + attention(q, k, v, causal=true, spans=fixed)
output o
""",
    "latent rows": """
model latent
dim tokens = 11
dim width = 9
dim heads = 4
dim d = 6
dim turned = 4
dim low = 3
dim both = 11
input x : f32[tokens, width]
weight w_q : f32[heads, 10, width]
weight w_kv : f32[heads, both, low]
weight w_low : f32[low, width]
weight w_turned : f32[turned, width]
weight w_o : f32[width, heads, 5]
q[heads, tokens, e = 10] = x[tokens, width] * w_q[heads, e, width]
queries = concat(slice(q, e=[0, d]), rope(slice(q, e=[d, 10])), over="e")
c[tokens, low] = x[tokens, width] * w_low[low, width]
r[tokens, turned] = x[tokens, width] * w_turned[turned, width]
kr = rope(reshape(r, head=1, tokens=tokens, turned=turned))
shared[heads: h = heads, tokens: t = tokens, both: e = turned] = kr[0, t, e]
kv[heads, tokens, both] = c[tokens, low] * w_kv[heads, both, low]
keys = concat(slice(kv, both=[0, d]), shared, over="both", into="e")
a = attention(queries, keys, slice(kv, both=[d, both]), causal=true, window=8)
o[tokens, width] = a[heads, tokens, z] * w_o[width, heads, z]
y = x + o
output y
""",
    "convolutions": """
model mamba
dim tokens = 11
dim channels = 5
dim taps = 4
input x : f32[tokens, channels]
weight kernel : f32[channels, taps]
weight kernel2 : f32[taps, channels, channels]
y[tokens, channels] = sum[r = taps](x[tokens + r - 3, channels, outside = 0] * kernel[channels, r])
z[t = tokens, c] = sum[r = taps, e](silu(y)[t - 2 * r, e, outside = nearest] * kernel2[r, e, c])
w[i = tokens + 3, c] = sum[r = taps](x[i + r - 3, c, outside = 0] * kernel[c, r])  # padded behind, too
v = silu(slice(w, i=[0, tokens])) + slice(cumsum(w * 2.0, "i"), i=[0, tokens])
gate[tokens, channels] = x[0, channels] * sigmoid(x[tokens, channels])
output z, gate, w, v
""",
    "running aggregates": """
model running
dim tokens = 11
dim channels = 5
input x : f32[channels, tokens, 3]
total = cumsum(x, "tokens")
largest = cummax(total, "tokens")
mean[c, t, n] = total[c, t, n] / (cast(t, "f32") + 1.0)
before[c, t] = sum[k < t](x[c, k, 1] * x[c, k, 0])
inner = cumsum(x, "channels")
output largest, mean, before, inner
""",
    "recurrences": """
model recurrent
dim tokens = 11
dim width = 5
dim inner = 3
input x : f32[tokens, width]
weight w : f32[width, width]
weight c : f32[tokens, inner]
weight h0 : f32[width]
decay = sigmoid(x)
h[t, d] = decay[t, d] * h[t - 1, d, outside = h0[d]] + x[t, d]
y[t, d] = tanh(x[t, d] + sum[k](w[d, k] * y[t - 1, k, outside = 0]))
z[n, t, d] = z[n - 1, t, d, outside = 0] * 0.5 + h[t, d] * c[t, n]
weight rates : f32[width, inner]
weight w_b : f32[inner, width]
weight skip : f32[width]
b[tokens, inner] = x[tokens, width] * w_b[inner, width]
mixed = selective_scan(x, decay, rates, b, b, skip)
output h, y, z, mixed
""",
    "experts": """
model experts
dim tokens = 11
dim width = 8
dim inner = 6
dim experts = 5
input x : f32[tokens, width]
weight w_router : f32[experts, width]
weight w_up : f32[experts, inner, width]
weight w_down : f32[experts, width, inner]
scores[tokens, experts] = x[tokens, width] * w_router[experts, width]
shares, picks = topk(softmax(scores, "experts"), 2, "experts")
up = silu(expert_matmul(x, w_up, picks)) * shares
y = x + sum(expert_matmul(up, w_down, picks), "k")
output y
""",
    "chosen keys": """
model chosen
dim tokens = 11
dim width = 5
input x : f32[tokens, width]
weight w_q : f32[4, width]
weight w_k : f32[4, width]
weight bias : f32[tokens, tokens]
q[tokens, n] = x[tokens, width] * w_q[n, width]
k[tokens, n] = x[tokens, width] * w_k[n, width]
scores[tokens, keys: b] = sum[r](q[tokens, r] * k[b, r])
half = relu(scores) * 0.5
seen[tokens: a, keys: b] = where(b <= a, half[a, b] + bias[a, b], (-inf))
best, picks = topk(seen, 3, "keys", into="top")
picked[tokens: a, keys: b = tokens] = max[r](cast(picks[a, r] == b, "i32"))
weights = softmax(where(picked > 0, seen, (-inf)), "keys")
shares[tokens: a, keys: b] = where(b <= a, weights[a, b], 0.0)
y[width, tokens] = sum[b](shares[tokens, b] * x[b, width])
output y, best, shares
""",
    "cross attention": f"""
model cross
dim tokens = 11
dim places = 7
{HEADS}
input x : f32[tokens, width]
input memory : f32[places, width]
input seen : bool[places]
{PROJECTIONS}
q[heads, tokens, d] = x[tokens, width] * w_q[heads, d, width]
k[groups, places, d] = memory[places, width] * w_k[groups, d, width]
v[groups, places, d] = memory[places, width] * w_v[groups, d, width]
a = attention(q, k, v, mask=seen)
output a
""",
}

REFUSED_STEPS = {
    "softmax over tokens": ('s = softmax(x, "tokens")', "'s' (softmax) needs all tokens at once"),
    "mean over tokens": ('m = mean(x, "tokens")', "aggregates over all tokens"),
    "no mask": ("k[h = 2, tokens, width] = x[tokens, width] * cast(1 + h, \"f32\")\na = attention(k, k, k)",
                "'a' (attention) lets every token see the tokens behind it (it has no causal=true)"),
    "later tokens": ("y[t = tokens, c] = sum[r = 3](x[t + r - 1, c, outside = 0])",
                     "up to 1 behind that of the result"),
    "sums from a token on": ("y[t, c] = sum[k >= t](x[k, c])", "aggregates over later tokens"),
    "pairs": ("y[t, u] = sum[c](x[t, c] * x[u, c])", "says of each token what it has to do with later ones"),
    "sums of pairs": ("s[t, u] = sum[c](x[t, c] * x[u, c])\ny[t, c] = sum[u](s[t, u] * x[u, c])",
                      "aggregates over keys"),
    "the largest of pairs": ("s[t, u] = sum[c](x[t, c] * x[u, c])\nm[t] = max[u](s[t, u])", "aggregates over keys"),
    "merged": ("y = reshape(x, n=tokens * width)", "mixes the tokens with another dimension"),
    "merged behind": ("y = reshape(transpose(x), n=width * tokens)", "mixes the tokens with another dimension"),
    "some tokens": ("y = slice(x, tokens=[2, 5])", "takes the tokens 2 to 4"),
    "tokens at data": ("y[t, c] = x[ids[t], c]", "reads tokens at positions that are data"),
    "the last for all": ("y[t, c] = x[t, c] - slice(x, tokens=[tokens - 1, tokens])[0, c]",
                         "combines tokens with the last tokens"),
    "reversed": ('y = flip(x, "tokens")', "reads tokens at other positions"),
    "joined": ('y = concat(x, x, over="tokens")', "mixes the tokens with another dimension"),
}  # fmt: skip
"""A statement of a model over x[tokens, width] and ids[tokens], and what is said of it."""


def write_refused(statement: str) -> str:
    """The model with a statement, whose value it saves."""
    name = statement.splitlines()[-1].partition("=")[0].partition("[")[0].strip()
    return (
        "model refused\ndim tokens = 7\ndim width = 4\n"
        f"input x : f32[tokens, width]\ninput ids : i64[tokens]\n{statement}\noutput r = copy({name})\n"
    )
