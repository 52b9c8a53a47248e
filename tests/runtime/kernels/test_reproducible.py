"""Reproducible kernels: a result has the same bits in every block, layout and batch, and is right."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Block

BF16 = np.dtype(ml_dtypes.bfloat16)
OTHERS = [pytest.param(dtype, id=name, marks=pytest.mark.slow) for name, dtype in (("bf16", BF16), ("f64", np.float64))]
DTYPES = pytest.mark.parametrize("dtype", [pytest.param(np.float32, id="f32"), *OTHERS])


@pytest.fixture(params=["llvm", "numpy"], autouse=True)
def provider(request, monkeypatch):
    """Every kernel as machine code, and as it is where nothing can be compiled."""
    if request.param == "numpy":
        monkeypatch.setattr(compiler, "is_available", lambda: False)
    elif not compiler.is_available():
        pytest.skip("llvmlite is missing")
    return request.param


def run(name, attributes, inputs, *outputs, in_blocks=(), out_blocks=()):
    invocation = Invocation(name, {**attributes, "reproducible": True}, inputs, outputs, in_blocks, out_blocks)
    kernel = prepare(invocation)
    for output in outputs:
        output.view(np.uint8 if output.flags.c_contiguous else output.dtype)[...] = 255
    with np.errstate(all="ignore"):
        kernel.bind(np.full(kernel.scratch, 255, np.uint8))()
    return outputs


def draw(rng, shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


def lay_out(array, how):
    """The same values in another layout: transposed in memory, or with gaps."""
    if how == "turned":
        return array.T.copy().T
    if how == "gaps":
        roomy = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        roomy[..., ::2] = array
        return roomy[..., ::2]
    return array


CONTRACTIONS = [
    ("i k, k j -> i j", {"i": 37, "k": 301, "j": 45}),
    ("i k, j k -> i j", {"i": 70, "k": 530, "j": 33}),
    ("k i, k j -> j i", {"i": 29, "k": 64, "j": 50}),
    ("i h d, h d j -> i j", {"i": 20, "h": 3, "d": 17, "j": 40}),
    ("i h d, d h j -> i j", {"i": 20, "h": 3, "d": 17, "j": 40}),
    ("b i k, b k j -> b i j", {"b": 3, "i": 9, "k": 65, "j": 20}),
    ("i b k, k j -> b i j", {"b": 5, "i": 9, "k": 65, "j": 20}),
    ("i k, k j, j l -> i l", {"i": 9, "k": 30, "j": 8, "l": 20}),
    ("i k m, k j -> i j", {"i": 21, "k": 33, "m": 5, "j": 18}),
    ("i k, i k -> i", {"i": 40, "k": 77}),
]


@DTYPES
@pytest.mark.parametrize(("equation", "extents"), CONTRACTIONS)
def test_products_are_the_same_in_every_block_and_layout(equation, extents, dtype):
    rng = np.random.default_rng(5)
    left, _, out = equation.partition(" -> ")
    names = [part.split() for part in left.split(",")]
    operands = [draw(rng, [extents[n] for n in part], dtype) for part in names]
    result = np.empty([extents[n] for n in out.split()], dtype)
    run("contract", {"equation": equation}, operands, result)
    compact = "".join(equation.split())
    exact = np.einsum(compact, *(x.astype(np.float64) for x in operands), optimize=True)
    scale = np.einsum(compact, *(np.abs(x.astype(np.float64)) for x in operands), optimize=True)
    epsilon = {np.dtype(np.float32): 1e-6, BF16: 2.0**-8, np.dtype(np.float64): 1e-14}[np.dtype(dtype)]
    assert (np.abs(result.astype(np.float64) - exact) <= epsilon * scale + 1e-30).all()
    for trial, how in enumerate(["plain", "turned", "gaps", "plain"]):
        cut = {n: sorted(rng.choice(extents[n] + 1, 2, replace=False)) for n in out.split()}
        if trial == 3:
            cut = {n: (k, k + 1) for n, (k, _) in cut.items() if k < extents[n]} | {
                n: (0, 1) for n, (k, _) in cut.items() if k >= extents[n]
            }
        parts = [
            lay_out(x[tuple(slice(*cut.get(n, (0, extents[n]))) for n in part)], how)
            for x, part in zip(operands, names, strict=True)
        ]
        expected = result[tuple(slice(*cut[n]) for n in out.split())]
        target = lay_out(np.empty(expected.shape, dtype), how)
        run("contract", {"equation": equation}, parts, target)
        assert (bits(target) == bits(expected)).all(), (how, cut)


def test_constant_operands_in_a_layout_of_their_own_change_no_bit(provider):
    rng = np.random.default_rng(6)
    x, w = draw(rng, (40, 200)), draw(rng, (200, 77))
    plain = np.empty((40, 77), np.float32)
    run("contract", {"equation": "i k, k j -> i j"}, [x, w], plain)
    for left, right, equation in ((x, w, "i k, k j -> i j"), (x, w.T.copy(), "i k, j k -> i j")):
        right.flags.writeable = False
        for order in ("C", "F"):
            target = np.empty((40, 77), np.float32, order)
            invocation = Invocation("contract", {"equation": equation, "reproducible": True}, [left, right], [target])
            kernel = prepare(invocation)
            assert len(kernel.prepacked) == (provider == "llvm")
            go = kernel.bind(np.zeros(kernel.scratch, np.uint8))
            for pack in (False, True):
                target.fill(np.nan)
                for operand in kernel.prepacked if pack else ():
                    operand.make()
                go()
                assert (bits(target) == bits(plain)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2")], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1300), (9, 555), (90, 77)])
def test_constant_operands_of_16_bits_are_kept_in_16_bits(rows, columns, dtype, provider):
    rng = np.random.default_rng(8)
    x, w = draw(rng, (rows, 300), dtype), draw(rng, (300, columns), dtype)
    plain = np.empty((rows, columns), dtype)
    run("contract", {"equation": "i k, k j -> i j"}, [x, w], plain)
    assert np.allclose(plain.astype("f4"), x.astype("f4") @ w.astype("f4"), rtol=0.02, atol=0.2)
    for right, equation in ((w, "i k, k j -> i j"), (w.T.copy(), "i k, j k -> i j")):
        right.flags.writeable = False
        target = np.empty((rows, columns), dtype)
        kernel = prepare(Invocation("contract", {"equation": equation, "reproducible": True}, [x, right], [target]))
        go = kernel.bind(np.zeros(kernel.scratch, np.uint8))
        for operand in kernel.prepacked:
            operand.make()
            assert operand.data.itemsize == 2
        assert len(kernel.prepacked) == (provider == "llvm")
        go()
        assert (bits(target) == bits(plain)).all()


PROGRAMS = ["t0 = gelu x0; t1 = mul t0 x1", "t0 = exp x0; t1 = add t0 x1", "t0 = tanh x0; t1 = silu t0; t2 = sub t1 x1",
            "t0 = abs x0; t1 = add t0 0.5; t2 = log t1; t3 = pow t1 1.7; t4 = mul t2 t3; t5 = add t4 x1",
            "t0 = mul x0 50000.0; t1 = sin t0; t2 = cos t0; t3 = tan t0; t4 = add t1 t2; t5 = atan2 t3 t4; "
            "t6 = add t5 x1",
            "t0 = erf x0; t1 = exp2 x0; t2 = expm1 x0; t3 = atan t2; t4 = abs x1; t5 = log1p t4; t6 = log2 t1; "
            "t7 = add t0 t3; t8 = mul t5 t6; t9 = add t7 t8",
            "t0 = floor x0; t1 = round x1; t2 = erf t1; t3 = exp2 x1; t4 = mul t0 t2; t5 = add t3 t4"]  # fmt: skip


@pytest.mark.sampled(2)
@DTYPES
@pytest.mark.parametrize("program", PROGRAMS)
def test_maps_and_reductions_are_the_same_in_every_block_and_layout(program, dtype):
    rng = np.random.default_rng(7)
    x, y = draw(rng, (33, 75), dtype), draw(rng, (75,), dtype)
    whole, sums = np.empty((33, 75), dtype), np.empty(75, dtype)
    attributes = {"program": program, "indices": "i j, j -> i j"}
    reduction = {"program": program, "indices": "i j, j -> j", "aggregation": "sum"}
    run("map", attributes, [x, y], whole)
    run("reduce", reduction, [x, y], sums)
    for how, (lo, up) in itertools.product(["plain", "turned", "gaps"], [(0, 1), (5, 38), (40, 75)]):
        part, other = lay_out(x[3:20, lo:up], how), lay_out(y[lo:up], how)
        target = lay_out(np.empty((17, up - lo), dtype), how)
        run("map", attributes, [part, other], target)
        assert (bits(target) == bits(whole[3:20, lo:up])).all(), (how, lo)
        target = lay_out(np.empty(up - lo, dtype), how)
        run("reduce", reduction, [lay_out(x[:, lo:up], how), other], target)
        assert (bits(target) == bits(sums[lo:up])).all(), (how, lo)


@pytest.mark.parametrize("aggregation", ["sum", "max", "prod"])
def test_long_reductions_are_the_same_and_right(aggregation):
    rng = np.random.default_rng(8)
    x = 1 + draw(rng, (6, 70, 150)) / 1000
    attributes = {"program": "t0 = copy x0", "indices": "a i b -> a", "aggregation": aggregation}
    whole = np.empty(6, np.float32)
    run("reduce", attributes, [x], whole)
    exact = getattr(np, aggregation)(x.astype(np.float64), axis=(1, 2))
    assert np.allclose(whole, exact, rtol=3e-7, atol=0)
    for a in range(6):
        alone = np.empty(1, np.float32)
        run("reduce", attributes, [np.asfortranarray(x[a : a + 1])], alone)
        assert bits(alone).tolist() == bits(whole[a : a + 1]).tolist()


@DTYPES
@pytest.mark.parametrize("name", ["softmax", "softmax over the first axis", "rmsnorm", "layernorm"])
def test_rows_are_the_same_in_every_block_and_layout(name, dtype):
    rng = np.random.default_rng(9)
    x, vectors = draw(rng, (19, 131), dtype), [draw(rng, 131, dtype) for _ in range(2)]
    kernel, first = name.split()[0], "first" in name
    attributes = {"axis": 0 if first else -1} if kernel == "softmax" else {"eps": 1e-5, "offset": 0.5}
    inputs = {"softmax": [], "rmsnorm": vectors[:1], "layernorm": vectors}[kernel]
    source = x.T.copy() if first else x
    whole = np.empty(source.shape, dtype)
    run(kernel, attributes, [source, *inputs], whole)
    for how, (lo, up) in itertools.product(["plain", "turned", "gaps"], [(0, 1), (3, 14), (2, 19)]):
        key = (slice(None), slice(lo, up)) if first else (slice(lo, up),)
        target = lay_out(np.empty(source[key].shape, dtype), how)
        run(kernel, attributes, [lay_out(source[key], how), *inputs], target)
        assert (bits(target) == bits(whole[key])).all(), (how, lo)


def attend(q, k, v, lens, window, extras, first_query=0, first_key=0, how="plain"):
    (heads, queries, _), keys = q.shape, k.shape[1]
    at_q, at_k = (0, first_query, 0), (0, first_key, 0)
    inputs = [lay_out(x, how) for x in (q, k, v)]
    blocks = [Block(at, tuple(np.add(at, x.shape).tolist())) for at, x in zip((at_q, at_k, at_k), inputs, strict=True)]
    for name, array in extras.items():
        start = first_query if name == "positions" else first_key
        inputs.append(array)
        blocks.append(Block((start,), (start + len(array),)))
    wide = np.float64 if q.dtype == np.float64 else np.float32
    o, lse = np.empty((heads, queries, v.shape[2]), q.dtype), np.empty((heads, queries), wide)
    out = (
        Block(at_q, (heads, first_query + queries, v.shape[2])),
        Block((0, first_query), (heads, first_query + queries)),
    )
    attributes = {"causal": True, "scale": 0.3, "q_lens": lens, "k_lens": lens, "window": window, "softcap": 0.0,
                  "extras": list(extras)}  # fmt: skip
    run("attention", attributes, inputs, o, lse, in_blocks=blocks, out_blocks=out)
    assert keys >= queries
    return o, lse


@DTYPES
@pytest.mark.parametrize(
    ("window", "masked"), [(90, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(0, False), (0, True)])]
)
def test_attention_of_a_query_is_the_same_whatever_is_beside_it(dtype, window, masked):
    rng = np.random.default_rng(11)
    lens, tokens = [37, 263], 300
    q, k, v = draw(rng, (4, tokens, 16), dtype), draw(rng, (2, tokens, 16), dtype), draw(rng, (2, tokens, 24), dtype)
    mask = rng.random(tokens) < 0.7
    extras = {"mask": mask} if masked else {}
    whole, lse = attend(q, k, v, lens, window, extras)
    # Some queries of the second sequence, and the keys that they see; then that sequence alone; then one head.
    for lo, up, how in ((290, 300, "plain"), (150, 211, "turned"), (37, 38, "plain")):
        first = max(37, lo - window + 1) if window else 37
        own = {"mask": mask[first:up]} if masked else {}
        o, own_lse = attend(q[:, lo:up], k[:, first:up], v[:, first:up], lens, window, own, lo, first, how)
        assert (bits(o) == bits(whole[:, lo:up])).all(), (lo, up)
        assert (bits(own_lse) == bits(lse[:, lo:up])).all()
    own = {"mask": mask[37:]} if masked else {}
    o, own_lse = attend(q[2:, 37:], k[1:, 37:], v[1:, 37:], [263], window, own)
    assert (bits(o) == bits(whole[2:, 37:])).all()
    assert (bits(own_lse) == bits(lse[2:, 37:])).all()
