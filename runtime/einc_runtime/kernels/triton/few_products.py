"""Products of few rows by one kernel of our own: several of one operand, or two and the map of both.

They take as long as reading their matrices takes, so that programs share the matrices out evenly, whichever product
these are of. Products of many rows are left to libraries and to tuning.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.gated_pair import GatedPair
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, KernelLaunch, LaunchSequence
from einc_runtime.kernels.triton.product import ProductTile, build_gated_product, build_product, list_tiles
from einc_runtime.kernels.triton.quantized import build_stored_rows
from einc_runtime.kernels.triton.side_by_side import place_side_by_side
from einc_runtime.kernels.triton.tiles import MULTIPROCESSORS
from einc_runtime.plan.launches import MAX_FEW_ROWS


def build_few_products(parts: Sequence[Invocation[Array]], architecture: str) -> LaunchSequence | None:
    """One launch of contractions; None where one of them is no single product of few rows."""
    if any(part.name == "quantized_contract" for part in parts):
        stored = [build_stored_rows(part) for part in parts]
        calls = [call for call in stored if call is not None]
        return LaunchSequence((place_side_by_side("few_products", calls),)) if len(calls) == len(parts) else None
    products: list[Gemm] = []
    for part in parts:
        sequence = build_contract(part)
        step = sequence.steps[0] if len(sequence.steps) == 1 and not sequence.scratch else None
        if not isinstance(step, Gemm) or not _has_few_rows(step):
            return None
        products.append(step)
    tile = _choose_tile(products, [[product] for product in products], architecture)
    if tile is None:
        return None
    calls = [build_product(product, tile, _count_tiles(product, tile)) for product in products]
    return LaunchSequence((place_side_by_side("few_products", calls),))


def build_few_gated(pair: GatedPair, architecture: str) -> KernelLaunch | None:
    """Two products of few rows and the map of both; None for products of many rows."""
    products = list(pair.products)
    if not all(map(_has_few_rows, products)):
        return None
    tile = _choose_tile(products[:1], [products], architecture)
    return None if tile is None else build_gated_product(products, pair.program, tile, _count_tiles(products[0], tile))


def _has_few_rows(product: Gemm) -> bool:
    return product.n <= MAX_FEW_ROWS and product.c < SCRATCH and not product.epilogue


def _choose_tile(results: Sequence[Gemm], operands: Sequence[Sequence[Gemm]], architecture: str) -> ProductTile | None:
    """The widest tile that keeps all multiprocessors busy, else the narrowest one; None where no tile fits all."""
    fitting = [list_tiles(products, architecture) for products in operands]
    tiles = sorted(set(fitting[0]).intersection(*fitting[1:]), key=lambda tile: (-tile.columns, tile.name))
    busy = [tile for tile in tiles if sum(_count_tiles(result, tile) for result in results) >= MULTIPROCESSORS]
    chosen = busy[:1] or tiles[-1:]
    return chosen[0] if chosen else None


def _count_tiles(product: Gemm, tile: ProductTile) -> int:
    return product.batch * -(-product.n // tile.rows) * -(-product.m // tile.columns)
