"""GPUs of which nothing was measured: their rates are those of a unit GPU, scaled by what their data sheets say.

The unit GPU has one multiprocessor, which multiplies at 1 TFLOP/s, 1 TB/s of memory and 1 MB of cache. Its rates were
fitted to many GPUs that were measured at once (`make fit-rates`): they are shares of what a data sheet says, or
relative to the rate of one multiprocessor, or alike for all. How far this is off for GPUs that were left out of the fit
is in docs/truth/kernels.md.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import TypeVar

import msgspec

from einc.machines.gpu import Count, DecodeRates, GpuRates, MeasuredRates, Positive, Text, TypeName

_Rates = TypeVar("_Rates", bound=MeasuredRates)

CYCLES = ("launch_us", "tile_us", "unit_us", "head_us", "split_us", "sequence_us", "expert_us", "route_ns")
"""Times that are so many cycles of the clock."""


class DataSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU's maker says of it."""

    name: Text
    multiprocessors: Count
    """Of AMD's GPUs, the compute units."""
    clock_ghz: Positive
    """At which it multiplies at `tensor_tflops`."""
    dtype: TypeName
    """The 16-bit floats of the products that the rate is that of."""
    tensor_tflops: Positive
    """Of dense products, with sums in f32."""
    memory_gbs: Positive
    memory_gb: Positive
    cache_mb: Positive
    """The last cache before the memory: L2, or the Infinity Cache of newer GPUs of AMD."""
    source: Text


@functools.cache
def load_unit_gpu() -> GpuRates:
    return msgspec.json.decode((resources.files("einc.machines") / "unit_gpu.json").read_bytes(), type=GpuRates)


def scale_gpu(unit: GpuRates, sheet: DataSheet) -> GpuRates:
    return GpuRates(
        source=f"scaled by its data sheet from GPUs that were measured: {sheet.source}",
        products=tuple(round_rates(scale_rates(rates, sheet)) for rates in unit.products),
        prefill=tuple(round_rates(scale_rates(rates, sheet)) for rates in unit.prefill),
        decode=tuple(round_rates(scale_rates(rates, sheet)) for rates in unit.decode),
        experts=tuple(round_rates(scale_rates(rates, sheet)) for rates in unit.experts),
        measured=False,
    )


def scale_rates(unit: _Rates, sheet: DataSheet) -> _Rates:
    """Rates of the unit GPU as those of another one."""
    factors = find_factors(type(unit), sheet)
    scaled = {name: getattr(unit, name) * factor for name, factor in factors.items()}
    return msgspec.structs.replace(unit, dtype=sheet.dtype, multiprocessors=sheet.multiprocessors, **scaled)


def find_factors(kind: type[MeasuredRates], sheet: DataSheet) -> dict[str, float]:
    """By what to multiply which rates of the unit GPU. All others are alike for all GPUs."""
    tflops = sheet.tensor_tflops / sheet.multiprocessors
    factors = {
        "tensor_tflops": sheet.tensor_tflops,
        "memory_tbs": sheet.memory_gbs * 1e-3,
        "cache_mb": sheet.cache_mb,
        "multiprocessor_tflops": tflops,
        "load_gbs": 1.0 if issubclass(kind, DecodeRates) else tflops,  # one query multiplies little of what it loads
        "softmax_gels": tflops,
        "depth_ns": 1 / tflops,
        **dict.fromkeys(CYCLES, 1 / sheet.clock_ghz),
    }
    return {name: factor for name, factor in factors.items() if name in kind.__struct_fields__}


def round_rates(rates: _Rates) -> _Rates:
    """Rates to four digits, which is more than is known of them."""
    fields = msgspec.structs.asdict(rates)
    rounded = {name: float(f"{value:.4g}") for name, value in fields.items() if isinstance(value, float)}
    return msgspec.structs.replace(rates, **rounded)
