"""The catalogue of GPUs: what their makers say of them, one row of `catalogue.json` for each.

A row is a starting point: what is measured of one's own GPUs belongs in a machine file. `source` names the data sheet
by which rates, memory bandwidth, links and PCIe can be checked (docs/gpus.md says which were not), `memory_source` what
said how much memory there is, or that nothing did. A GPU is found by a name that drivers, tools and people give it. No
name is guessed: the error says what is similar.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from einc.errors import UsageError
from einc.machines.datasheets import DataSheet
from einc.machines.gpu import Count, Positive, Text
from einc.machines.schema import PeakRates
from einc_runtime.text import escape_text

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
    near = difflib.get_close_matches(written[:100], sorted(names), 1, 0.5)
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
