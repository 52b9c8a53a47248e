"""The kinds of kernels that are fitted: their forms, what of them is free, and the tables of their corrections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.machines.gpu import DecodeRates, MeasuredRates, PrefillRates, ProductRates
from tests.rates.forms import Array, LayerRates, decode_attention_us, experts_us, prefill_attention_us, product_us

Sizes = Mapping[str, Array]


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
    rates: type[MeasuredRates]
    time: Callable[[Any, Sizes], Array]
    free: dict[str, tuple[float, float, float]]
    """Of every parameter of the unit GPU (`einc.machines.datasheets`) that is fitted: start, least and most."""
    choices: list[dict[str, Any]]
    """What is tried of the others."""
    sizes: Callable[[Sizes], dict[str, Array]]
    """The sizes that its tables are over."""
    knots: dict[str, tuple[float, ...]]
    tables: list[tuple[str, ...]]
    scale: float
    """Errors of logarithms beyond this count less than as squares."""
    target: Target


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


def size_experts(s: Sizes) -> dict[str, Array]:
    rows, experts = (s["each"] * s["count"]).sum(1), s["count"].sum(1)
    return {
        "mean_rows": rows / experts,
        "experts": experts,
        "weights": s["hidden"] * s["inner"],
        "unevenness": s["each"].max(1) / (rows / experts),
        "share": s["routed"] / np.minimum(rows, s["routed"]),
    }


KINDS = {
    "products": Kind(
        ProductRates,
        product_us,
        {
            "launch_us": (4.0, 0.5, 8.0),
            "tensor_tflops": (0.85, 0.2, 1.05),
            "memory_tbs": (0.85, 0.3, 1.02),
            "load_gbs": (20.0, 1.0, 200.0),
            "depth_ns": (6.0, 0.03, 200.0),
            "output_weight": (2.0, 0.05, 50.0),
            "split_us": (2.0, 0.02, 20.0),
            "overlap_norm": (3.0, 1.0, 12.0),
            "wave_rounding": (0.1, 1e-3, 1.0),
        },
        [{}],
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
        PrefillRates,
        prefill_attention_us,
        {
            "launch_us": (15.0, 1.0, 25.0),
            "tensor_tflops": (0.7, 0.1, 1.05),
            "softmax_gels": (2.0, 0.3, 70.0),
            "memory_tbs": (0.8, 0.3, 1.02),
            "tile_us": (3.0, 0.01, 20.0),
            "overlap_norm": (1.5, 1.0, 10.0),
            "append_passes": (1.5, 0.01, 5.0),
            "cache_share": (0.5, 0.01, 2.0),
        },
        [{"cache_mb": 1.0, "query_tile": tile, "packs_groups": packs} for tile in (64, 128) for packs in (True, False)],
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
        DecodeRates,
        decode_attention_us,
        {
            "launch_us": (13.0, 1.0, 25.0),
            "memory_tbs": (0.85, 0.3, 1.02),
            "load_gbs": (60.0, 2.0, 1000.0),
            "multiprocessor_tflops": (0.5, 0.05, 1.1),
            "unit_us": (1.0, 0.01, 20.0),
            "head_us": (0.03, 1e-4, 1.0),
            "split_us": (1.5, 0.02, 20.0),
            "sequence_us": (0.01, 1e-5, 0.2),
            "overlap_norm": (3.0, 1.0, 10.0),
            "cache_share": (0.3, 0.01, 3.0),
        },
        [{"cache_mb": 1.0, "row_tile": tile} for tile in (16, 64, 128)],
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
    "experts": Kind(
        LayerRates,
        experts_us,
        {
            "launch_us": (40.0, 4.0, 100.0),
            "tensor_tflops": (0.7, 0.1, 1.05),
            "memory_tbs": (0.85, 0.3, 1.02),
            "load_gbs": (30.0, 2.0, 100.0),
            "depth_ns": (2.0, 0.01, 60.0),
            "tile_us": (1.0, 0.01, 20.0),
            "overlap_norm": (1.5, 1.0, 10.0),
            "row_passes": (1.0, 0.02, 20.0),
            "expert_us": (0.02, 1e-4, 2.0),
            "route_ns": (0.3, 1e-3, 20.0),
        },
        [{"split_us": 1.0}],
        size_experts,
        {
            "mean_rows": log2s([1, 2, 8, 32, 128, 512, 4096]),
            "experts": log2s([1, 4, 16, 64, 256, 512]),
            "weights": (17.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 26.0),
            "unevenness": log2s([1, 2, 4, 16]),
            "share": log2s([1, 4, 16, 64, 256]),
        },
        [("mean_rows", "experts", "weights"), ("mean_rows", "experts", "unevenness"), ("share", "mean_rows")],
        0.15,
        Target(0.10, 0.25),
    ),
}
