"""Kernels that are small in most plans, in numpy and as machine code: lookups, reshape, dot products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.errors import KernelFault
from einc_runtime.kernels.base import ANY_NUMBER, Invocation
from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Block
from tests.support.kernel_runs import BF16, lookup, run

FLOATS = [np.dtype("f4"), np.dtype("f2"), BF16]
ERRORS = {2: 8e-3, 4: 1e-6, 8: 1e-13}


@pytest.fixture(autouse=True)
def checked(provider):
    """Says whether a kernel is what the provider should make of it: machine code or not."""

    def is_compiled(name, attributes, inputs, output, *blocks):
        kernel = prepare(replace(Invocation(name, attributes, inputs, [output], *blocks), repetitions=ANY_NUMBER))
        return isinstance(kernel.bind(np.empty(kernel.scratch, np.uint8)), CompiledCall) == (provider == "llvm")

    return is_compiled


def whole(array):
    return Block((0,) * array.ndim, array.shape)


@pytest.mark.parametrize("ids_type", ["i4", "i8"])
def test_nothing_is_written_where_an_id_is_wrong(ids_type, checked):
    table, ids = np.arange(28, dtype="f4").reshape(7, 4), np.array([[0, 6, 1], [3, 5, 2]], ids_type)
    target = np.full((2, 3, 4), 9.0, "f4")
    blocks = [whole(ids), whole(table)], [whole(target)]
    assert checked(*lookup(ids, 7, 4), [ids, table], target, *blocks)
    run(*lookup(ids, 7, 4), [ids, table], target, *blocks)
    np.testing.assert_array_equal(target, table[ids])
    ids[1, 2] = 7
    target[:] = 9
    with pytest.raises(KernelFault, match="a position is 7; positions along this dimension are 0 to 6"):
        run(*lookup(ids, 7, 4), [ids, table], target, *blocks)
    assert (target == 9).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_ids_in_any_memory_order(order):
    table, ids = np.arange(50, dtype="f4").reshape(10, 5), np.asarray([[1, 9, 4], [0, 7, 2]], "i8", order=order)
    target = np.zeros((2, 3, 5), "f4")
    run(*lookup(ids, 10, 5), [ids, table], target, [whole(ids), whole(table)], [whole(target)])
    np.testing.assert_array_equal(target, table[ids])


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i8"), np.dtype("?")], ids=str)
def test_reshape_to_and_from_rows_with_gaps(dtype, checked):
    values = np.random.default_rng(1).integers(0, 2, (6, 35)).astype(dtype)
    wide, narrow = np.zeros((6, 40), dtype)[:, :35], np.zeros((6, 7, 9), dtype)[..., :5]
    wide[:] = values
    assert checked("reshape", {}, [wide], narrow)
    assert (run("reshape", {}, [wide], narrow) == values.reshape(6, 7, 5)).all()
    back = np.zeros((42, 5), dtype)
    assert (run("reshape", {}, [narrow], back) == values.reshape(42, 5)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "equation", ["s d, s d -> s", "d s, s d -> s", "d, d -> ", "s d e, e s d -> s", "s d -> s", "s t d, t d s -> s t"]
)
def test_products_of_vectors(equation, dtype, checked):
    rng, extents = np.random.default_rng(7), {"s": 5, "t": 3, "d": 41, "e": 6}
    left, result = equation.split("->")
    inputs = [rng.normal(0.3, 1.0, [extents[n] for n in names.split()]).astype(dtype) for names in left.split(",")]
    output = np.zeros([extents[n] for n in result.split()], dtype)
    found = run("contract", {"equation": equation, "scale": 0.3}, inputs, output)
    expected = 0.3 * np.einsum(equation.replace(" ", ""), *(x.astype("f8") for x in inputs))
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=ERRORS[dtype.itemsize], atol=1e-5)


def test_infinities_of_products_of_vectors():
    x = np.array([[np.inf, 1], [np.nan, 1], [np.inf, -np.inf], [2, 3]], "f4")
    out = run("contract", {"equation": "s d, s d -> s"}, [x, np.ones_like(x)], np.zeros(4, "f4"))
    np.testing.assert_array_equal(out, [np.inf, np.nan, np.nan, 5])
