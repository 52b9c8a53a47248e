"""How long kernels take on a GPU that was measured: forms with a physical meaning, and small tables for the rest.

Every form is a launch and the greater of two times, joined by a p-norm: what the multiprocessors need, for tiles of
work in waves, split along the inner dimension where there are few tiles; and what the memory needs for the bytes.
Operands are read from memory: what earlier kernels may have left in the cache is not counted. Times are microseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil, exp, log, log2
from typing import TypeVar

from einc.machines.gpu import (
    Correction,
    DecodeRates,
    ExpertsRates,
    GpuRates,
    MeasuredRates,
    PrefillRates,
    ProductRates,
)
from einc.machines.model import Site
from einc_runtime.plan.work import AttentionWork, ExpertsWork, ProductWork, RecurrenceWork, Work

PRODUCT_TILES = ((16, 64), (64, 64), (128, 32), (64, 128), (128, 128), (128, 256))
"""Tiles of a product, rows by columns. The time is the least over them, as a library's heuristic picks the best."""

GROUPED_TILES = ((16, 128), (64, 128), (128, 128), (128, 256))

STEP = 64
"""The inner dimension of one step of a tile's pipeline: no split is shorter."""

KEY_BLOCK = 128
"""Keys that a tile of attention reads at once."""

SOFTMAX_NORM = 4.0
"""The norm that joins the times of products and softmax within a tile: they overlap nearly wholly."""

CACHE_POWER = 4.0
"""How sharply the cache stops helping once the bytes are beyond it."""

MAX_REMEMBERED_TIMES = 1 << 16
"""A limit of memory: times of so many different calls of kernels are kept."""

RECURRENCE_ERROR = 0.5
"""No recurrence was measured on a GPU. What a step loads may come from the second cache in half of the time, and what
several programs of a multiprocessor load may wait for each other."""

_WIDTHS = frozenset(("f16", "bf16")), frozenset(("f8e4m3", "f8e5m2"))
"""Element types that tensor cores multiply alike."""

Sizes = Mapping[str, float]

_Rates = TypeVar("_Rates", bound=MeasuredRates)


class KernelKind:
    """What errors are stated for."""

    PRODUCT, PREFILL, DECODE, EXPERTS, MEMORY = "product", "prefill", "decode", "experts", "memory"
    RECURRENCE = "recurrence"


def find_rates(listed: tuple[_Rates, ...], dtype: str) -> _Rates | None:
    """The rates for an element type. Floats of 16 bits share theirs, and so do those of 8 bits; any other type that is
    not listed has those of the first one, which `peak_share` scales."""
    width = next((types for types in _WIDTHS if dtype in types), frozenset[str]())
    names = (dtype, *sorted(width - {dtype}))
    for name in names:
        for rates in listed:
            if rates.dtype == name:
                return rates
    return listed[0] if listed else None


def classify(work: Work | None, gpu: GpuRates) -> str:
    """Which of the forms times a kernel."""
    if isinstance(work, ProductWork):
        return KernelKind.PRODUCT
    if isinstance(work, RecurrenceWork):
        return KernelKind.RECURRENCE
    if isinstance(work, ExpertsWork) and gpu.experts:
        return KernelKind.EXPERTS
    if isinstance(work, AttentionWork) and gpu.prefill:
        return KernelKind.DECODE if gpu.decode and work.queries <= work.sequences else KernelKind.PREFILL
    return KernelKind.MEMORY


def find_error(work: Work | None, precision: str, gpu: GpuRates) -> float:
    """Within which part of the predicted time four in five kernels of this kind were measured."""
    kind = classify(work, gpu)
    if kind == KernelKind.RECURRENCE:
        return RECURRENCE_ERROR
    listed: Mapping[str, tuple[MeasuredRates, ...]] = {
        KernelKind.PREFILL: gpu.prefill, KernelKind.DECODE: gpu.decode, KernelKind.EXPERTS: gpu.experts
    }  # fmt: skip
    rates = find_rates(listed.get(kind, gpu.products), precision)
    return gpu.products[0].error if rates is None else rates.error


