"""A small model of letters with a loss, for runs of training: its embedding is its head, and it adds residually."""

LETTERS = """model letters
dim batch = 3
dim length = 8
dim vocab = 11
dim width = 6
input ids : i64[batch, length]
input targets : i64[batch, length]
weight table : f32[vocab, width] from "wte.weight"
weight gain : f32[width]
weight square : f32[width, width]
x = embedding(reshape(ids, tokens=24), table)
h = tanh(matmul(rmsnorm(x, gain), square)) + x
logits[tokens, vocab] = h[tokens, width] * table[vocab, width]
output loss = cross_entropy(logits, reshape(targets, tokens=24))
"""
