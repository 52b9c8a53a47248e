"""The kinds of kernels that are fitted: their forms, what of them is free, and the tables of their corrections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.machines.datasheets import DataSheet
from tests.rates.forms import Array, decode_attention_us, experts_us, prefill_attention_us, product_us

Sizes = Mapping[str, Array]
Limits = dict[str, tuple[float, float]]


def log2s(values: list[float]) -> tuple[float, ...]:
    return tuple(round(float(x), 4) for x in np.log2(values))


@dataclass(frozen=True)
class Target:
    """What is wanted of the shapes that are held out."""

    median: float
    most: float
    nearly_all: float | None = None
    rank: float | None = None


@dataclass(frozen=True)
class Kind:
    time: Callable[[Any, Sizes], Array]
    limit: Callable[[DataSheet, float], Limits]
    """For a data sheet and the least measured time, the least and the most of every parameter that is free."""
    sizes: Callable[[Sizes], dict[str, Array]]
    """The sizes that its tables are over."""
    knots: dict[str, tuple[float, ...]]
    tables: list[tuple[str, ...]]
    scale: float
    """Errors of logarithms beyond this count less than as squares."""
    target: Target


def limit_products(sheet: DataSheet, floor: float) -> Limits:
    rate, memory, unit = sheet.tensor_tflops, sheet.memory_gbs * 1e-3, sheet.tensor_tflops / sheet.multiprocessors
    return {
        "launch_us": (floor * 0.3, floor * 3),
        "tensor_tflops": (0.2 * rate, 1.05 * rate),
        "memory_tbs": (0.3 * memory, 1.02 * memory),
        "load_gbs": (unit, 200 * unit),
        "depth_ns": (0.01, 50.0),
        "output_weight": (0.05, 50.0),
        "split_us": (0.02, 20.0),
        "overlap_norm": (1.0, 12.0),
        "wave_rounding": (1e-3, 1.0),
    }


def limit_prefill(sheet: DataSheet, floor: float) -> Limits:
    rate, memory = sheet.tensor_tflops, sheet.memory_gbs * 1e-3
    return {
        "launch_us": (floor * 0.4, floor * 2),
        "tensor_tflops": (0.1 * rate, 1.05 * rate),
        "softmax_gels": (1.0, 200.0),
        "memory_tbs": (0.3 * memory, 1.02 * memory),
        "tile_us": (0.01, 20.0),
        "overlap_norm": (1.0, 10.0),
        "append_passes": (0.01, 5.0),
        "cache_share": (0.01, 2.0),
    }


def limit_decode(sheet: DataSheet, floor: float) -> Limits:
    unit, memory = sheet.tensor_tflops / sheet.multiprocessors, sheet.memory_gbs * 1e-3
    return {
        "launch_us": (floor * 0.3, floor * 3),
        "memory_tbs": (0.3 * memory, 1.02 * memory),
        "load_gbs": (2.0, 1000.0),
        "multiprocessor_tflops": (0.05 * unit, 1.1 * unit),
        "unit_us": (0.01, 20.0),
        "head_us": (1e-4, 1.0),
        "split_us": (0.02, 20.0),
        "sequence_us": (1e-5, 0.2),
        "overlap_norm": (1.0, 10.0),
        "cache_share": (0.01, 3.0),
    }


def limit_experts(sheet: DataSheet, floor: float) -> Limits:
    rate, memory, unit = sheet.tensor_tflops, sheet.memory_gbs * 1e-3, sheet.tensor_tflops / sheet.multiprocessors
    return {
        "launch_us": (floor * 0.5, floor * 2),
        "tensor_tflops": (0.1 * rate, 1.05 * rate),
        "memory_tbs": (0.3 * memory, 1.02 * memory),
        "load_gbs": (2 * unit, 100 * unit),
        "depth_ns": (0.01, 10.0),
        "tile_us": (0.01, 20.0),
        "overlap_norm": (1.0, 10.0),
        "row_passes": (0.02, 20.0),
        "expert_us": (1e-4, 2.0),
        "route_ns": (1e-3, 20.0),
    }


def size_prefill(s: Sizes) -> dict[str, Array]:
    return {
        "queries": s["queries"],
        "all_heads": s["sequences"] * s["heads"],
        "head_size": s["head_size"],
        "group": s["heads"] / s["key_heads"],
        "sequences": s["sequences"],
    }


def size_decode(s: Sizes) -> dict[str, Array]:
    return {
        "keys": s["keys"],
        "units": s["sequences"] * s["key_heads"],
        "head_size": s["head_size"],
        "group": s["heads"] / s["key_heads"],
        "sequences": s["sequences"],
    }


KINDS = {
    "products": Kind(
        product_us,
        limit_products,
        lambda s: {name: s[name] for name in ("rows", "columns", "inner")},
        {
            "rows": log2s([1, 16, 64, 256, 1024, 4096, 32768]),
            "columns": log2s([32, 128, 512, 2048, 8192, 65536]),
            "inner": log2s([32, 256, 1024, 4096, 65536]),
        },
        [("rows", "columns", "inner")],
        0.08,
        Target(0.03, 0.12, 0.25, 0.995),
    ),
    "prefill": Kind(
        prefill_attention_us,
        limit_prefill,
        size_prefill,
        {
            "queries": log2s([1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384]),
            "all_heads": log2s([1, 4, 16, 64, 256, 1024, 4096, 24576]),
            "head_size": log2s([64, 128, 256]),
            "group": log2s([1, 2, 4, 8, 16, 96]),
            "sequences": log2s([1, 4, 16, 64, 256]),
        },
        [("queries", "all_heads", "head_size"), ("group", "queries"), ("group", "all_heads"), ("sequences", "queries")],
        0.1,
        Target(0.05, 0.20),
    ),
    "decode": Kind(
        decode_attention_us,
        limit_decode,
        size_decode,
        {
            "keys": log2s([2, 8, 32, 128, 256, 512, 1024, 2048, 4096, 16384, 131072]),
            "units": log2s([1, 4, 16, 64, 256, 1024, 4096, 16384]),
            "head_size": log2s([64, 128, 256]),
            "group": log2s([1, 2, 4, 8, 16, 32, 128]),
            "sequences": log2s([1, 8, 64, 512, 2048]),
        },
        [("keys", "units", "head_size"), ("group", "units"), ("group", "keys"), ("sequences", "keys")],
        0.1,
        Target(0.10, 0.25),
    ),
    # Tables of whole layers would not be of use for their products, which is what einc times.
    "experts": Kind(experts_us, limit_experts, dict, {}, [], 0.15, Target(0.10, 0.25)),
}
