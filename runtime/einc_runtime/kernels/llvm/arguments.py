"""The arguments of machine code that takes many, by name: numbers of a call, or the values that stand for them there.

The code reads them in the order of these fields, and a call passes them in the same order. `of_...` are addresses of
arrays of scratch memory; the other addresses have strides in bytes. Nothing here needs llvmlite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import ScratchArray, address

Number = TypeVar("Number")
"""An `int` of a call, or an LLVM value."""
_Arguments = TypeVar("_Arguments")


class AttentionArguments(NamedTuple, Generic[Number]):
    """Those of `attention_code.py`."""

    heads: Number
    group: Number
    parts: Number
    table: Number
    """Of every part, as i64, the first query, the number of queries, the place of its sequence's first key, and the row
    of its sequence in the table of blocks."""
    firsts: Number
    lasts: Number
    """The first key that a query sees and the end of its keys, as i32."""
    blocks: Number
    """The table of blocks, of which a row has the numbers of the blocks of a sequence."""
    blocks_row: Number
    block_count: Number
    block_size: Number
    """Places of a block; tiles do not cross its bounds."""
    mask: Number
    q: Number
    q_head: Number
    q_token: Number
    k: Number
    k_head: Number
    k_token: Number
    v: Number
    v_head: Number
    v_token: Number
    o: Number
    o_head: Number
    o_token: Number
    lse: Number
    lse_head: Number
    lse_token: Number
    width_k: Number
    width_v: Number
    deep_k: Number
    deep_v: Number
    """The widths rounded up to whole vectors."""
    scale: Number
    """The bits of an f32."""
    tile: Number
    """Keys in a tile."""
    of_rows: Number
    of_queries: Number
    of_totals: Number
    of_scores: Number
    of_limits: Number
    of_spans: Number
    of_stats: Number
    of_keys: Number
    of_values: Number
    of_places: Number


class FewQueriesArguments(NamedTuple, Generic[Number]):
    """Those of `few_queries_code.py`."""

    heads: Number
    queries: Number
    table: Number
    """Of every query, as i64, its first key and the end of its keys; what its position is increased by to get the key
    behind its own place, from which causality and the window limit its keys further; and the row of its sequence in the
    table of blocks."""
    positions: Number
    position_step: Number
    blocks: Number
    """The table of blocks, of which a row has the numbers of the blocks of a sequence."""
    blocks_row: Number
    block_count: Number
    block_size: Number
    """Places of a block; tiles do not cross its bounds."""
    q: Number
    q_head: Number
    q_token: Number
    k: Number
    k_head: Number
    k_token: Number
    v: Number
    v_head: Number
    v_token: Number
    o: Number
    o_head: Number
    o_token: Number
    lse: Number
    lse_head: Number
    lse_token: Number
    scale: Number
    """The bits of an f32."""
    tile: Number
    """Keys in a tile, a multiple of the lanes."""
    of_queries: Number
    """[group, vectors_k, lanes]"""
    of_totals: Number
    """[group, vectors_v, lanes]"""
    of_scores: Number
    """[group, tile]"""
    of_products: Number
    """[group, lanes, lanes]"""
    of_stats: Number
    """[group, 3, lanes]: the maximum of the scores so far, that of a tile, and the sum of the weights, lane by lane."""


class FewRowsArguments(NamedTuple, Generic[Number]):
    """Those of `few_rows_code.py`. Steps are in bytes."""

    matrices: Number
    table: Number
    """For each matrix its address, that of its vectors and that of its result."""
    lines: Number
    depth: Number
    line_step: Number
    vector_step: Number
    row_step: Number
    """Between rows of the result."""
    scale: Number
    """The bits of an f32 that the result is multiplied by."""


class PanelArguments(NamedTuple, Generic[Number]):
    """Those of `row_panels_code.py`: as `FewRowsArguments`, with panels for vectors."""

    matrices: Number
    table: Number
    lines: Number
    depth: Number
    line_step: Number
    row_step: Number
    scale: Number
    rows: Number
    """Of all panels together."""


class PackArguments(NamedTuple, Generic[Number]):
    """Those of packing lines in panels in `gemm.py`."""

    matrices: Number
    table: Number
    """For each matrix the addresses of its source and of its target."""
    lines: Number
    depth: Number
    """Positions of k in a line."""
    step: Number
    """In bytes, between lines, if they are dense along k; or else between positions of k."""


class GemmArguments(NamedTuple, Generic[Number]):
    """Those of products in `gemm.py`. Steps are in bytes."""

    products: Number
    table: Number
    """For each product the addresses of its packed rows, of its columns and of its target."""
    rows: Number
    columns: Number
    depth: Number
    """Positions of k."""
    panel_step: Number
    """Between panels of columns."""
    k_step: Number
    """Between positions of k in a panel of columns."""
    row_step: Number
    """Between rows of the target."""


class QuantizedArguments(NamedTuple, Generic[Number]):
    """Those of all code that reads quantized weights, 0 where it needs none. Steps are in bytes."""

    rows: Number
    """Rows of the weight, and the bytes in each."""
    width: Number
    values: Number
    row_step: Number
    scales: Number
    scale_row: Number
    scale_step: Number
    """Between groups."""
    zeros: Number
    zero_row: Number
    zero_step: Number
    target: Number
    target_row: Number
    target_column: Number = 0  # type: ignore[assignment]
    tensor: Number = 0  # type: ignore[assignment]
    tensor_step: Number = 0  # type: ignore[assignment]
    laid: Number = 0  # type: ignore[assignment]
    """Memory where the tensor is laid out."""
    laid_step: Number = 0  # type: ignore[assignment]


class RoundingArguments(NamedTuple, Generic[Number]):
    """Those of rounding a tensor in `rounded_code.py`. Steps are in bytes."""

    tensor: Number
    tensor_step: Number
    largest: Number
    """Of each row of the tensor, its largest magnitude."""
    largest_step: Number
    integers: Number
    integer_step: Number
    units: Number
    offsets: Number
    """As in `RoundedArguments`; these are written."""
    rows: Number
    """Rows of the tensor, and the elements in each."""
    width: Number


class RoundedArguments(NamedTuple, Generic[Number]):
    """Those of products of integers in `rounded_code.py`. Steps are in bytes."""

    integers: Number
    integer_step: Number
    units: Number
    offsets: Number
    """Of each row of the tensor, what sums are multiplied by, and what is added to them before."""
    values: Number
    row_step: Number
    scales: Number
    target: Number
    target_step: Number
    tensor_rows: Number
    """Rows of the tensor."""
    rows: Number
    """Rows of the weight, and the bytes in each."""
    width: Number
    chunk: Number
    """Rows of the weight in a chunk: a multiple of `WEIGHT_ROWS`."""


class ExpertArguments(NamedTuple, Generic[Number]):
    """Those of `experts_code.py`. Steps are in bytes."""

    slots: Number
    """Of all tokens, and of each."""
    width: Number
    picks: Number
    pick_token: Number
    pick_slot: Number
    experts: Number
    lower: Number
    """The first expert that is here, and how many are."""
    experts_here: Number
    rows: Number
    row_token: Number
    row_slot: Number
    depth: Number
    target: Number
    target_token: Number
    target_slot: Number
    target_bytes: Number
    """Of a row of the result."""
    weight: Number
    weight_step: Number
    """Between experts."""
    products: Number
    """What multiplies rows, from that of the fewest on: `PRODUCT_FIELDS` numbers for each."""
    product_count: Number
    of_ends: Number
    """Where the slots of each expert end in the order of all."""
    of_order: Number
    of_gathered: Number
    gathered_step: Number
    of_results: Number


def read_arguments(e: Any, kind: type[_Arguments]) -> _Arguments:
    """The arguments of a function that an emitter makes, by name."""
    return kind(*(e.argument() for _ in kind._fields))  # type: ignore[attr-defined]


def name_heads(**arrays: Array) -> dict[str, int]:
    """For each array with a head and a token as its first axes, its address and its strides along these two."""
    named: dict[str, int] = {}
    for name, array in arrays.items():
        named |= {name: address(array), f"{name}_head": array.strides[0], f"{name}_token": array.strides[1]}
    return named


def name_scratch(arrays: Mapping[str, ScratchArray], memory: Array) -> dict[str, int]:
    """The addresses of scratch arrays in a worker's memory."""
    return {name: address(array.of(memory)) for name, array in arrays.items()}
