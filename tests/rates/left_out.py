"""GPUs that were left out: products that are predicted from a data sheet, by what was fitted to other GPUs.

One set of parameters relative to the data sheet is fitted to all other GPUs at once, without tables. A twin is a GPU
with the same chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.optimize import least_squares

from einc.machines.datasheets import RelativeRates, find_datasheet, load_datasheets, scale_products
from tests.rates.fit import Accuracy, measure_accuracy
from tests.rates.forms import Array, product_us
from tests.rates.measurements import Measured

SIX = ("a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "l40s")
"""The GPUs that the relative parameters are fitted to."""

TWINS = {"h100-sxm": "h200-sxm", "h200-sxm": "h100-sxm", "b200-sxm": "gb200", "gb200": "b200-sxm"}

FITTED = 1500
"""Shapes of each GPU that a fit looks at, a random part."""

LIMITS = (
    RelativeRates.__struct_fields__,
    {
        "launch_us": (0.5, 6.0),
        "tensor_share": (0.3, 1.05),
        "memory_share": (0.4, 1.02),
        "load_gbs_per_tflops": (2.0, 200.0),
        "depth_ns_tflops": (0.1, 100.0),
        "output_weight": (0.1, 20.0),
        "split_us": (0.05, 10.0),
        "overlap_norm": (1.0, 12.0),
        "wave_rounding": (1e-3, 1.0),
    },
)


@dataclass(frozen=True)
class LeftOut:
    gpu: str
    without: tuple[str, ...]
    """The GPUs of the six that the parameters were not fitted to."""
    accuracy: Accuracy


def predict_products(gpu: str, relative: RelativeRates, measured: Measured) -> Array:
    return product_us(scale_products(find_datasheet(gpu), relative, 0.0), measured.sizes)


def fit_relative(measured: Mapping[str, Measured], gpus: Sequence[str]) -> RelativeRates:
    """The parameters of least robust error over all of these GPUs, each with as many shapes."""
    names, limits = LIMITS
    part = {gpu: measured[gpu].chosen(choose(measured[gpu])) for gpu in gpus}

    def relative_of(x: Array) -> RelativeRates:
        return RelativeRates(**dict(zip(names, map(float, np.exp(x)), strict=True)))

    def find_errors(x: Array) -> Array:
        relative = relative_of(x)
        return np.concatenate([np.log(part[gpu].us / predict_products(gpu, relative, part[gpu])) for gpu in gpus])

    least, most = (np.log([limits[name][i] for name in names]) for i in (0, 1))
    first = np.log([getattr(load_datasheets().relative, name) for name in names])
    solution = least_squares(
        find_errors, first, bounds=(least, most), loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=60
    )
    return relative_of(solution.x)


def choose(measured: Measured) -> Array:
    return np.random.default_rng(0).permutation(len(measured.us))[:FITTED]


def leave_out(measured: Mapping[str, Measured]) -> tuple[list[LeftOut], RelativeRates]:
    """Each GPU, predicted by others, and the parameters that are fitted to all six."""
    table = []
    for gpu in SIX:
        for without in ((gpu,), (gpu, TWINS[gpu])) if gpu in TWINS else ((gpu,),):
            relative = fit_relative(measured, [name for name in SIX if name not in without])
            table.append(LeftOut(gpu, without, check(gpu, relative, measured[gpu])))
    relative = fit_relative(measured, SIX)
    table += [LeftOut(gpu, (), check(gpu, relative, measured[gpu])) for gpu in measured if gpu not in SIX]
    return table, relative


def check(gpu: str, relative: RelativeRates, measured: Measured) -> Accuracy:
    return measure_accuracy(measured.us, predict_products(gpu, relative, measured))


def describe(relative: RelativeRates) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in msgspec.structs.asdict(relative).items())
