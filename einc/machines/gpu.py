"""What was measured of a GPU: the parameters of the forms by which `einc.predict.kernel_times` times kernels on it.

Parameters belong to a GPU and an element type. They are part of machine files, and those of known GPUs come with einc
(`gpus/`). All rates are sustained ones, and all sizes and times have their unit in their name.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated

import msgspec
from msgspec import Meta

from einc.errors import MachineError

MAX_TYPES = 16
"""There are fewer element types than that."""
MAX_KNOTS = 64
"""Knots of a curve along one axis, of which a fit has a few."""
MAX_TABLE = 10_000
"""Values of a curve over two axes: MAX_KNOTS along each, twice over."""

Positive = Annotated[float, Meta(gt=0.0, le=1e12)]
NotNegative = Annotated[float, Meta(ge=0.0, le=1e12)]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
TypeName = Annotated[str, Meta(min_length=1, max_length=8)]
Text = Annotated[str, Meta(min_length=1, max_length=400)]


class GpuPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True):
    """An object in the measured rates of a GPU. Its hash is computed once, as all of it is part of a site."""


class Knots(GpuPart, frozen=True, cache_hash=True):
    """For a size, the base-2 logarithms at which tables have values, ascending."""

    size: Annotated[str, Meta(max_length=20)]
    at: Annotated[tuple[float, ...], Meta(min_length=2, max_length=MAX_KNOTS)]


class CorrectionTable(GpuPart, frozen=True, cache_hash=True):
    """Logarithms of measured over predicted time for two or three sizes, the last one fastest."""

    sizes: Annotated[tuple[str, ...], Meta(min_length=2, max_length=3)]
    values: Annotated[tuple[Annotated[float, Meta(ge=-3.0, le=3.0)], ...], Meta(max_length=MAX_TABLE)]


class Correction(GpuPart, frozen=True, cache_hash=True):
    """What the form leaves: a sum of tables, each multilinear in the logarithms of its sizes, constant beyond them."""

    knots: Annotated[tuple[Knots, ...], Meta(max_length=8)]
    tables: Annotated[tuple[CorrectionTable, ...], Meta(max_length=8)]


class MeasuredRates(GpuPart, frozen=True, kw_only=True, cache_hash=True):
    """What all kinds of kernels have. `error`: four in five shapes that were not fitted are within this part of the
    predicted time."""

    dtype: TypeName
    multiprocessors: Count
    launch_us: NotNegative
    error: Annotated[float, Meta(ge=0.0, le=1.0)]
    memory_tbs: Positive
    overlap_norm: Annotated[float, Meta(ge=1.0, le=100.0)]
    """The p of the p-norm that joins computing and moving: large where they overlap wholly."""
    correction: Correction | None = None


class ProductRates(MeasuredRates, frozen=True, kw_only=True, cache_hash=True):
    """Products of matrices."""

    tensor_tflops: Positive
    load_gbs: Positive
    """The rate at which one multiprocessor loads operands."""
    depth_ns: NotNegative
    """Latency of a tile for each element of the inner dimension."""
    output_weight: NotNegative
    """Writing a tile: so many times the load of four bytes an element."""
    split_us: Positive
    """Splitting the inner dimension s ways costs this times ln(s)."""
    wave_rounding: Annotated[float, Meta(ge=0.0, le=1.0)]
    """From 0, the last wave of tiles is as good as full, to 1, it takes as long as a full one."""


class PrefillRates(MeasuredRates, frozen=True, kw_only=True, cache_hash=True):
    """Attention of many queries of each sequence."""

    tensor_tflops: Positive
    cache_mb: Positive
    cache_share: Positive
    """Bytes up to this share of the L2 cache cost the memory little."""
    softmax_gels: Positive
    """Scores that one multiprocessor takes through the softmax, 1e9 a second."""
    tile_us: NotNegative
    """Fixed time of a tile of queries: load, first step, output."""
    query_tile: Count
    append_passes: NotNegative
    """Passes over keys and values that the kernel also writes to a store, as what was measured does."""
    packs_groups: bool
    """Whether heads that share keys and values share tiles of queries. (With one query they always do.)"""


class DecodeRates(MeasuredRates, frozen=True, kw_only=True, cache_hash=True):
    """Attention of one new token, or a few, of each sequence."""

    cache_mb: Positive
    cache_share: Positive
    load_gbs: Positive
    multiprocessor_tflops: Positive
    """The rate of one multiprocessor, on tiles padded to `row_tile` query heads."""
    unit_us: NotNegative
    """Fixed time of one head of keys and values of one sequence."""
    head_us: NotNegative
    """Time of one query head of 128 elements on its multiprocessor, beside its keys."""
    split_us: Positive
    sequence_us: NotNegative
    """Serial time of a sequence."""
    row_tile: Count


class ExpertsRates(MeasuredRates, frozen=True, kw_only=True, cache_hash=True):
    """Products of rows with the matrices of the experts that they pick."""

    tensor_tflops: Positive
    load_gbs: Positive
    depth_ns: NotNegative
    tile_us: NotNegative
    split_us: Positive
    expert_us: NotNegative
    """Time of an expert that is picked."""


class PeerRates(GpuPart, frozen=True, kw_only=True, cache_hash=True):
    """Sums of what all GPUs have in their memory, by one kernel on each, beside its launch: the one-shot all-reduces of
    vLLM (`tests/truth/protocols.json`), which were measured with a launch of 2 us."""

    start_us: NotNegative
    """Telling the others that a kernel has begun, and waiting for them."""
    peer_us: NotNegative
    """For every other GPU."""
    gbs: Positive
    """The rate at which a GPU reads what the others have."""


class GpuRates(GpuPart, frozen=True, kw_only=True, cache_hash=True, omit_defaults=True):
    """The rates of a GPU, by kind of kernel and element type; `source` says what they were fitted to."""

    source: Text
    products: Annotated[tuple[ProductRates, ...], Meta(min_length=1, max_length=MAX_TYPES)]
    prefill: Annotated[tuple[PrefillRates, ...], Meta(max_length=MAX_TYPES)] = ()
    decode: Annotated[tuple[DecodeRates, ...], Meta(max_length=MAX_TYPES)] = ()
    experts: Annotated[tuple[ExpertsRates, ...], Meta(max_length=MAX_TYPES)] = ()
    peers: PeerRates | None = None
    measured: bool = True
    """False where nothing was measured of this GPU, and the rates are scaled from others' (`datasheets`)."""


