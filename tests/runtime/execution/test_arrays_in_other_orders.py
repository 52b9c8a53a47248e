"""Tensors whose dimensions have another order in memory: plans compute the same in any order."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.llvm import compiler
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


def test_strides_are_those_of_numpy():
    for shape, order in (((3, 4, 5), (1, 2, 0)), ((1, 7), (1, 0)), ((), ()), ((2, 1, 3), (2, 0, 1))):
        inner = [order.index(dim) for dim in range(len(shape))]
        whole = np.empty([shape[dim] for dim in order], "f4").transpose(inner)
        assert whole.shape == shape
        assert strides_of(shape, 4, order) == whole.strides
    assert strides_of((3, 4, 5), 2) == (40, 10, 2)
