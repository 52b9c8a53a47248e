"""The forms of kernels' times that are fitted: what of them is free, and over which sizes they are corrected.

The forms themselves are in `einc.predict.kernel_times`, and their parameters in `einc.machines.gpu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.machines.gpu import DecodeRates, ExpertsRates, MeasuredRates, PrefillRates, ProductRates


@dataclass(frozen=True)
class Form:
    """What is fitted of the times of one kind of kernels."""

    rates: type[MeasuredRates]
    free: Mapping[str, tuple[float, float, float]]
    """Of every parameter of the unit GPU (`einc.machines.catalogue`) that is fitted: start, least and most."""
    choices: tuple[Mapping[str, Any], ...]
    """What is tried of the others."""
    knots: Mapping[str, tuple[float, ...]]
    tables: tuple[tuple[str, ...], ...]
    scale: float
    """Errors of logarithms beyond this count less than as squares."""


def log2s(values: list[float]) -> tuple[float, ...]:
    return tuple(round(float(x), 4) for x in np.log2(values))


FORMS = {
    "products": Form(
        ProductRates,
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
        ({},),
        {
            "rows": log2s([1, 16, 64, 256, 1024, 4096, 32768]),
            "columns": log2s([32, 128, 512, 2048, 8192, 65536]),
            "inner": log2s([32, 256, 1024, 4096, 65536]),
        },
        (("rows", "columns", "inner"),),
        0.08,
    ),
    "prefill": Form(
        PrefillRates,
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
        tuple(
            {"cache_mb": 1.0, "query_tile": tile, "packs_groups": packs}
            for tile in (64, 128)
            for packs in (True, False)
        ),
        {
            "queries": log2s([1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384]),
            "all_heads": log2s([1, 4, 16, 64, 256, 1024, 4096, 24576]),
            "head_size": log2s([64, 128, 256]),
            "group": log2s([1, 2, 4, 8, 16, 96]),
            "sequences": log2s([1, 4, 16, 64, 256]),
        },
        (("queries", "all_heads", "head_size"), ("group", "queries"), ("group", "all_heads"), ("sequences", "queries")),
        0.1,
    ),
    "decode": Form(
        DecodeRates,
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
        tuple({"cache_mb": 1.0, "row_tile": tile} for tile in (16, 64, 128)),
        {
            "keys": log2s([2, 8, 32, 128, 256, 512, 1024, 2048, 4096, 16384, 131072]),
            "units": log2s([1, 4, 16, 64, 256, 1024, 4096, 16384]),
            "head_size": log2s([64, 128, 256]),
            "group": log2s([1, 2, 4, 8, 16, 32, 128]),
            "sequences": log2s([1, 8, 64, 512, 2048]),
        },
        (("keys", "units", "head_size"), ("group", "units"), ("group", "keys"), ("sequences", "keys")),
        0.1,
    ),
    "experts": Form(
        ExpertsRates,
        {
            "launch_us": (40.0, 4.0, 100.0),
            "tensor_tflops": (0.7, 0.1, 1.05),
            "memory_tbs": (0.85, 0.3, 1.02),
            "load_gbs": (30.0, 2.0, 100.0),
            "depth_ns": (2.0, 0.01, 60.0),
            "tile_us": (1.0, 0.01, 20.0),
            "overlap_norm": (1.5, 1.0, 10.0),
            "expert_us": (0.02, 1e-4, 2.0),
        },
        ({"split_us": 1.0},),
        {
            "mean_rows": log2s([1, 2, 8, 32, 128, 512, 4096]),
            "experts": log2s([1, 4, 16, 64, 256, 512]),
            "weights": (17.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 26.0),
            "unevenness": log2s([1, 2, 4, 16]),
            "share": log2s([1, 4, 16, 64, 256]),
        },
        (("mean_rows", "experts", "weights"), ("mean_rows", "experts", "unevenness"), ("share", "mean_rows")),
        0.15,
    ),
}
"""By the names that the kinds of kernels have in machine files."""
