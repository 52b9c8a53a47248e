"""Our own kernels for products in Triton's interpreter, with the tiles that tuning tries, at odd sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.kernels.triton.product import build_gated_product, build_product, list_tiles
from tests.support.product_cases import CASES, GATES, ProductCase, require_close
from tests.support.triton_interpreter import run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LARGE = [
    ProductCase(271, 139, 100, gap=5),
    ProductCase(256, 256, 128, turned=(False, False), kind="bf16", result="bf16"),
    ProductCase(130, 70, 65, turned=(False, True), kind="f32", result="f32", scale=0.25),
    ProductCase(140, 300, 70, batch=2, added=("addend",), activation="relu"),
    ProductCase(97, 15, 300, result="f32", kind="bf16"),
]


def placed(arrays):
    return {name: array.ctypes.data for name, array in arrays.items()}


@pytest.mark.parametrize("case", [*LARGE, *CASES], ids=str)
def test_every_tile_computes_the_product(case):
    arrays = case.operands()
    tiles = list_tiles((case.product(placed(arrays)),), "sm_90")
    assert tiles
    for tile in tiles:
        arrays["c"][...] = 7
        run([build_product(case.product(placed(arrays)), tile, 3)])
        require_close(arrays["c"], case.expected(arrays), case.result)


@pytest.mark.parametrize("shared", ["a", "b"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_every_tile_computes_two_products_and_their_map(kind, shared):
    case = ProductCase(170, 137, 75, kind=kind, result=kind, gap=1)
    first, second = case.operands(1), case.operands(2)
    other = "b" if shared == "a" else "a"
    one = case.product(placed(first))
    two = replace(one, **{other: second[other].ctypes.data})
    tiles = list_tiles((one, two), "sm_90")
    assert tiles
    program, meaning = next(iter(GATES.items()))
    expected = meaning(case.products(first), case.products({**second, shared: first[shared]}))
    for tile in tiles:
        first["c"][...] = 7
        run([build_gated_product((one, two), program, tile, 5)])
        require_close(first["c"], expected, kind)


def test_not_a_number_and_infinity_stay_where_they_are():
    case = ProductCase(40, 30, 20, added=("addend",))
    arrays = case.operands()
    arrays["addend"][0, 3, 5], arrays["a"][0, 7, 2], arrays["addend"][0, 9, 9] = np.nan, np.nan, np.inf
    for tile in list_tiles((case.product(placed(arrays)),), "sm_90"):
        run([build_product(case.product(placed(arrays)), tile, 132)])
        found = np.isnan(arrays["c"][0].astype("f8"))
        assert found[3, 5]
        assert found[:, 7].all()
        assert found.sum() == 31
        assert arrays["c"][0, 9, 9] == np.inf
