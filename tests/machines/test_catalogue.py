"""The catalogue of GPUs: rows that agree with themselves and have a source, and names that find them."""

import pytest

from einc.machines.catalogue import find_by_device, find_by_name, load_catalogue
from einc.machines.load import build_gpu_site, list_presets, load_machine
from tests.machines import gpu_page

GPUS = load_catalogue()


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_row_agrees_with_itself(gpu):
    """Rates of 16 bits are those of the units for matrices, narrower ones are faster, and memory is less than sold."""
    rates = gpu.tflops
    assert gpu.source
    assert gpu.memory_source
    assert rates.f16 or rates.bf16
    assert (rates.bf16 if gpu.dtype == "bf16" else rates.f16) == gpu.tensor_tflops
    assert rates.f32 <= gpu.tensor_tflops
    for narrow, factor in (("f8", 2), ("f4", 4)):
        if rate := getattr(rates, narrow):
            assert rate >= factor * 0.99 * gpu.tensor_tflops
    assert 0.87 * gpu.memory_gb * 1e9 < gpu.memory_mib * 2**20 < 1.075 * gpu.memory_gb * 1e9
    assert gpu.links is None or gpu.links.gbs <= (gpu.links.peak_gbs or gpu.links.gbs)
    site = build_gpu_site(gpu)
    assert dict(site.flops)["f32"] == rates.f32 * 1e12
    assert site.gpu is not None
    for name in gpu.systems:
        machine = load_machine(name)
        assert {dict(each.flops).get("bf16") for each in machine.sites} == {dict(site.flops).get("bf16")}
        assert name in list_presets()


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_all_names_of_a_row_find_it(gpu):
    maker = gpu.maker.upper()
    for name in (gpu.name, *gpu.names):
        for written in (name, name.upper(), f"{maker} {name}", name.replace("-", " "), name.replace(" ", "_")):
            assert find_by_name(written) is gpu
    for device in gpu.pci:
        assert find_by_device(device, None, None) is gpu


def test_the_gpus_that_people_have():
    kinds = """v100 t4 a10 a30 a40 a100-sxm-40gb a100-sxm a100-pcie-40gb a100-pcie l4 l40 l40s rtx-a6000 rtx-6000-ada
    rtx-pro-6000 rtx-3090 rtx-4090 rtx-5090 h100-sxm h100-pcie h100-nvl h200-sxm gh200 b200-sxm gb200 b300-sxm gb300
    mi100 mi210 mi250x mi300x mi325x mi355x"""
    assert set(kinds.split()) <= set(GPUS)
    assert find_by_device(None, "90", None).name == "h100-pcie"
    assert find_by_device("0x2330", "90", None).name == "h100-sxm"
    assert find_by_device("0x7408", "910", 104, 7).name == "mi250"  # the compute units of a part of MI250
    assert find_by_device(None, "gfx942", 304).name == "mi300x"
    assert find_by_device(None, "gfx1100", 96) is None


def test_the_page_is_that_of_the_catalogue():
    assert gpu_page.PAGE.read_text(encoding="utf-8") == gpu_page.write_page()
