"""Writes docs/gpus.md, the catalogue of GPUs and the instances of clouds: `python -m tests.machines.gpu_page`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import msgspec

from einc.machines.catalogue import Gpu, load_catalogue
from einc.machines.load import list_gpus

PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"
INTRODUCTION = """# GPUs that einc knows

This page is written from the catalogue (`einc/machines/catalogue.json`) by `python -m tests.machines.gpu_page`. A GPU
is found by each of its names, however it is written: case, spaces and hyphens do not matter, and `NVIDIA` or `AMD` may
stand before it. [machines.md](machines.md#gpus) says what the catalogue is used for.

## Rates

TFLOP/s are those of dense products; of 16 bits and less those of the units for matrices, with sums in f32 where the
data sheet tells. "GiB" is what programs can allocate, less the 1 GiB that plans leave free. `measured` GPUs have
kernels whose times were fitted to measurements, others such that are scaled from the data sheet.

The column of data sheets names where a figure can be checked. Rates of GPUs that are not `measured`, of 8 and 4 bits,
and PCI ids were entered without the sheets at hand, and nobody has compared them since. The same holds for the names of
clouds below.

| GPU | GiB | GB/s | f16 or bf16 | f32 | f64 | f8 | i8 | f4 | kernels | data sheet |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |
"""
LINKS = """
## Links, and what identifies a GPU

GB/s per direction: of one link, sustained (and by its maker), and of PCIe with 16 lanes. "No" peers means that the
driver does not let such GPUs reach each other's memory over PCIe.

| GPU | links | PCIe | peers | PCI ids | other names | machines | source of the memory |
| --- | --- | ---: | --- | --- | --- | --- | --- |
"""
INSTANCES = """
## Instances of clouds

`-m` also takes these names. The page of the cloud about its accelerated instances says which GPUs they have, and how
these are joined.

| name | machine | source |
| --- | --- | --- |
"""


def write_page() -> str:
    gpus = load_catalogue().values()
    entries = json.loads((resources.files("einc.machines") / "instances.json").read_bytes())
    return "".join(
        (
            INTRODUCTION,
            *(_format_rates(gpu) for gpu in gpus),
            LINKS,
            *(_format_links(gpu) for gpu in gpus),
            INSTANCES,
            *(f"| `{entry['name']}` | `{entry['machine']}` | {entry['source']} |\n" for entry in entries),
        )
    )


def _format_rates(gpu: Gpu) -> str:
    rates = msgspec.structs.asdict(gpu.tflops)
    half = [rate for rate in (rates["bf16"], rates["f16"]) if rate]
    cells = [
        f"{max(half):g}",
        *(f"{rates[name]:g}" if rates[name] else "" for name in ("f32", "f64", "f8", "i8", "f4")),
    ]
    kernels = "measured" if (gpu.rates or gpu.name) in list_gpus() else "scaled"
    memory = f"{gpu.memory_bytes / 2**30:.1f}"
    return f"| `{gpu.name}` | {memory} | {gpu.memory_gbs:g} | {' | '.join(cells)} | {kernels} | {gpu.source} |\n"


def _format_links(gpu: Gpu) -> str:
    links = ""
    if gpu.links is not None:
        kind = {"nvlink": "NVLinks", "xgmi": "xGMI links"}[gpu.links.kind]
        peak = f" ({gpu.links.peak_gbs:g})" if gpu.links.peak_gbs else ""
        links = f"{gpu.links.count} {kind} of {gpu.links.gbs:g}{peak}"
    cells = (
        f"`{gpu.name}`", links, f"{gpu.pcie_gbs:g}", "yes" if gpu.pcie_peers else "no", ", ".join(gpu.pci),
        ", ".join(gpu.names), ", ".join(f"`{name}`" for name in gpu.systems), gpu.memory_source,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
