"""Products of matrices by a kernel of our own, as a candidate of tuning: one product, or two with the map of both.

The kernel is persistent: as many programs as the GPU has multiprocessors go through the tiles of the result. Neighbours
in time are neighbours in the result, so that operands are read from the cache. Sums are in f32, in the order of the
summed index; everything after them (scale, additions, functions) is in f32, too, and rounded once. A tile has rows and
columns in the order of memory: columns are the index along which the result is contiguous, cuBLAS's m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.gpu import MAX_AMD_STAGES, read_capability
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT, KernelLaunch
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.kernels.triton.source import (
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
)

MULTIPLIED_TYPES = ("f16", "bf16", "f32", "f8e4m3")
EXACT_PRODUCTS = 128
"""So many products of floats of 8 bits are added by tensor cores, whose own sums have fewer bits, before they are added
to sums in f32."""

ROWS_TOGETHER = 8
"""Rows of tiles that are computed together, so that what they read of the columns is still in the cache."""

SHARED_MEMORY_BYTES = {0: 64 << 10, 8: 163 << 10, 9: 227 << 10, 10: 227 << 10}
"""Bytes of shared memory that a program may have, by the first number of the architecture, which is 0 for those of AMD;
99 KiB elsewhere."""
LITTLE_SHARED, LESS_SHARED = frozenset({"sm_86", "sm_89"}), 99 << 10


@dataclass(frozen=True, slots=True)
class ProductTile:
    """What a program computes at a time: rows, columns, and elements of the summed index in a step; with so many
    warps, and operands fetched `stages` steps ahead: by all threads, or by the unit that copies tiles (`bulk`)."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    bulk: bool = False

    @property
    def name(self) -> str:
        """Such as `128x256x64 w8 s3 bulk`."""
        return f"{self.rows}x{self.columns}x{self.inner} w{self.warps} s{self.stages}" + " bulk" * self.bulk

    def shared(self, products: Sequence[Gemm]) -> int:
        """Bytes of the operands that are fetched ahead."""
        rows, columns = (len({getattr(p, side) for p in products}) for side in ("b", "a"))
        elements = self.inner * (rows * self.rows + columns * self.columns)
        return self.stages * elements * ITEMSIZE[products[0].kind]


_LARGE = (
    ProductTile(128, 256, 64, 8, 3), ProductTile(256, 128, 64, 8, 3), ProductTile(128, 128, 64, 8, 4),
    ProductTile(128, 128, 64, 4, 3), ProductTile(64, 128, 64, 4, 4), ProductTile(64, 64, 64, 4, 4),
)  # fmt: skip
_TWO = (
    ProductTile(128, 128, 64, 8, 3), ProductTile(256, 64, 64, 8, 3), ProductTile(128, 64, 64, 4, 3),
    ProductTile(64, 64, 64, 4, 4),
)  # fmt: skip
_LARGE_BULK = (
    ProductTile(128, 256, 64, 8, 3, bulk=True), ProductTile(128, 256, 64, 8, 4, bulk=True),
    ProductTile(128, 128, 64, 8, 4, bulk=True),
)  # fmt: skip
_TWO_BULK = (ProductTile(128, 128, 64, 8, 3, bulk=True), ProductTile(128, 128, 64, 8, 4, bulk=True))
_FEW_ROW_TILES = (ProductTile(16, 128, 128, 4, 4), ProductTile(16, 64, 128, 4, 4), ProductTile(16, 32, 256, 4, 3))
_WIDE_TYPE = (ProductTile(64, 64, 32, 4, 3), ProductTile(32, 64, 32, 4, 3), ProductTile(16, 64, 64, 4, 3))
"""Tiles for 16-bit types, for two products at once, the same for the unit that copies tiles, for results of at most 16
rows, and for f32, which uses no tensor cores."""

BULK = (9, 10)
"""The first numbers of architectures whose unit for copies of tiles is used."""


