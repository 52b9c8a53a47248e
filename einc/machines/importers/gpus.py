"""What topology files do not say: the memory, speed and links of the GPUs that they name or imply.

A row is a starting point: what is measured of one's own GPUs belongs in the machine file. Peaks are the vendor's.
Memory is what CUDA reports of such a GPU (`cudaMemGetInfo`; docs/machines.md has the sources), less `RESERVED`. The
rate of a link is what NCCL's rings sustain on it, where that was measured (76% to 85% of the nominal rate), and else
nominal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from einc.machines.load import load_gpu
from einc.machines.model import Site

RESERVED = 1 << 30
"""Bytes of a GPU's memory that no plan may take: a context with its modules (up to 0.5 GiB), workspaces of cuBLAS
(32 MiB for each stream with products), and buffers of messages between ranks (0.4 GiB for a communicator of NCCL)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model: its site, how many NVLinks it has, GB/s per link and direction (sustained, and by its maker), GT/s
    per PCIe lane."""

    key: str
    site: Site
    links: int
    link_gbs: float
    peak_link_gbs: float
    pcie_gts: float
    sm: int
    pci_devices: tuple[str, ...]

    @property
    def pcie_gbs(self) -> float:
        return compute_pcie_gbs(self.pcie_gts, 16)


def _make_site(
    hbm_gbs: float, mib: int, tflops_f16: float, tflops_f32: float, *, bf16: bool = True, measured: str = ""
) -> Site:
    flops = (("f16", tflops_f16 * 1e12), ("f32", tflops_f32 * 1e12))
    peaks = (("bf16", tflops_f16 * 1e12), *flops) if bf16 else flops
    rates = (measured, load_gpu(measured)) if measured else ()
    return Site(float(hbm_gbs), mib * 2**20 - RESERVED, peaks, (), *rates)


GPUS = {
    gpu.key: gpu
    for gpu in (
        Gpu("p100", _make_site(732, 16276, 21.2, 10.6, bf16=False), 4, 20, 20, 8, 60, ("0x15f9",)),
        Gpu("v100", _make_site(900, 32500, 125, 15.7, bf16=False), 6, 25, 25, 8, 70, ("0x1db5", "0x1db8")),
        Gpu("v100-16gb", _make_site(900, 16128, 125, 15.7, bf16=False), 6, 25, 25, 8, 70, ("0x1db1",)),
        Gpu(
            "a100", _make_site(1555, 40336, 312, 19.5, measured="a100-sxm"), 12, 19.1, 25, 16, 80, ("0x20b0", "0x20f1")
        ),
        Gpu(
            "a100-80gb",
            _make_site(2039, 81050, 312, 19.5, measured="a100-sxm"),
            12,
            19.1,
            25,
            16,
            80,
            ("0x20b2", "0x20b5"),
        ),
        Gpu("h100", _make_site(3350, 81009, 989, 67, measured="h100-sxm"), 18, 19.8, 25, 32, 90, ("0x2330",)),
        Gpu("h200", _make_site(4800, 143155, 989, 67, measured="h200-sxm"), 18, 20, 25, 32, 90, ("0x2335",)),
        Gpu("b200", _make_site(8000, 182630, 2250, 75, measured="b200-sxm"), 18, 42.5, 50, 32, 100, ("0x2901",)),
        Gpu("gb200", _make_site(8000, 188733, 2500, 80, measured="gb200"), 18, 41.3, 50, 32, 100, ("0x2941",)),
    )
}
"""By the name that `--gpu` takes; if several share an `sm`, the first is taken for it."""

MAX_LINKS = max(gpu.links for gpu in GPUS.values())


def find_by_links(count: int) -> Gpu | None:
    """The first model that has exactly this many NVLinks, V100 before others."""
    return next((gpu for gpu in GPUS.values() if gpu.links == count), None)


def find_by_pci(device: str | None, sm: int | None) -> Gpu | None:
    """The model with this PCI device id, else the first with this compute capability (70 for 7.0)."""
    exact = next((gpu for gpu in GPUS.values() if device is not None and device.lower() in gpu.pci_devices), None)
    return exact or next((gpu for gpu in GPUS.values() if gpu.sm == sm), None)


def find_by_name(name: str) -> Gpu | None:
    """The model that a driver calls `name`, such as "NVIDIA A100-SXM4-80GB"."""
    match = re.search(r"\b(P100|V100|A100|H100|H200|GB200|B200)(?![0-9])", name.upper())
    if match is None:
        return None
    key = match[1].lower()
    size = re.search(r"\b([0-9]{2,3}) ?GB", name.upper())
    variant = f"{key}-{size[1]}gb" if size else key
    return GPUS.get(variant, GPUS[key])


def compute_pcie_gbs(gts: float, lanes: int) -> float:
    """GB/s per direction of a PCIe link of `lanes` at `gts` GT/s: 8b/10b coding up to 5 GT/s, 128b/130b above."""
    return round(gts / 8 * lanes * (0.8 if gts <= 5 else 128 / 130), 2)
