"""The kinds of kernels that are fitted to the tables: the sizes of their shapes, and what is wanted of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from einc.calibration.forms import FORMS, Form
from einc.machines.catalogue import DataSheet, Gpu
from einc.machines.gpu import MeasuredRates
from tests.rates.forms import Array, LayerRates, decode_attention_us, experts_us, prefill_attention_us, product_us
from tests.rates.measurements import Measured

Sizes = Mapping[str, Array]


@dataclass(frozen=True)
class Target:
    """What is wanted of the shapes that are held out."""

    median: float
    most: float
    nearly_all: float | None = None
    rank: float | None = None


@dataclass(frozen=True)
class Kind:
    form: Form
    time: Callable[[Any, Sizes], Array]
    sizes: Callable[[Sizes], dict[str, Array]]
    """The sizes that its tables are over."""
    target: Target
    field: str
    """Where a GPU has its rates."""
    has_8_bits: bool = False
    """Whether it is of floats of 8 bits, and not of the 16 bits of the data sheet."""

    def find_sheet(self, gpu: Gpu) -> DataSheet | None:
        """The data sheet with the rate of products of this type; None where the GPU multiplies none."""
        if not self.has_8_bits:
            return gpu
        peak = gpu.tflops.f8
        return None if peak is None else msgspec.structs.replace(gpu, dtype="f8e4m3", tensor_tflops=peak)


@dataclass(frozen=True)
class MeasuredShapes:
    """Shapes of the tables, as `einc.calibration.form_fit` takes them."""

    kind: Kind
    measured: Measured

    @property
    def us(self) -> Array:
        return self.measured.us

    def time(self, rates: MeasuredRates) -> Array:
        return self.kind.time(rates, self.measured.sizes)

    def sizes(self) -> dict[str, Array]:
        return self.kind.sizes(self.measured.sizes)

    def choose(self, selection: np.ndarray) -> MeasuredShapes:
        return MeasuredShapes(self.kind, self.measured.chosen(selection))


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


def name_layers(form: Form) -> Form:
    """The form of experts for whole layers."""
    free = dict(form.free)
    expert_us = free.pop("expert_us")
    free |= {"row_passes": (1.0, 0.02, 20.0), "expert_us": expert_us, "route_ns": (0.3, 1e-3, 20.0)}
    return replace(form, rates=LayerRates, free=free)


KINDS = {
    "products": Kind(
        FORMS["products"],
        product_us,
        lambda s: {name: s[name] for name in ("rows", "columns", "inner")},
        Target(0.03, 0.12, 0.25, 0.995),
        "products",
    ),
    "prefill": Kind(FORMS["prefill"], prefill_attention_us, size_prefill, Target(0.05, 0.20), "prefill"),
    "decode": Kind(FORMS["decode"], decode_attention_us, size_decode, Target(0.10, 0.25), "decode"),
    "experts": Kind(name_layers(FORMS["experts"]), experts_us, size_experts, Target(0.10, 0.25), "experts"),
}
KINDS["products of 8 bits"] = replace(KINDS["products"], has_8_bits=True)
