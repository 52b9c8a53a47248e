"""What topology files do not say: the memory, speed and links of the GPUs that they name or imply.

The figures are the vendor's nominal ones, with measured rates where there are any. A row is a starting point: what is
measured of one's own GPUs belongs in the machine file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from einc.machines.load import load_gpu
from einc.machines.model import Site


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model: its site, how many NVLinks it has, GB/s per link and direction, GT/s per PCIe lane."""

    key: str
    site: Site
    links: int
    link_gbs: float
    pcie_gts: float
    sm: int
    pci_devices: tuple[str, ...]

    @property
    def pcie_gbs(self) -> float:
        return compute_pcie_gbs(self.pcie_gts, 16)


def _make_site(
    hbm_gbs: float, gib: int, tflops_f16: float, tflops_f32: float, *, bf16: bool = True, measured: str = ""
) -> Site:
    flops = (("f16", tflops_f16 * 1e12), ("f32", tflops_f32 * 1e12))
    peaks = (("bf16", tflops_f16 * 1e12), *flops) if bf16 else flops
    rates = (measured, load_gpu(measured)) if measured else ()
    return Site(float(hbm_gbs), gib * 2**30, peaks, (), *rates)


GPUS = {
    gpu.key: gpu
    for gpu in (
        Gpu("p100", _make_site(732, 16, 21.2, 10.6, bf16=False), 4, 20, 8, 60, ("0x15f9",)),
        Gpu("v100", _make_site(900, 32, 125, 15.7, bf16=False), 6, 25, 8, 70, ("0x1db5", "0x1db8")),
        Gpu("v100-16gb", _make_site(900, 16, 125, 15.7, bf16=False), 6, 25, 8, 70, ("0x1db1",)),
        Gpu("a100", _make_site(1555, 40, 312, 19.5, measured="a100-sxm"), 12, 25, 16, 80, ("0x20b0", "0x20f1")),
        Gpu("a100-80gb", _make_site(2039, 80, 312, 19.5, measured="a100-sxm"), 12, 25, 16, 80, ("0x20b2", "0x20b5")),
        Gpu("h100", _make_site(3350, 80, 989, 67, measured="h100-sxm"), 18, 25, 32, 90, ("0x2330",)),
        Gpu("h200", _make_site(4800, 140, 989, 67, measured="h200-sxm"), 18, 25, 32, 90, ("0x2335",)),
        Gpu("b200", _make_site(8000, 179, 2250, 75, measured="b200-sxm"), 18, 50, 32, 100, ("0x2901",)),
        Gpu("gb200", _make_site(8000, 186, 2500, 80, measured="gb200"), 18, 50, 32, 100, ("0x2941",)),
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
    found = re.search(r"\b(P100|V100|A100|H100|H200|GB200|B200)(?![0-9])", name.upper())
    if found is None:
        return None
    key = found[1].lower()
    size = re.search(r"\b([0-9]{2,3}) ?GB", name.upper())
    variant = f"{key}-{size[1]}gb" if size else key
    return GPUS.get(variant, GPUS[key])


def compute_pcie_gbs(gts: float, lanes: int) -> float:
    """GB/s per direction of a PCIe link of `lanes` at `gts` GT/s: 8b/10b coding up to 5 GT/s, 128b/130b above."""
    return round(gts / 8 * lanes * (0.8 if gts <= 5 else 128 / 130), 2)
