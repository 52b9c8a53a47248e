"""The forms of `einc.predict.kernel_times` over arrays of shapes, for fitting: a second implementation, with the same
parameters and the same results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from einc.machines.gpu import DecodeRates, ExpertsRates, PrefillRates, ProductRates
from einc.predict.kernel_times import CACHE_POWER, GROUPED_TILES, KEY_BLOCK, PRODUCT_TILES, SOFTMAX_NORM, STEP
from tests.rates.measurements import ELEMENT_BYTES

Array = NDArray[np.float64]


class LayerRates(ExpertsRates, frozen=True, kw_only=True):
    """A whole layer of experts, which is what was measured: also what its products do not have."""

    row_passes: float
    """Passes over the rows that are gathered, activated and summed, beside the products' own."""
    route_ns: float
    """Time of routing a token to one expert, on any GPU of the layer."""


def norm_of(first: Array, second: Array, power: float) -> Array:
    return (first**power + second**power) ** (1.0 / power)


def product_us(p: ProductRates, s: Mapping[str, Array]) -> Array:
    """`s` has rows, columns, inner, and width, the bytes of an element of the operands, if these are not 2."""
    units = p.multiprocessors
    rows, columns, inner, element_bytes = s["rows"], s["columns"], s["inner"], s.get("width", ELEMENT_BYTES)
    area_us, load_us = 2e-6 * units / p.tensor_tflops, element_bytes * 1e-3 / p.load_gbs
    write_us = p.output_weight * 4e-3 / p.load_gbs
    best: Array | None = None
    for tile_rows, tile_columns in PRODUCT_TILES:
        tiles = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        height, width = np.minimum(rows, tile_rows), np.minimum(columns, tile_columns)
        loop_us = (
            np.maximum(area_us * tile_rows * tile_columns, load_us * (height + width)) + p.depth_ns * 1e-3
        ) * inner
        out_us = write_us * height * width
        waves = tiles / units
        waves = waves + p.wave_rounding * (np.ceil(waves) - waves)
        splits = np.maximum(
            1.0, np.minimum(np.minimum(loop_us / p.split_us, np.floor(units / tiles)), np.ceil(inner / STEP))
        )
        work = np.where(
            tiles >= units, waves * (loop_us + out_us), loop_us / splits + out_us + p.split_us * np.log(splits)
        )
        best = work if best is None else np.minimum(best, work)
    assert best is not None
    moved = element_bytes * (rows + columns) * inner + ELEMENT_BYTES * rows * columns
    return p.launch_us + norm_of(best, moved / (p.memory_tbs * 1e6), p.overlap_norm)


def missed_share(moved: Array, cache_mb: float, cache_share: float) -> Array:
    full = (moved / (cache_mb * 1e6 * cache_share)) ** CACHE_POWER
    return full / (1.0 + full)


def prefill_attention_us(p: PrefillRates, s: Mapping[str, Array]) -> Array:
    """`s` has sequences, queries, heads, key_heads, head_size."""
    sequences, queries, heads, key_heads, head_size = (
        s[n] for n in ("sequences", "queries", "heads", "key_heads", "head_size")
    )
    packed = np.where((queries == 1) | p.packs_groups, heads / key_heads, 1.0)
    tiles = np.ceil(queries * packed / p.query_tile)
    reach = queries / tiles
    seen = np.minimum((queries + 1.0 + reach) / 2.0, queries)
    area = p.query_tile * KEY_BLOCK
    block_us = norm_of(
        4e-6 * area * head_size * p.multiprocessors / p.tensor_tflops, area * 1e-3 / p.softmax_gels, SOFTMAX_NORM
    )
    all_us = sequences * heads / packed * tiles * ((seen / KEY_BLOCK + 0.5) * block_us + p.tile_us) / p.multiprocessors
    one_us = np.ceil(queries / KEY_BLOCK) * block_us + p.tile_us
    kept = 2.0 * sequences * queries * key_heads * head_size * ELEMENT_BYTES * p.append_passes
    moved = 2.0 * sequences * queries * (heads * 2.0 + key_heads * ELEMENT_BYTES) * head_size
    memory_us = missed_share(moved + kept, p.cache_mb, p.cache_share) / (p.memory_tbs * 1e6)
    return (
        p.launch_us
        + norm_of(norm_of(all_us, one_us, p.overlap_norm), moved * memory_us, p.overlap_norm)
        + kept * memory_us
    )


def decode_attention_us(p: DecodeRates, s: Mapping[str, Array]) -> Array:
    """`s` has sequences, keys, heads, key_heads, head_size."""
    sequences, keys, heads, key_heads, head_size = (
        s[n] for n in ("sequences", "keys", "heads", "key_heads", "head_size")
    )
    group = heads / key_heads
    units = sequences * key_heads * np.ceil(group / p.row_tile)
    load_us = 2e-3 * keys * head_size * ELEMENT_BYTES / p.load_gbs
    tensor_us = 4e-6 * p.row_tile * np.ceil(keys / STEP) * STEP * head_size / p.multiprocessor_tflops
    loop_us = np.maximum(load_us, tensor_us)
    splits = np.maximum(
        1.0, np.minimum(np.minimum(loop_us / p.split_us, p.multiprocessors / units), np.ceil(keys / STEP))
    )
    waves = np.maximum(1.0, units * splits / p.multiprocessors)
    fixed_us = p.unit_us + p.head_us * np.minimum(group, p.row_tile) * head_size / 128.0
    work_us = waves * (loop_us / splits + fixed_us) + p.split_us * np.log(splits)
    moved = sequences * head_size * (2.0 * key_heads * keys * ELEMENT_BYTES + 4.0 * heads)
    memory_us = moved / (p.memory_tbs * 1e6) * missed_share(moved, p.cache_mb, p.cache_share)
    return p.launch_us + norm_of(work_us, memory_us, p.overlap_norm) + p.sequence_us * sequences


def experts_us(p: LayerRates, s: Mapping[str, Array]) -> Array:
    """`s` has each and count (shapes by groups), hidden, inner, routed. Gated."""
    units, each, count = p.multiprocessors, s["each"], s["count"]
    experts, rows = count.sum(1), (each * count).sum(1)
    mean = rows / experts
    area_us, load_us = 2e-6 * units / p.tensor_tflops, ELEMENT_BYTES * 1e-3 / p.load_gbs
    total = p.launch_us + p.expert_us * experts + p.route_ns * 1e-3 * s["routed"]
    for columns, depth in ((2 * s["inner"], s["hidden"]), (s["hidden"], s["inner"])):
        best: Array | None = None
        for tile_rows, tile_columns in GROUPED_TILES:
            tiles = (np.ceil(each / tile_rows) * count).sum(1) * np.ceil(columns / tile_columns)
            edges = np.minimum(mean, tile_rows) + np.minimum(columns, tile_columns)
            loop_us = (np.maximum(area_us * tile_rows * tile_columns, load_us * edges) + p.depth_ns * 1e-3) * depth
            splits = np.maximum(1.0, np.minimum(np.minimum(loop_us / p.split_us, units / tiles), np.ceil(depth / STEP)))
            waves = np.maximum(1.0, tiles * splits / units)
            work = waves * (loop_us / splits + p.tile_us) + p.split_us * np.log(splits)
            best = work if best is None else np.minimum(best, work)
        assert best is not None
        moved = ELEMENT_BYTES * (experts * columns * depth + rows * (depth + columns))
        total = total + norm_of(best, moved / (p.memory_tbs * 1e6), p.overlap_norm)
    return total + rows * (s["hidden"] + s["inner"]) * 2.0 * p.row_passes / (p.memory_tbs * 1e6)
