"""Tensors whose dimensions have another order in memory: plans compute the same in any order."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import order_channels
from einc_runtime.execution.session import Session
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import onednn
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove
from tests.support.compiled_plans import EVERYTHING, PLACES, TRANSFORMER, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_plans import agree, block, on_fake
from tests.support.plan_arrays import arrays_of, results

PLANS = {
    "every kind of kernel": (lambda sites: compiled(EVERYTHING, sites, "f32"), {}),
    "caches and lookups": (lambda sites: compiled(TRANSFORMER, sites, "f32"), {"places": PLACES}),
    "block": (block, {}),
}


def shuffled(bundle, seed):
    """The plan with the dimensions of every value that is not saved in any order."""
    rng = random.Random(seed)
    saved = {output.tensor for output in bundle.outputs}
    tensors = []
    for number, tensor in enumerate(bundle.tensors):
        order = list(range(len(tensor.shape)))
        rng.shuffle(order)
        free = tensor.kind == "value" and number not in saved
        tensors.append(msgspec.structs.replace(tensor, order=tuple(order) if free else ()))
    return msgspec.structs.replace(bundle, tensors=tuple(tensors))


def on_cpu(bundle, arrays):
    return results(Session(bundle, executor=CpuExecutor(bundle, 3, poison=True)), arrays)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("small", [0, 1 << 62], ids=["llvm", "numpy"])
@pytest.mark.parametrize(
    ("sites", "seeds"), [(1, (0,)), (3, (0, 1)), pytest.param(8, range(4), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", PLANS)
def test_any_order_on_the_cpu(name, sites, seeds, small, monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", small)
    make, given = PLANS[name]
    bundle = make(sites)
    arrays = arrays_of(bundle, **given)
    expected = on_cpu(shuffled(bundle, None), arrays)
    for seed in seeds:
        other = shuffled(bundle, seed)
        assert decode(encode(other)) == other
        prove(other)
        agree(on_cpu(other, arrays), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("peers", [True, False], ids=["peers", "staged"])
@pytest.mark.parametrize("name", PLANS)
def test_any_order_on_gpus(name, peers):
    make, given = PLANS[name]
    bundle = shuffled(make(3), 5)
    arrays = arrays_of(bundle, **given)
    pairs = () if peers else itertools.permutations(range(3), 2)
    driver = FakeDriver(3, unreachable=pairs)
    session, executor, _ = on_fake(bundle, driver=driver)
    agree(results(session, arrays), on_cpu(make(3), arrays))
    executor.close()


NETWORK = """
model network
input x : f32[3, 5, 19, 18]
weight w : f32[24, 5, 3, 3]
weight scale : f32[24]
weight v : f32[16, 24, 1, 1]
weight u : f32[16, 16, 3, 3]
y[n, o, h: i = 10, w: j = 9] = sum[c, r = 3, s = 3](x[n, c, 2 * i + r - 1, 2 * j + s - 1, outside = 0] * w[o, c, r, s])
z[n, o, h, w] = y[n, o, h, w] * scale[o]
a = relu(z)
p[n, o, h: i = 5, w: j = 5] = max[r = 3, s = 3](a[n, o, 2 * i + r - 1, 2 * j + s - 1, outside = -inf])
q[n, o, h: i = 5, w: j = 5] = sum[c](a[n, c, 2 * i, 2 * j] * v[o, c, 0, 0])
t[n, o, h: i = 5, w: j = 5] = sum[c, r = 3, s = 3](q[n, c, i + r - 1, j + s - 1, outside = 0] * u[o, c, r, s])
output p
output t
"""


@pytest.mark.parametrize("sites", [1, 3])
def test_channels_lie_together_where_images_are_convolved(sites):
    bundle = compiled(NETWORK, sites, "f32")
    arrays = arrays_of(bundle)
    ordered = {tensor.name: tensor.order for tensor in order_channels(bundle).tensors if tensor.order}
    if onednn.is_available():
        assert ordered == dict.fromkeys(("y", "a", "q"), (0, 2, 3, 1))
    plain = Session(bundle, executor=CpuExecutor(bundle, 2, rewrites=False))
    agree(on_cpu(bundle, arrays), results(plain, arrays))


def test_strides_are_those_of_numpy():
    for shape, order in (((3, 4, 5), (1, 2, 0)), ((1, 7), (1, 0)), ((), ()), ((2, 1, 3), (2, 0, 1))):
        inner = [order.index(dim) for dim in range(len(shape))]
        whole = np.empty([shape[dim] for dim in order], "f4").transpose(inner)
        assert whole.shape == shape
        assert strides_of(shape, 4, order) == whole.strides
    assert strides_of((3, 4, 5), 2) == (40, 10, 2)
