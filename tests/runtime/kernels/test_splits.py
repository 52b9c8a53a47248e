"""Kernels in parts: the parts of every split of every kernel give the same results as the whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.registry import prepare
from einc_runtime.kernels.splits import _SPLITS, MANY_ROWS, find_splits
from einc_runtime.plan.schema import Block

pytestmark = pytest.mark.usefixtures("provider")

ATTENTION = {"causal": True, "scale": 0.4, "q_lens": [4, 9, 5], "k_lens": [6, 9, 7], "window": 0, "extras": []}
ROPE = {"theta": 50.0, "scaling": "none"}
ALIKE = ATTENTION | {"q_lens": [4] * 5, "k_lens": [6] * 5}
WITH_EXTRAS = ATTENTION | {"causal": False, "window": 3, "extras": ["positions", "mask"]}
EQUATION, INDICES = "b i k, b k j -> j b i", "i j, j, j i -> j i"

SCAN = {
    "loops": "t=7 d=5 r=2 n=3", "equations": ["f32[t, d, r, n] | 1[d, n]", "f32[t, d, r]"],
    "reads": ["0[t, d, r]; @0[t-1, d, r, n]; 2[t, n]", "@0[t, d, r, n]"],
    "programs": ["t0 = mul x0 x1; t1 = add t0 x2", "t0 = copy x0"], "aggregations": ["", "sum"], "results": [0, 1],
}  # fmt: skip

INVOCATIONS = {  # kernel, attributes, shapes of inputs and outputs, how many cuts there are
    "product": ("contract", {"equation": EQUATION}, [(3, 5, 6), (3, 6, 8)], [(8, 3, 5)], 5),
    "diagonal": ("contract", {"equation": "i i, i j -> i j"}, [(5, 5), (5, 4)], [(5, 4)], 1),
    "three": ("contract", {"equation": "i j, j k, k l -> l i", "scale": 2.0}, [(5, 4), (4, 3), (3, 7)], [(7, 5)], 3),
    "map": ("map", {"program": "t0 = mul x0 x1; t1 = add t0 x2", "indices": INDICES}, [(6, 5), (5,), (5, 6)], [(5, 6)],
            2),
    "reduce": ("reduce", {"program": "t0 = abs x0", "indices": "i j k -> k i", "aggregation": "max"}, [(6, 5, 4)],
               [(4, 6)], 2),
    "scalar": ("reduce", {"program": "t0 = copy x0", "indices": "i ->", "aggregation": "min"}, [(6,)], [()], 0),
    "rmsnorm": ("rmsnorm", {"eps": 1e-5}, [(5, 4, 6), (6,)], [(5, 4, 6)], 2),
    "layernorm": ("layernorm", {"eps": 1e-5}, [(7, 6), (6,), (6,)], [(7, 6)], 1),
    "softmax": ("softmax", {"axis": -1}, [(5, 4, 6)], [(5, 4, 6)], 2),
    "softmax of another axis": ("softmax", {"axis": 1}, [(5, 4, 6)], [(5, 4, 6)], 0),
    "rope": ("rope", ROPE | {"seq_lens": [8, 12]}, [(3, 13, 8)], [(3, 13, 8)], 2),
    "rope of positions": ("rope", ROPE, [(3, 7, 8), (7,)], [(3, 7, 8)], 2),
    "attention": ("attention", ATTENTION, [(6, 18, 8), (3, 22, 8), (3, 22, 4)], [(6, 18, 4), (6, 18)], 2),
    "attention with extras": ("attention", WITH_EXTRAS, [(4, 18, 8), (2, 22, 8), (2, 22, 8), (18,), (22,)],
                              [(4, 18, 8), (4, 18)], 2),
    "attention of sequences alike": ("attention", ALIKE | {"extras": ["mask"]},
                                     [(4, 20, 8), (2, 30, 8), (2, 30, 4), (30,)], [(4, 20, 4), (4, 20)], 3),
    "attention of a part of them": ("attention", ALIKE, [(4, 16, 8), (2, 30, 8), (2, 30, 4)], [(4, 16, 4), (4, 16)], 2),
    "quantized": ("quantized_contract", {"equation": "t e k, e f k -> f e t", "group": 32},
                  [(4, 3, 64), (3, 5, 32), (3, 5, 2), (3, 5, 2)], [(5, 3, 4)], 3),
    "rounded": ("rounded_contract", {"equation": "t e k, e f k -> f e t"},
                [(4, 3, 64), (4, 3), (3, 5, 64), (3,)], [(5, 3, 4)], 3),
    "experts": ("expert_matmul", {"experts": 4}, [(7, 6), (4, 5, 6), (7, 3)], [(7, 3, 5)], 3),
    "experts of slots": ("expert_matmul", {"experts": 4}, [(7, 3, 6), (4, 5, 6), (7, 3)], [(7, 3, 5)], 3),
    "recurrence": ("recurrence", SCAN, [(7, 5, 2), (5, 3), (7, 3)], [(7, 5, 2, 3), (7, 5, 2)], 2),
    "reshape": ("reshape", {}, [(3, 2)], [(3, 2)], 0),
}  # fmt: skip


def arrays_of(name):
    kernel, attributes, inputs, outputs, _ = INVOCATIONS[name]
    rng = np.random.default_rng(len(name))
    found = [rng.standard_normal(shape).astype("f4") for shape in inputs]
    if kernel == "rope" and len(inputs) == 2:
        found[1] = rng.integers(0, 40, inputs[1])
    if kernel == "expert_matmul":
        found[2] = rng.integers(0, 4, inputs[2])
    if kernel == "quantized_contract":
        found[1] = rng.integers(0, 256, inputs[1], np.uint8)
        found[3] = rng.integers(-8, 9, inputs[3], np.int8)
    if kernel == "rounded_contract":
        found[1], found[2] = np.abs(found[1]), rng.integers(-128, 128, inputs[2], np.int8)
    if attributes.get("extras") == ["mask"]:
        found[3] = rng.random(inputs[3]) < 0.7
    elif attributes.get("extras"):
        found[3], found[4] = rng.integers(0, 5, inputs[3]), rng.random(inputs[4]) < 0.7
    return found, [np.full(shape, 7, "f4") for shape in outputs]


def run(name, inputs, outputs, corners):
    kernel, attributes, *_ = INVOCATIONS[name]
    blocks = [
        Block(tuple(corner), tuple(c + n for c, n in zip(corner, array.shape, strict=True)))
        for corner, array in zip(corners, (*inputs, *outputs), strict=True)
    ]
    own = prepare(Invocation(kernel, attributes, inputs, outputs, blocks[: len(inputs)], blocks[len(inputs) :]))
    own.bind(np.full(own.scratch, 255, np.uint8))()


def taken(array, along, start, stop):
    """A part of an array, and its first position."""
    if along is None:
        return array, [0] * array.ndim
    bounds = slice(start * along.unit, stop * along.unit)
    corner = [bounds.start if axis == along.axis else 0 for axis in range(array.ndim)]
    return array[(slice(None),) * along.axis + (bounds,)], corner


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", INVOCATIONS)
def test_parts_of_every_split_give_what_the_whole_does(name):
    kernel, attributes, shapes, results, count = INVOCATIONS[name]
    inputs, whole = arrays_of(name)
    if kernel in _SPLITS:
        run(name, inputs, whole, [[0] * array.ndim for array in (*inputs, *whole)])
    found = find_splits(Invocation(kernel, attributes, shapes, results))
    assert len(found) == count
    for cut in found:
        for bounds in ([0, 1, cut.extent], [0, cut.extent // 2, cut.extent]):
            _, outputs = arrays_of(name)
            for start, stop in itertools.pairwise(bounds):
                parts = [taken(x, a, start, stop) for x, a in zip(inputs, cut.inputs, strict=True)]
                parts += [taken(x, a, start, stop) for x, a in zip(outputs, cut.outputs, strict=True)]
                views, corners = [view for view, _ in parts], [corner for _, corner in parts]
                run(name, views[: len(inputs)], views[len(inputs) :], corners)
            for part, expected in zip(outputs, whole, strict=True):
                np.testing.assert_allclose(part, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["map", "reduce", "rmsnorm", "rope", "softmax"])
def test_kernels_that_may_be_cut_anywhere_are_cut_along_memory(name):
    kernel, attributes, shapes, results, _ = INVOCATIONS[name]
    invocation = Invocation(kernel, attributes, shapes, results)
    axes = {cut.outputs[0].axis for cut in find_splits(invocation)}
    for order in itertools.permutations(range(len(results[0]))):
        found = [cut.outputs[0].axis for cut in find_splits(invocation, order)]
        assert found == [axis for axis in order if axis in axes]


def test_attention_is_cut_by_sequences_if_they_have_several_queries():
    shapes, results = [(4, 5, 8), (2, 30, 8), (2, 30, 4)], [(4, 5, 4), (4, 5)]
    steps = ALIKE | {"q_lens": [1] * 5}
    ways = [cut.outputs[0] for cut in find_splits(Invocation("attention", steps, shapes, results))]
    assert [(way.axis, way.unit) for way in ways] == [(0, 2), (1, 1)]
    _, attributes, shapes, results, _ = INVOCATIONS["attention of sequences alike"]
    first = find_splits(Invocation("attention", attributes, shapes, results))[0]
    assert (first.extent, *((way.axis, way.unit) for way in first.inputs)) == (5, (1, 4), (1, 6), (1, 6), (0, 6))


def test_every_kernel_that_can_be_split_is_tried():
    assert {kernel for kernel, *_ in INVOCATIONS.values()} >= set(_SPLITS)


def test_products_are_cut_where_their_longest_operand_has_its_lines_together():
    """The heads of a projection come before their features: a part has whole blocks of lines. But before them come the
    tokens, if parts have many of these."""

    def best(equation, inputs, output):
        invocation = Invocation("contract", {"equation": equation}, inputs, [output])
        return [(cut.outputs[0].axis, cut.least) for cut in find_splits(invocation)]

    projection = "t m, h d m -> h t d"
    tokens_last = [(1, MANY_ROWS), (0, 1), (2, 1), (1, 1)]  # tokens, heads, features, tokens
    assert best(projection, [(3, 70), (12, 64, 70)], (12, 3, 64)) == tokens_last
    assert best(projection, [(512, 70), (12, 64, 70)], (12, 512, 64)) == [(1, 1), (0, 1), (2, 1)]
    images_first = [(0, 1), (1, 22), (2, 1), (0, 1), (1, 1)]  # whole images, whose rows stay one dimension
    assert best("n t m, f m -> n t f", [(3, 197, 70), (320, 70)], (3, 197, 320)) == images_first
