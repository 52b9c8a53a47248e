"""Our own kernel for products, in numpy: every form of a product, odd sizes, two products and their map; and tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.product import (
    ProductTile,
    build_gated_product,
    build_product,
    list_tiles,
    parse_tile,
)
from tests.support.product_cases import CASES, GATES, ProductCase, require_close
from tests.support.triton_in_numpy import Arena, run

SMALL = ProductTile(16, 16, 16, 4, 3)


def placed(arena, arrays):
    return {name: arena.place(array, output=name == "c") for name, array in arrays.items()}


@pytest.mark.parametrize("programs", [1, 4, 1000])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_those_of_the_definition(case, programs):
    arena, arrays = Arena(1 << 18), case.operands()
    where = placed(arena, arrays)
    product = case.product({name: array.pointer for name, array in where.items()})
    launch = build_product(product, SMALL, programs)
    tiles = case.batch * -(-case.m // 16) * -(-case.n // 16)
    assert launch.grid == min(programs, tiles)
    run(LaunchSequence((launch,)), arena)
    require_close(arena.fetch(where["c"]), case.expected(arrays), case.result)


LINES_OF_16_BYTES = [
    ProductCase(40, 24, 56, turned=turned, kind=kind, result=kind, added=added)
    for turned, kind, added in (
        ((True, False), "f16", ("addend",)),
        ((False, False), "bf16", ()),
        ((False, True), "f16", ("bias",)),
        ((True, True), "bf16", ()),
    )
]
"""In every order of operands, with rows, columns and a summed index that tiles do not fill."""


@pytest.mark.parametrize("case", LINES_OF_16_BYTES, ids=str)
def test_tiles_that_are_copied_as_such_compute_the_same(case):
    arena, arrays = Arena(1 << 18), case.operands()
    where = placed(arena, arrays)
    product = case.product({name: array.pointer for name, array in where.items()})
    launch = build_product(product, replace(SMALL, bulk=True), 2)
    assert launch.source.text.count("make_tensor_descriptor") == 2
    run(LaunchSequence((launch,)), arena)
    require_close(arena.fetch(where["c"]), case.expected(arrays), case.result)


def test_two_products_by_tiles_that_are_copied_as_such():
    case = LINES_OF_16_BYTES[0]
    case = replace(case, added=())
    arena, first, second = Arena(1 << 18), case.operands(1), case.operands(2)
    where = placed(arena, first)
    one = case.product({name: array.pointer for name, array in where.items()})
    two = replace(one, a=arena.place(second["a"]).pointer)
    (program, meaning) = next(iter(GATES.items()))
    launch = build_gated_product((one, two), program, replace(SMALL, bulk=True), 2)
    assert launch.source.text.count("make_tensor_descriptor") == 3
    run(LaunchSequence((launch,)), arena)
    expected = meaning(case.products(first), case.products({**second, "b": first["b"]}))
    require_close(arena.fetch(where["c"]), expected, "f16")


def test_tiles_are_copied_as_such_where_lines_begin_at_16_bytes_on_hopper_and_blackwell():
    product = ProductCase(4096, 4096, 4096).product({"a": 16, "b": 32, "c": 48})

    def bulk(own, architecture="sm_90"):
        return any(tile.bulk for tile in list_tiles((own,), architecture))

    assert bulk(product)
    assert bulk(product, "sm_100")
    for architecture in ("sm_80", "sm_89", "sm_120"):
        assert not bulk(product, architecture)
    for other in ({"a": 24}, {"b": 40}, {"lda": 4100}, {"ldb": 4097}, {"batch": 2}, {"n": 16}):
        assert not bulk(replace(product, **other)), other


@pytest.mark.parametrize("shared", ["a", "b"])
@pytest.mark.parametrize("program", GATES)
@pytest.mark.parametrize(
    "case",
    [
        ProductCase(37, 21, 50, gap=1),
        ProductCase(17, 34, 20, turned=(False, True), kind="bf16", result="bf16", batch=2),
        ProductCase(16, 16, 48, kind="f32", result="f32", scale=0.5),
    ],
    ids=str,
)
def test_two_products_and_their_map_are_one_kernel(case, program, shared):
    arena, first, second = Arena(1 << 18), case.operands(1), case.operands(2)
    second[shared] = first[shared]
    where = placed(arena, first)
    other = "b" if shared == "a" else "a"
    more = arena.place(second[other])
    one = case.product({name: array.pointer for name, array in where.items()})
    two = replace(one, **{other: more.pointer})
    launch = build_gated_product((one, two), program, SMALL, 3)
    assert len(launch.arguments) == 4  # what both read is read once
    run(LaunchSequence((launch,)), arena)
    expected = GATES[program](case.products(first), case.products(second))
    require_close(arena.fetch(where["c"]), expected, case.result)


def test_each_tile_is_of_one_program_and_all_are_done():
    """More tiles of rows than are computed together, and a number that is no multiple of it."""
    case = ProductCase(40, 16 * 11, 16)
    arena, arrays = Arena(1 << 19), case.operands()
    where = placed(arena, arrays)
    product = case.product({name: array.pointer for name, array in where.items()})
    run(LaunchSequence((build_product(product, SMALL, 5),)), arena)  # refuses an element that is written twice
    require_close(arena.fetch(where["c"]), case.expected(arrays), "f16")


def test_offsets_are_wide_where_they_must_be():
    near = ProductCase(64, 64, 64).product({"a": 1 << 40, "b": 2 << 40, "c": 3 << 40})
    assert "int64" not in build_product(near, SMALL, 132).source.text
    far = replace(near, n=1 << 18, ldb=1 << 14)
    assert "to(tl.int64)" in build_product(far, SMALL, 132).source.text


def test_tiles_fit_into_the_memory_of_the_architecture():
    product = ProductCase(4096, 4096, 4096).product({"a": 16, "b": 32, "c": 48})
    other = replace(product, a=64)
    for architecture, most in (("sm_80", 163), ("sm_86", 99), ("sm_90", 227), ("sm_100", 227), ("sm_120", 99)):
        for products in ((product,), (product, other)):
            tiles = list_tiles(products, architecture)
            assert tiles
            assert all(tile.shared(products) <= most << 10 for tile in tiles)
            for tile in tiles:
                assert parse_tile(tile.name, products, architecture) == tile
    assert not list_tiles((replace(product, kind="f64", result="f64"),), "sm_90")
    few = list_tiles((replace(product, n=8),), "sm_90")
    assert {tile.rows for tile in few} == {16}


def test_only_known_tiles_can_be_named():
    product = ProductCase(4096, 4096, 4096).product({"a": 16, "b": 32, "c": 48})
    for name in ("", "128x256x64 w8 s9", "16x16x16 w4 s3", "128x256x64 w8 s3 ", "; import os"):
        assert parse_tile(name, (product,), "sm_90") is None
    with pytest.raises(PlanFault):
        build_gated_product((product, replace(product, a=64)), "t0 = exec x0", SMALL, 1)
