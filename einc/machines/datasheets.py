"""GPUs of which nothing was measured: products of matrices, scaled from what their data sheets say.

One set of parameters relative to the data sheet was fitted to the GPUs that were measured (`datasheets.json`). How far
it is off for a GPU that was left out is in docs/truth/kernels.md. Attention and experts are left at the peaks.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta

from einc.machines.gpu import Count, GpuRates, NotNegative, Positive, ProductRates, Text, TypeName

SCALED = ("memory_tbs", "tensor_tflops", "load_gbs", "depth_ns")


class DataSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU's maker says of it: dense rates of products of `dtype`, which are sums in f32."""

    name: Text
    multiprocessors: Count
    """Of AMD's GPUs, the compute units."""
    dtype: TypeName
    tensor_tflops: Positive
    memory_gbs: Positive
    source: Text


class RelativeRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of products, relative to a data sheet; the rate of a multiprocessor is its share of the peak."""

    launch_us: NotNegative
    tensor_share: Positive
    memory_share: Positive
    load_gbs_per_tflops: Positive
    """For each TFLOP/s of a multiprocessor."""
    depth_ns_tflops: NotNegative
    """The latency of an element of the inner dimension, times the TFLOP/s of a multiprocessor."""
    output_weight: NotNegative
    split_us: Positive
    overlap_norm: Annotated[float, Meta(ge=1.0, le=100.0)]
    wave_rounding: Annotated[float, Meta(ge=0.0, le=1.0)]


class DataSheets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`error`: four in five products of a GPU that was left out are within this part of the predicted time."""

    relative: RelativeRates
    error: Annotated[float, Meta(ge=0.0, le=1.0)]
    gpus: tuple[DataSheet, ...]


@functools.cache
def load_datasheets() -> DataSheets:
    """All data sheets that come with einc, also of GPUs that were measured."""
    text = (resources.files("einc.machines") / "datasheets.json").read_text("utf-8")
    return msgspec.json.decode(text, type=DataSheets)


@functools.cache
def list_datasheets() -> tuple[str, ...]:
    """The names of the GPUs that have a data sheet here, in ascending order."""
    return tuple(sorted(sheet.name for sheet in load_datasheets().gpus))


def find_datasheet(name: str) -> DataSheet:
    return next(sheet for sheet in load_datasheets().gpus if sheet.name == name)


@functools.cache
def scale_rates(name: str) -> GpuRates:
    """The rates of a GPU that was not measured."""
    sheets, sheet = load_datasheets(), find_datasheet(name)
    source = f"scaled to the data sheet from GPUs that were measured: {sheet.source}"
    exact = scale_products(sheet, sheets.relative, sheets.error)
    scaled = {name: float(f"{getattr(exact, name):.4g}") for name in SCALED}
    products = msgspec.structs.replace(exact, **scaled)
    return GpuRates(source=source, products=(products,), measured=False)


def scale_products(sheet: DataSheet, relative: RelativeRates, error: float) -> ProductRates:
    unit_tflops = sheet.tensor_tflops / sheet.multiprocessors
    return ProductRates(
        dtype=sheet.dtype,
        multiprocessors=sheet.multiprocessors,
        launch_us=relative.launch_us,
        error=error,
        memory_tbs=relative.memory_share * sheet.memory_gbs * 1e-3,
        overlap_norm=relative.overlap_norm,
        tensor_tflops=relative.tensor_share * sheet.tensor_tflops,
        load_gbs=relative.load_gbs_per_tflops * unit_tflops,
        depth_ns=relative.depth_ns_tflops / unit_tflops,
        output_weight=relative.output_weight,
        split_us=relative.split_us,
        wave_rounding=relative.wave_rounding,
    )
