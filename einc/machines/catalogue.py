"""The catalogue of GPUs: what their makers say of them, one row of `catalogue.json` for each.

A row is a starting point: what is measured of one's own GPUs belongs in a machine file. `source` names the data sheet
by which rates, memory bandwidth, links and PCIe can be checked (docs/gpus.md says which were not), `memory_source` what
said how much memory there is, or that nothing did. A GPU is found by a name that drivers, tools and people give it. No
name is guessed: the error says what is similar.

Rates of GPUs of which nothing was measured are those of a unit GPU, scaled by what their data sheets say. The unit GPU
has one multiprocessor, which multiplies at 1 TFLOP/s, 1 TB/s of memory and 1 MB of cache. Its rates were fitted to many
GPUs that were measured at once (`make fit-rates`): they are shares of what a data sheet says, or relative to the rate
of one multiprocessor, or alike for all. How far this is off for GPUs that were left out of the fit is in
docs/truth/kernels.md.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from einc.errors import UsageError
from einc.machines.gpu import Count, DecodeRates, GpuRates, MeasuredRates, Positive, Text, TypeName
from einc.machines.schema import PeakRates
from einc_runtime.text import escape_text

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


RESERVED = 1 << 30
"""Bytes of a GPU's memory that no plan may take: a context with its modules (up to 0.5 GiB), workspaces of cuBLAS
(32 MiB for each stream with products), and buffers of messages between ranks (0.4 GiB for a communicator of NCCL)."""


class LinkPorts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links of a GPU to others: how many, and the GB/s of each per direction, sustained and by its maker.

    What NCCL's rings sustain is 76% to 85% of the maker's figure, where it was measured; else `gbs` is the maker's.
    """

    kind: Literal["nvlink", "xgmi"]
    count: Count
    gbs: Positive
    peak_gbs: Positive | None = None


class Tflops(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TFLOP/s of dense products by element type; of 16 bits and less on the units for matrices, if the GPU has any."""

    f64: Positive | None = None
    f32: Positive | None = None
    f16: Positive | None = None
    bf16: Positive | None = None
    f8: Positive | None = None
    f4: Positive | None = None
    i8: Positive | None = None
    i4: Positive | None = None


class Gpu(DataSheet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the catalogue."""

    names: tuple[Text, ...]
    """Names besides `name`, without the maker's; letters and digits count alone, and their case does not."""
    maker: Literal["nvidia", "amd"]
    memory_mib: Count
    """What the driver lets programs allocate."""
    memory_source: Text
    tflops: Tflops
    links: LinkPorts | None = None
    pcie_gts: Positive
    """GT/s of a lane of PCIe; all cards have 16."""
    pcie_peers: bool = True
    """Whether its driver lets GPUs reach each other's memory over PCIe."""
    arch: tuple[Text, ...]
    """The compute capability of NVIDIA's (90 for 9.0), or the architecture as AMD's tools write it."""
    pci: tuple[Annotated[str, Meta(pattern="^0x[0-9a-f]{4}$")], ...] = ()
    """PCI device ids."""
    systems: tuple[Text, ...] = ()
    """The machines of einc that are made of it."""
    rates: str | None = None
    """The measured rates that it shares with the GPU of this name."""

    @property
    def memory_bytes(self) -> int:
        """What a plan may take."""
        return (self.memory_mib << 20) - RESERVED

    @property
    def peaks(self) -> PeakRates:
        """FLOP/s by element type, as machine files have them."""
        rates = msgspec.structs.asdict(self.tflops)
        return PeakRates(
            **{name: rate * 1e12 for name, rate in rates.items() if rate and name in PeakRates.__struct_fields__}
        )

    @property
    def pcie_gbs(self) -> float:
        return compute_pcie_gbs(self.pcie_gts, 16)


@functools.cache
def load_catalogue() -> Mapping[str, Gpu]:
    """All rows, by name."""
    text = (resources.files("einc.machines") / "catalogue.json").read_bytes()
    return {gpu.name: gpu for gpu in msgspec.json.decode(text, type=list[Gpu])}


@functools.cache
def _index_names() -> Mapping[str, Gpu]:
    """The rows by all names that they have, reduced to letters and digits."""
    index: dict[str, Gpu] = {}
    for gpu in load_catalogue().values():
        for name in (gpu.name, *gpu.names):
            if index.setdefault(_reduce_name(name), gpu) is not gpu:
                raise ValueError(f"two rows of the catalogue have the name {name}")
    return index


def _reduce_name(name: str) -> str:
    """Letters and digits of a name, without its maker: `NVIDIA A100 80GB PCIe` is `a10080gbpcie`."""
    reduced = re.sub(r"[^a-z0-9]", "", name.lower())
    for maker in ("nvidia", "amd"):
        reduced = reduced.removeprefix(maker)
    return reduced


def find_by_name(name: str) -> Gpu | None:
    """The GPU that a driver, a tool or a person calls so, or None.

    A name that ends with `...` was cut by a tool: it stands for the GPU whose names alone begin like this.
    """
    index, reduced = _index_names(), _reduce_name(name[:200])
    if name.rstrip().endswith("..."):
        starts = {gpu.name: gpu for key, gpu in index.items() if reduced and key.startswith(reduced)}
        return next(iter(starts.values())) if len(starts) == 1 else None
    return index.get(reduced)


def require_by_name(name: str) -> Gpu:
    """The GPU of a name. Raises UsageError with the most similar names for one that is not in the catalogue."""
    gpu = find_by_name(name)
    if gpu is not None:
        return gpu
    raise UsageError(
        f"no GPU is known by the name '{escape_text(name, 60)}'",
        hint=f"{suggest_names(name)}known: {list_names()}; a machine file may describe any GPU by its rates",
    )


def suggest_names(name: str) -> str:
    """`did you mean 'rtx-4090'? ` for a name that is near to one of the catalogue, else nothing."""
    names = {key: gpu.name for gpu in load_catalogue().values() for key in (gpu.name, *gpu.names)}
    written = re.sub(r"^(nvidia|amd)[ -]+", "", name.lower())
    near = difflib.get_close_matches(written[:100], sorted(names), 1, 0.7)
    return f"did you mean '{names[near[0]]}'? " if near else ""


def list_names() -> str:
    return ", ".join(load_catalogue())


def find_by_links(count: int) -> Gpu | None:
    """The first GPU of NVIDIA that has exactly this many NVLinks: V100 before others."""
    known = (gpu for key in ("v100", "a100-sxm-40gb", "h100-sxm") if (gpu := load_catalogue()[key]))
    return next((gpu for gpu in known if gpu.links is not None and gpu.links.count == count), None)


def find_by_device(pci: str | None, arch: str | None, units: int | None, links: int = 0) -> Gpu | None:
    """The GPU with this PCI device id, else the first of an architecture, if possible one that has at least so many
    links; of AMD's, with so many compute units."""
    gpus = [gpu for gpu in load_catalogue().values() if units is None or gpu.multiprocessors == units]
    named = [gpu for gpu in gpus if pci is not None and pci.lower() in gpu.pci]
    same_arch = [gpu for gpu in gpus if arch is not None and arch.lower() in gpu.arch]
    fitting = [gpu for gpu in same_arch if links <= (gpu.links.count if gpu.links is not None else 0)]
    return next(iter((*named, *fitting, *same_arch)), None)


def compute_pcie_gbs(gts: float, lanes: int) -> float:
    """GB/s per direction of a PCIe link of `lanes` at `gts` GT/s: 8b/10b coding up to 5 GT/s, 128b/130b above."""
    return round(gts / 8 * lanes * (0.8 if gts <= 5 else 128 / 130), 2)