SIZES = {
    "products": ("rows", "columns", "inner"),
    "prefill": ("queries", "all_heads", "head_size", "group", "sequences"),
    "decode": ("keys", "units", "head_size", "group", "sequences"),
    "experts": ("mean_rows", "experts", "weights", "unevenness", "share"),
}
"""The sizes that corrections of each kind may have tables for. Those of experts are alike for all products of a layer,
as whole layers were measured: `weights` is the elements of an expert's matrix, `unevenness` the rows of the busiest
expert over the mean, and `share` all picks over those of the GPU. The last two are 1 for what a plan says."""


def check_gpu(gpu: GpuRates, where: str) -> None:
    """Raises MachineError where tables do not have as many values as their knots say, or types are listed twice."""
    for kind, sizes in SIZES.items():
        listed: tuple[MeasuredRates, ...] = getattr(gpu, kind)
        for position, rates in enumerate(listed):
            at = f"{where}.{kind}[{position}]"
            if any(rates.dtype == before.dtype for before in listed[:position]):
                raise MachineError(f"{at}: '{rates.dtype}' is listed twice")
            if rates.correction is not None:
                _check_correction(rates.correction, sizes, f"{at}.correction")


def _check_correction(correction: Correction, sizes: tuple[str, ...], at: str) -> None:
    counts: dict[str, int] = {}
    for knots in correction.knots:
        if knots.size not in sizes or knots.size in counts:
            expected = ", ".join(sizes)
            raise MachineError(f"{at}.knots: expected each of {expected} once at most, found {knots.size!r}")
        if not all(a < b for a, b in itertools.pairwise(knots.at)) or not all(map(math.isfinite, knots.at)):
            raise MachineError(f"{at}.knots: those of {knots.size!r} do not ascend")
        counts[knots.size] = len(knots.at)
    for position, table in enumerate(correction.tables):
        if any(size not in counts for size in table.sizes) or len(set(table.sizes)) < len(table.sizes):
            raise MachineError(f"{at}.tables[{position}]: its sizes are not those of the knots")
        values = math.prod(counts[size] for size in table.sizes)
        if len(table.values) != values:
            raise MachineError(f"{at}.tables[{position}]: expected {values} values, found {len(table.values)}")