@lru_cache(MAX_REMEMBERED_TIMES)
def time_kernel_us(
    gpu: GpuRates, work: Work | None, size: int, precision: str, itemsize: float, peak_share: float
) -> float:
    """Microseconds of a kernel that goes through `size` bytes.

    `itemsize` is the width of its operands. `peak_share` is the peak of its precision, as a part of that of 16-bit
    floats, and scales what was measured with these where the precision was not.
    """
    if isinstance(work, ProductWork):
        rates = find_rates(gpu.products, precision)
        assert rates is not None, "a machine file lists one at least"
        return time_product_us(rates, work, size, itemsize, _scale(rates, precision, peak_share))
    if isinstance(work, ExpertsWork) and gpu.experts:
        experts = find_rates(gpu.experts, precision)
        assert experts is not None
        return time_experts_us(experts, work, size, itemsize, _scale(experts, precision, peak_share))
    if isinstance(work, AttentionWork) and gpu.prefill:
        prefill = find_rates(gpu.prefill, precision)
        assert prefill is not None
        scale = _scale(prefill, precision, peak_share)
        decode = find_rates(gpu.decode, precision)
        if decode is not None and work.queries <= work.sequences:
            return time_decode_us(decode, work, size, itemsize, scale)
        return time_prefill_us(prefill, work, size, scale)
    rates = gpu.products[0]
    return size / (rates.memory_tbs * 1e6)


def time_recurrence_us(work: RecurrenceWork, flops: int, site: Site, kernel_latency_us: float) -> float:
    """Microseconds of steps that wait for each other.

    Each has launches of its own, or else loads what it reads and goes through its longest chain. Of one launch, a
    program has one lane at least: where there are fewer lanes than multiprocessors, operations take longer, too.
    """
    if work.launches:
        return work.steps * work.launches * kernel_latency_us
    latency = site.step
    waiting = latency.load_ns + work.depth * latency.function_ns + work.levels * latency.level_ns
    units = 1 if site.gpu is None else site.gpu.products[0].multiprocessors
    computing = flops / (site.peak("f32") * min(1.0, max(1, work.lanes) / units))
    return max(work.steps * waiting * 1e-3, computing * 1e6)


def _scale(rates: MeasuredRates, precision: str, peak_share: float) -> float:
    """The rate of a precision relative to the one that was measured."""
    have_one_width = any({rates.dtype, precision} <= types for types in _WIDTHS)
    return 1.0 if rates.dtype == precision or have_one_width else peak_share


