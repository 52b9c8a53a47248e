"""Our own kernels for products in Triton's interpreter, with the tiles that tuning tries, at odd sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.kernels.triton.gated_pair import build_gated_pair
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.product import build_gated_product, build_product, list_tiles
from tests.gpu.cases import CASES as CHECKED
from tests.gpu.cases import TOLERANCE as ALLOWED
from tests.gpu.correctness import arrays_of, compiled, largest_error, reference
from tests.support.product_cases import CASES, GATES, ProductCase, require_close
from tests.support.triton_interpreter import run
from tests.support.triton_plans import InterpretedKernels, interpreted

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


@pytest.mark.sampled(2)
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


class OwnProducts(InterpretedKernels):
    """Multiplies with our own kernels everywhere, as if tuning had chosen them; `gated` counts tasks done at once."""

    def __init__(self, driver):
        super().__init__(driver)
        self.replaced = self.gated = 0

    def prepare(self, plan, target):
        steps = [self._replace(step, target) if isinstance(step, Gemm) else step for step in plan.steps]
        return super().prepare(replace(plan, steps=tuple(steps)), target)

    def _replace(self, product, target):
        tiles = list_tiles((product,), target.architecture)
        self.replaced += bool(tiles)
        return build_product(product, tiles[-1], 7) if tiles else product

    def prepare_gated_pair(self, pair, target):
        gated = build_gated_pair(pair)
        if gated is None:
            return None
        self.gated += 1
        tile = list_tiles(gated.products, target.architecture)[-1]
        call = build_gated_product(gated.products, gated.program, tile, 7)
        return super().prepare(LaunchSequence((call,)), target)


@pytest.mark.parametrize(
    ("name", "dtype", "sites"), [("llama_block", "f16", 1), ("epilogues", "bf16", 1), ("ffn", "f32", 2)]
)
def test_plans_with_our_own_kernels_for_products(name, dtype, sites):
    case = next(case for case in CHECKED if (case.name, case.dtype) == (name, dtype) and not case.slow)
    bundle = compiled(case, sites, dtype)
    arrays = arrays_of(bundle)
    with interpreted(bundle, 1, OwnProducts) as session:
        session.load_all(arrays)
        session.execute()
        found = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
        kernels = session._executor._kernels
        assert kernels.replaced > 0
        assert kernels.gated == (name == "llama_block")
    assert largest_error(found, reference(case, arrays)) <= ALLOWED[dtype]
