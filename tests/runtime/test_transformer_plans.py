"""Plans of lookups, norms, rotations, caches, concatenation and pooling: proved, run, and held against references."""

from __future__ import annotations

import numpy as np
import pytest
from test_session_compiled import TOLERANCE, compiled

from runtime.draws import random_input
from runtime.errors import ValueFault
from runtime.executors.cpu import CpuExecutor
from runtime.session import Session
from runtime.verify import prove

MODEL = """
dim tokens = 13; dim d = 12; dim heads = 3; dim d_head = 4; dim vocabulary = 11; dim rows = 20
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
r = rope(q, theta=500.0, seq_lens=[6, 7])
p = rope(q, positions=places, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_length=16)
c = append(cache, r + p, places, cache_lens=[8, 12], new_lens=[6, 7])
l = layernorm(x, gain, bias)
whole = concat(l, h, over="tokens", into="both")
m = meanpool(slice(whole, both=[6, 19]), keep, seq_lens=[3, 10], into="sentences")
output c
output m
output again = embedding(cast(mod(ids, 3), "i32"), h)
"""
PLACES = np.array([3, 0, 7, 2, 1, 5, 11, 4, 0, 2, 9, 10, 3])


def run(bundle, **given):
    session = Session(bundle, executor=CpuExecutor(bundle, 2, poison=True))
    arrays = {t.name: random_input(t, 3) for t in bundle.tensors if t.kind != "value"} | {"places": PLACES} | given
    session.load_all(arrays)
    session.execute()
    return arrays, {tensor.name: session.offload(tensor.name) for tensor in session.outputs}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sites", [1, 3, 5, 8])
def test_plans_agree_with_references(sites, dtype):
    from einc.cli.comparison import compare, references

    bundle = compiled(MODEL, sites, dtype)
    prove(bundle)
    arrays, found = run(bundle)
    comparison = compare(found, references(bundle, arrays), TOLERANCE[dtype])
    assert comparison.holds, comparison


@pytest.mark.parametrize("sites", [1, 8])
def test_data_without_a_result_is_one_clear_error(sites):
    bundle = compiled(MODEL, sites)
    ids = np.arange(13) % 11
    ids[7] = 11
    with pytest.raises(ValueFault) as caught:
        run(bundle, ids=ids)
    assert caught.value.exit_code == 65
    assert "the embedding at site" in caught.value.message
    assert "an id is 11; ids of this vocabulary are 0 to 10" in caught.value.message
    assert "kernel for x" in caught.value.where
    places = PLACES.copy()
    places[2] = 8  # a row of the cache, but of the other sequence
    with pytest.raises(
        ValueFault, match=r"the append .* a position is 8; positions in its sequence of the cache are 0"
    ):
        run(bundle, places=places)
