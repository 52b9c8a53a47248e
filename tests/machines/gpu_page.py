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

The column of data sheets names where a figure can be checked. What was compared with other sources since it was
entered, and agrees:

- all PCI ids: [pci.ids](https://github.com/pciutils/pciids) of August 2026. It calls 0x740c MI250 and MI250X alike, and
  0x66a0 any Radeon Instinct of its chip;
- links of `mi100` and `mi250x` (23 and 25 GT/s, two bytes wide), PCIe of `mi100`, multiprocessors and memory of
  `mi325x` and `mi355x`: ROCm's documentation;
- 16 bits, 8 bits and f32 of `a40`, 16 and 8 bits of `l4` (half of what is told with sparsity), f16 of `mi50` and
  `mi100`, 16 bits and f32 of `mi210`, 16 and 8 bits and f32 of `mi300x`, and 4 bits, too, of `mi355x`: tables of
  specifications, and of projects that model kernels, none of them the makers' sheets;
- memory bandwidth of `l4`, `l40s`, `a40`, `mi50`, `mi210`, `mi300x` and `mi325x`: the same kind of tables.

One table has twice as much for the tensor cores of `l40` as stands here; which is right was not found out. All other
rates of GPUs that are not `measured`, rates of 8 and 4 bits, and the names of clouds below were entered without the
sheets at hand, and nobody has compared them since.

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