def time_product_us(rates: ProductRates, work: ProductWork, size: int, itemsize: float, scale: float = 1.0) -> float:
    """Products of matrices whose tensor cores are `scale` times as fast as those that were measured."""
    rows, columns, inner = work.rows, work.columns, work.depth
    if not (work.batch and rows and columns and inner):
        return rates.launch_us + size / (rates.memory_tbs * 1e6)
    units = rates.multiprocessors
    area_us = 2e-6 * units / (rates.tensor_tflops * scale)
    load_us = itemsize * 1e-3 / rates.load_gbs
    write_us = rates.output_weight * 4e-3 / rates.load_gbs
    depth_us = rates.depth_ns * 1e-3
    work_us = float("inf")
    for tile_rows, tile_columns in PRODUCT_TILES:
        tiles = work.batch * -(-rows // tile_rows) * -(-columns // tile_columns)
        height, width = min(rows, tile_rows), min(columns, tile_columns)
        loop_us = (max(area_us * tile_rows * tile_columns, load_us * (height + width)) + depth_us) * inner
        out_us = write_us * height * width
        if tiles >= units:
            # The last wave leaves multiprocessors idle. Kernels hide a part of it, since tiles end at different times.
            waves = tiles / units
            waves += rates.wave_rounding * (ceil(waves) - waves)
            tile_us = waves * (loop_us + out_us)
        else:
            # Too few tiles for all multiprocessors, so that the inner dimension is split. With s parts the loop takes
            # loop_us / s and combining split_us * log(s). The sum is least for s = loop_us / split_us.
            splits = max(1.0, min(loop_us / rates.split_us, units // tiles, ceil(inner / STEP)))
            tile_us = loop_us / splits + out_us + rates.split_us * log(splits)
        work_us = min(work_us, tile_us)
    time_us = rates.launch_us + _join(work_us, size / (rates.memory_tbs * 1e6), rates.overlap_norm)
    if work.batch > 1:
        return time_us
    return time_us * _correct(rates.correction, size_product(work))


def _is_nothing(work: AttentionWork) -> bool:
    """Whether a plan of unknown origin, or one with empty blocks, says that nothing is computed."""
    sizes = work.heads, work.group, work.sequences, work.queries, work.pairs, work.width + work.value_width
    return 0 in sizes


def time_prefill_us(
    rates: PrefillRates, work: AttentionWork, size: int, scale: float = 1.0, stored: float = 0.0
) -> float:
    """Attention of many queries of each sequence, which also writes `stored` bytes of keys and values."""
    if _is_nothing(work):
        return rates.launch_us + size / (rates.memory_tbs * 1e6)
    sizes = size_prefill(work)
    queries, keys, head_size = sizes["queries"], work.keys / work.sequences, sizes["head_size"]
    packed = work.group if rates.packs_groups or queries <= 1 else 1
    tiles = ceil(queries * packed / rates.query_tile)
    reach = queries / tiles
    # A tile goes through the keys that its last query sees: half a tile more than its queries see in the mean.
    seen = min(work.pairs / work.queries + reach / 2, keys)
    longest = min(2 * work.pairs / work.queries + reach, keys)
    area = rates.query_tile * KEY_BLOCK
    tensor_us = 4e-6 * area * head_size * rates.multiprocessors / (rates.tensor_tflops * scale)
    softmax_us = area * 1e-3 / rates.softmax_gels
    block_us = _join(tensor_us, softmax_us, SOFTMAX_NORM)
    head_tiles = work.sequences * work.heads / packed * tiles
    all_us = head_tiles * ((seen / KEY_BLOCK + 0.5) * block_us + rates.tile_us) / rates.multiprocessors
    # Either all multiprocessors are busy, or the tile with the most keys is the last to end.
    one_us = ceil(longest / KEY_BLOCK) * block_us + rates.tile_us
    norm = rates.overlap_norm
    kept = stored * rates.append_passes
    memory_us = _find_missed_share(size + kept, rates.cache_mb, rates.cache_share) / (rates.memory_tbs * 1e6)
    time_us = rates.launch_us + _join(_join(all_us, one_us, norm), size * memory_us, norm) + kept * memory_us
    return time_us * _correct(rates.correction, sizes)


def time_decode_us(rates: DecodeRates, work: AttentionWork, size: int, itemsize: float, scale: float = 1.0) -> float:
    """Attention of one query of each sequence."""
    if _is_nothing(work):
        return rates.launch_us + size / (rates.memory_tbs * 1e6)
    sizes = size_decode(work)
    keys, head_size = sizes["keys"], sizes["head_size"]
    units = sizes["units"] * ceil(work.group / rates.row_tile)
    load_us = 2e-3 * keys * head_size * itemsize / rates.load_gbs
    padded = ceil(keys / STEP) * STEP
    tensor_us = 4e-6 * rates.row_tile * padded * head_size / (rates.multiprocessor_tflops * scale)
    loop_us = max(load_us, tensor_us)
    splits = max(1.0, min(loop_us / rates.split_us, rates.multiprocessors / units, ceil(keys / STEP)))
    waves = max(1.0, units * splits / rates.multiprocessors)
    fixed_us = rates.unit_us + rates.head_us * min(work.group, rates.row_tile) * head_size / 128.0
    work_us = waves * (loop_us / splits + fixed_us) + rates.split_us * log(splits)
    missed = _find_missed_share(size, rates.cache_mb, rates.cache_share)
    time_us = rates.launch_us + _join(work_us, size / (rates.memory_tbs * 1e6) * missed, rates.overlap_norm)
    time_us += rates.sequence_us * work.queries
    return time_us * _correct(rates.correction, sizes)


def time_experts_us(rates: ExpertsRates, work: ExpertsWork, size: int, itemsize: float, scale: float = 1.0) -> float:
    """One product of a layer of experts; what was measured are whole layers, with two of them and their routing."""
    sizes = size_experts(work)
    active, mean = sizes["experts"], sizes["mean_rows"]
    units = rates.multiprocessors
    area_us = 2e-6 * units / (rates.tensor_tflops * scale)
    load_us = itemsize * 1e-3 / rates.load_gbs
    work_us = float("inf")
    for tile_rows, tile_columns in GROUPED_TILES:
        tiles = max(1, active * ceil(mean / tile_rows) * -(-work.columns // tile_columns))
        edges = min(mean, tile_rows) + min(work.columns, tile_columns)
        loop_us = (max(area_us * tile_rows * tile_columns, load_us * edges) + rates.depth_ns * 1e-3) * work.depth
        splits = max(1.0, min(loop_us / rates.split_us, units / tiles, ceil(work.depth / STEP)))
        waves = max(1.0, tiles * splits / units)
        tile_us = waves * (loop_us / splits + rates.tile_us) + rates.split_us * log(splits)
        work_us = min(work_us, tile_us)
    joined = _join(work_us, size / (rates.memory_tbs * 1e6), rates.overlap_norm)
    time_us = (rates.launch_us + rates.expert_us * active) / 2 + joined
    return time_us * _correct(rates.correction, sizes)


def size_product(work: ProductWork) -> Sizes:
    """The sizes of a product that tables are over (`einc.machines.gpu.SIZES`)."""
    return {"rows": work.rows, "columns": work.columns, "inner": work.depth}


def size_prefill(work: AttentionWork) -> Sizes:
    """Those of attention of many queries."""
    return {
        "queries": work.queries / work.sequences,
        "all_heads": work.sequences * work.heads,
        "head_size": (work.width + work.value_width) / 2,
        "group": work.group,
        "sequences": work.sequences,
    }


def size_decode(work: AttentionWork) -> Sizes:
    """Those of attention of one query of each sequence."""
    return {
        "keys": max(1.0, work.pairs / work.queries),
        "units": work.queries * max(1, work.heads // work.group),
        "head_size": (work.width + work.value_width) / 2,
        "group": work.group,
        "sequences": work.queries,
    }


def size_experts(work: ExpertsWork) -> Sizes:
    """Those of a product with experts, whose picks are spread evenly."""
    active = max(1, min(work.experts, work.picks))
    return {
        "mean_rows": work.picks / active,
        "experts": active,
        "weights": work.columns * work.depth,
        "unevenness": 1.0,
        "share": 1.0,
    }


def _join(first: float, second: float, norm: float) -> float:
    """The greater of two times that overlap, and some of the other one."""
    most = max(first, second)
    if most <= 0:
        return most
    powers: float = (first / most) ** norm + (second / most) ** norm
    return float(most * powers ** (1 / norm))


def _find_missed_share(moved: float, cache_mb: float, cache_share: float) -> float:
    """The share of bytes that memory serves, the L2 cache the rest."""
    full: float = (moved / (cache_mb * 1e6 * cache_share)) ** CACHE_POWER
    return full / (1.0 + full)


def _correct(correction: Correction | None, sizes: Sizes) -> float:
    """What to multiply a form's time by: exp of the sum of the tables at these sizes."""
    if correction is None:
        return 1.0
    places = {knots.size: _find_place(knots.at, log2(max(1e-9, sizes[knots.size]))) for knots in correction.knots}
    total = 0.0
    for table in correction.tables:
        for position, weight in _list_corners([places[size] for size in table.sizes]):
            total += weight * table.values[position]
    return exp(total)


def _find_place(at: tuple[float, ...], x: float) -> tuple[int, float, int]:
    """The knot before x, how far x is on the way to the next, and how many knots there are."""
    last = len(at) - 1
    if x <= at[0]:
        return 0, 0.0, last + 1
    if x >= at[last]:
        return last - 1, 1.0, last + 1
    low = bisect_right(at, x) - 1
    return low, (x - at[low]) / (at[low + 1] - at[low]), last + 1


def _list_corners(places: list[tuple[int, float, int]]) -> Iterator[tuple[int, float]]:
    """The positions in a table around a place, and the weight of each; those without weight are left out."""
    corners = [(0, 1.0)]
    for low, share, count in places:
        corners = [
            (position * count + low + step, weight * part)
            for position, weight in corners
            for step, part in ((0, 1 - share), (1, share))
            if part
        ]
    return iter(corners)