def list_tiles(products: Sequence[Gemm], architecture: str) -> tuple[ProductTile, ...]:
    """The tiles that tuning tries for one product, or for two that share an operand; none for other types."""
    product = products[0]
    if product.kind not in MULTIPLIED_TYPES:
        return ()
    tiles: tuple[ProductTile, ...]
    if product.kind == "f32":
        tiles = _WIDE_TYPE
    elif product.n <= 16:
        tiles = _FEW_ROW_TILES
    else:
        tiles = _LARGE if len(products) == 1 else _TWO
        if read_capability(architecture)[0] in BULK and all(map(_has_bulk_form, products)):
            tiles += _LARGE_BULK if len(products) == 1 else _TWO_BULK
    major = read_capability(architecture)[0]
    most = LESS_SHARED if architecture in LITTLE_SHARED else SHARED_MEMORY_BYTES.get(major, LESS_SHARED)
    if product.kind == "f8e4m3":  # as many bytes
        tiles = tuple(replace(tile, inner=2 * tile.inner) for tile in tiles)
    stages = tuple(tile.stages if major else min(tile.stages, MAX_AMD_STAGES) for tile in tiles)
    return tuple(t for t, ahead in zip(tiles, stages, strict=True) if t.shared(products) // t.stages * ahead <= most)


def _has_bulk_form(product: Gemm) -> bool:
    """Whether the unit for copies of tiles takes the operands: single matrices whose lines begin at 16 bytes."""
    p, size = product, ITEMSIZE[product.kind]
    numbers = (p.a, p.b, p.lda * size, p.ldb * size)
    return p.batch == 1 and not any(number % POINTER_ALIGNMENT for number in numbers)


def parse_tile(name: str, products: Sequence[Gemm], architecture: str) -> ProductTile | None:
    """The tile of this name, if it is one of those that tuning tries; the name may come from a file of others."""
    return next((tile for tile in list_tiles(products, architecture) if tile.name == name), None)


def build_product(product: Gemm, tile: ProductTile, multiprocessors: int) -> KernelLaunch:
    """The launch of one product with its epilogue."""
    added = [name for name, address in (("addend", product.addend), ("bias", product.bias)) if address]
    steps = [f"add {{}} x{number + 1}" for number in range(len(added))]
    steps += [f"{product.activation} {{}}"] if product.activation else []
    lines, value = [], "x0"
    for number, step in enumerate(steps or ["copy {}"]):
        lines.append(f"t{number} = {step.format(value)}")
        value = f"t{number}"
    return _build([product], "; ".join(lines), tile, multiprocessors)


def build_gated_product(
    products: Sequence[Gemm], program: str, tile: ProductTile, multiprocessors: int
) -> KernelLaunch:
    """The launch of two products of one form that share an operand, and of a scalar program of both results, which
    alone are written, to where both products would write."""
    return _build(list(products), program, tile, multiprocessors)


def _build(products: list[Gemm], program: str, tile: ProductTile, multiprocessors: int) -> KernelLaunch:
    p = products[0]
    extents = (p.batch, p.n, p.m, p.k)
    items = _list_operands(products)
    cast = index_cast(list(items.values()), extents)
    counts = -(-p.n // tile.rows), -(-p.m // tile.columns)
    tiles = p.batch * counts[0] * counts[1]
    grid = min(tiles, max(1, multiprocessors))
    values = [f"v{number}" for number in range(len(products))]
    added = [name for name in ("addend", "bias") if name in items]
    typed = read_steps(program, ["f32"] * (len(values) + len(added)))
    chain = ScalarSource(typed, [*values, *added])
    body = [
        *_locate(p.batch, counts, tile, cast),
        *_multiply(products, items, tile, cast),
        *(f"v{n} = total{n}" + (f" * {q.scale!r}" if q.scale != 1 else "") for n, q in enumerate(products)),
        *(f"v0 = v0 * {_load_added(items[name], p, tile)}" for name in ("scale_m", "scale_n") if name in items),
        *(f"{name} = {_load_added(items[name], p, tile)}" for name in added),
        *chain.lines,
        items["c"].store(_places(items["c"]), f"({chain.value})", _edge(p, tile)),
    ]
    lines = [
        *(_describe_operands(products, items, tile) if tile.bulk else ()),
        f"for tile in tl.range(tl.program_id(0), {tiles}, {grid}, flatten=True):",
        *(f"    {line}" for line in body),
    ]
    title = f"{' and '.join(q.variant for q in products)}: {program}; tiles {tile.name}"
    options = LaunchOptions(chain.source(), warps=tile.warps, stages=tile.stages)
    name = "product" if len(products) == 1 else "gated_product"
    return assemble(name, title, list(items.values()), extents, lines, grid, options)


def _list_operands(products: Sequence[Gemm]) -> dict[str, PointerOperand]:
    """Operands by name, with strides along batches, rows, columns and the summed index; one that is shared is there
    once."""
    p = products[0]
    operands: dict[str, PointerOperand] = {}
    for number, q in enumerate(products):
        along_inner, along_columns = (1, p.lda) if p.transpose_a else (p.lda, 1)
        if not number or q.a != p.a:
            operands[f"a{number}"] = _operand(f"a{number}", p.kind, (p.stride_a, 0, along_columns, along_inner), q.a)
        along_inner, along_rows = (p.ldb, 1) if p.transpose_b else (1, p.ldb)
        if not number or q.b != p.b:
            operands[f"b{number}"] = _operand(f"b{number}", p.kind, (p.stride_b, along_rows, 0, along_inner), q.b)
    result = (p.stride_c, p.ldc, 1, 0)
    operands["c"] = _operand("c", p.result, result, p.c)
    if p.addend:
        operands["addend"] = _operand("addend", p.result, result, p.addend)
    if p.bias:
        operands["bias"] = _operand("bias", p.result, (0, 0, 1, 0), p.bias)
    if p.is_scaled:
        operands["scale_m"] = _operand("scale_m", "f32", (0, 0, 1, 0), p.scale_m)
        operands["scale_n"] = _operand("scale_n", "f32", (0, 1, 0, 0), p.scale_n)
    if p.batch == 1:
        operands = {name: replace(item, strides=(0, *item.strides[1:])) for name, item in operands.items()}
    return operands


def _operand(name: str, kind: str, strides: tuple[int, int, int, int], address: int) -> PointerOperand:
    return PointerOperand(f"{name}_ptr", kind, strides, address)


def _locate(batch: int, counts: tuple[int, int], tile: ProductTile, cast: str) -> list[str]:
    """Lines that set the matrix of the batch, rows and columns of a tile from its number."""
    rows, columns = counts
    lines = [f"matrix = tile // {rows * columns}{cast}", f"place = tile % {rows * columns}"] if batch > 1 else []
    tile_number = "place" if batch > 1 else "tile"
    lines += [
        f"group = {tile_number} // {ROWS_TOGETHER * columns} * {ROWS_TOGETHER}",
        f"height = tl.minimum({rows} - group, {ROWS_TOGETHER})",
        f"within = {tile_number} % {ROWS_TOGETHER * columns}",
        f"row = (group + within % height) * {tile.rows}",
        f"column = within // height * {tile.columns}",
        f"rows = (row + tl.arange(0, {tile.rows})){cast}",
        f"columns = (column + tl.arange(0, {tile.columns})){cast}",
    ]
    return lines


def _multiply(products: Sequence[Gemm], items: dict[str, PointerOperand], tile: ProductTile, cast: str) -> list[str]:
    """Lines that compute a tile of every product."""
    p = products[0]
    masks = {
        "b": [_limit("rows[:, None]", p.n, tile.rows), _limit("inner[None, :]", p.k, tile.inner)],
        "a": [_limit("columns[None, :]", p.m, tile.columns), _limit("inner[:, None]", p.k, tile.inner)],
    }
    places = {
        "b": {0: "matrix", 1: "rows[:, None]", 3: "inner[None, :]"},
        "a": {0: "matrix", 2: "columns[None, :]", 3: "inner[:, None]"},
    }
    lines = [f"total{n} = tl.zeros(({tile.rows}, {tile.columns}), tl.float32)" for n in range(len(products))]
    lines.append(f"for step in range(0, {-(-p.k // tile.inner)}):")
    inner = [] if tile.bulk else [f"inner = (step * {tile.inner} + tl.arange(0, {tile.inner})){cast}"]
    for name, item in items.items():
        side = name[0]
        if name[1:].isdigit() and tile.bulk:
            inner.append(f"{name} = {_load_bulk(name, p, tile)}")
        elif name[1:].isdigit():
            mask = mask_arguments(*masks[side], fallback="0" if p.kind == "f8e4m3" else "0.0")
            inner.append(f"{name} = tl.load({item.at(places[side])}{mask})")
    precision = ', input_precision="ieee"' if p.kind == "f32" else ""
    if p.kind == "f8e4m3":
        precision = f", max_num_imprecise_acc={min(EXACT_PRODUCTS, tile.inner)}"
        names = [name for name in items if name[1:].isdigit()]
        inner += [f"{name} = {name}.to(tl.float8e4nv, bitcast=True)" for name in names]
    for n in range(len(products)):
        left, right = (f"{side}{n}" if f"{side}{n}" in items else f"{side}0" for side in ("b", "a"))
        inner.append(f"total{n} = tl.dot({left}, {right}, total{n}{precision})")
    return [*lines, *(f"    {line}" for line in inner)]


def _describe_operands(products: Sequence[Gemm], items: dict[str, PointerOperand], tile: ProductTile) -> list[str]:
    """Lines that describe matrices to the unit that copies tiles of them; outside of a matrix it gives zeros."""
    p = products[0]
    forms = {
        "a": ((p.m, p.k), (tile.columns, tile.inner)) if p.transpose_a else ((p.k, p.m), (tile.inner, tile.columns)),
        "b": ((p.k, p.n), (tile.inner, tile.rows)) if p.transpose_b else ((p.n, p.k), (tile.rows, tile.inner)),
    }
    leading = {"a": p.lda, "b": p.ldb}
    return [
        f"{name}_tiles = tl.make_tensor_descriptor({item.name}, shape={list(forms[name[0]][0])}, "
        f"strides=[{leading[name[0]]}, 1], block_shape={list(forms[name[0]][1])})"
        for name, item in items.items()
        if name[1:].isdigit()
    ]


def _load_bulk(name: str, product: Gemm, tile: ProductTile) -> str:
    """The expression that loads a tile of an operand as it is multiplied: rows by summed, or summed by columns."""
    start, by_rows = f"step * {tile.inner}", name[0] == "b"
    line = "row" if by_rows else "column"
    summed_first = product.transpose_b if by_rows else not product.transpose_a
    where = f"{start}, {line}" if summed_first else f"{line}, {start}"
    return f"{name}_tiles.load([{where}])" + (".T" if summed_first == by_rows else "")


def _places(item: PointerOperand) -> dict[int, str]:
    places = {0: "matrix", 1: "rows[:, None]", 2: "columns[None, :]"}
    return {axis: subscript for axis, subscript in places.items() if item.strides[axis]}


def _load_added(item: PointerOperand, product: Gemm, tile: ProductTile) -> str:
    parts = [_limit("columns[None, :]", product.m, tile.columns)] if item.strides[2] else []
    if item.strides[1]:
        parts.insert(0, _limit("rows[:, None]", product.n, tile.rows))
    return item.load(_places(item), " & ".join(filter(None, parts)))


def _edge(product: Gemm, tile: ProductTile) -> str:
    parts = _limit("rows[:, None]", product.n, tile.rows), _limit("columns[None, :]", product.m, tile.columns)
    return " & ".join(filter(None, parts))


def _limit(position: str, extent: int, step: int) -> str:
    """The condition for positions inside of an extent; empty where steps fill it."""
    return f"({position} < {extent})" if extent % step else ""
