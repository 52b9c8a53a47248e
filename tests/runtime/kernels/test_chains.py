"""Chains of machine code: they do what their calls do one after the other, and blame the call that fails."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.chains import CompiledChain, join_runs
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Block

pytestmark = pytest.mark.skipif(not compiler.is_available(), reason="nothing compiles kernels here")


def bound(invocation):
    with compiler.compile_all():
        kernel = prepare(invocation)
    return kernel.bind(np.empty(kernel.scratch, np.uint8))


def mapped(program, x, y):
    return bound(Invocation("map", {"program": program, "indices": "i -> i"}, [x], [y]))


def appended(cache, new, positions):
    blocks = [Block((0, 0, 0), array.shape) for array in (cache, new)]
    attributes = {"cache_lens": [cache.shape[1]], "new_lens": [new.shape[1]], "in_place": True}
    invocation = Invocation(
        "append", attributes, [cache, new, positions], [cache], [*blocks, Block((0,), (2,))], blocks[:1]
    )
    return bound(invocation)


def test_a_chain_does_what_its_calls_do_in_their_order():
    arrays = [np.arange(37, dtype="f4"), *(np.zeros(37, "f4") for _ in range(3))]
    runs = [
        mapped(f"t0 = {what} x0", x, y) for what, x, y in zip(("exp", "neg", "abs"), arrays, arrays[1:], strict=False)
    ]
    halved = make_runner([(np.multiply, [arrays[3], 0.5, arrays[3]]), (runs[1], []), (runs[2], [])])
    joined = join_runs({7: runs[0], 8: make_runner([(runs[1], []), (runs[2], [])]), 5: halved})
    assert [type(own.call[0]) for own in joined] == [CompiledChain, np.ufunc, CompiledChain]
    assert [own.owners for own in joined] == [(7, 8, 8), (5,), (5, 5)]
    for own in joined:
        function, arguments = own.call
        function(*arguments)
    np.testing.assert_array_equal(arrays[2], -arrays[1])
    np.testing.assert_array_equal(arrays[3], arrays[1])
    np.testing.assert_allclose(arrays[1], np.exp(arrays[0]), rtol=1e-6)


def test_a_chain_ends_at_the_call_that_fails_and_raises_what_it_raises_alone():
    cache, new, positions = np.zeros((3, 5, 4), "f4"), np.ones((3, 2, 4), "f4"), np.array([1, 4])
    x, y, z = np.ones(9, "f4"), np.zeros(9, "f4"), np.zeros(9, "f4")
    first, last = mapped("t0 = neg x0", x, y), mapped("t0 = neg x0", x, z)
    (one,) = join_runs({2: first, 3: appended(cache, new, positions), 4: last})
    chain = one.call[0]
    for wrong in (5, -1, 1 << 40, -(1 << 62)):
        positions[:], z[:], cache[:] = (0, wrong), 0, 0
        with pytest.raises(
            ValueFault, match=f"a position is {wrong}; positions in its sequence of the cache are 0 to 4"
        ):
            chain()
        assert one.owner == 3
        assert y.min() == -1
        assert not z.any()
        assert not cache.any()
    positions[:] = (4, 4)
    chain()
    assert z.max() == -1
    assert cache[:, 4].all()
    assert not cache[:, :4].any()
