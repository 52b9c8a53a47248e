"""Detection with a stand-in for rocm-smi: each GPU of AMD in 1, 2, 4 and 8 is right, or refused."""

import pytest

from einc.errors import MachineError, UsageError
from einc.machines import detect
from einc.machines.catalogue import load_catalogue
from einc.machines.importers import read_dump
from einc.machines.load import format_machine, load_machine, parse_machine
from tests.support.stand_in_rocm import CARD_SERIES, make_rocm_smi

AMD = [gpu for gpu in load_catalogue().values() if gpu.maker == "amd"]


@pytest.fixture
def detected(monkeypatch):
    """Detects what a stand-in says."""
    monkeypatch.setattr(detect, "detect_gpus", lambda **_: None)

    def find(run, dump=None):
        monkeypatch.setattr(detect, "run_tool", run)
        return detect.detect(dump)

    return find


def rates(machine):
    """GB/s of every pair."""
    return {pair: min(machine.resources[k].gbs for k in route) for pair, route in machine.routes.items()}


def test_the_stand_in_has_a_name_for_every_gpu():
    assert set(CARD_SERIES) == {gpu.name for gpu in AMD}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", AMD, ids=[gpu.name for gpu in AMD])
def test_gpus_over_pcie(detected, gpu, count):
    detection = detected(make_rocm_smi(gpu, None, count))
    machine = detection.machine
    assert machine.name == f"{gpu.name}-x{count}"
    assert {site.memory_bytes for site in machine.sites} == {gpu.memory_bytes}
    assert {site.hbm_gbs for site in machine.sites} == {gpu.memory_gbs}
    assert set(rates(machine).values()) <= {gpu.pcie_gbs}
    assert len(machine.routes) == count * (count - 1)
    assert parse_machine(format_machine(machine)) == machine


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("gpu", "name"), [(gpu, name) for gpu in AMD for name in gpu.systems], ids=str)
def test_the_machines_that_gpus_are_sold_in(detected, gpu, name, count):
    """The first GPUs of one, with the links that the tool counts; where it counts none, only what they must be."""
    preset = load_machine(name)
    expected = {pair: gbs for pair, gbs in rates(preset).items() if max(pair) < count}
    machine = detected(make_rocm_smi(gpu, preset, count)).machine
    assert rates(machine) == pytest.approx(expected)
    silent = make_rocm_smi(gpu, preset, count, bandwidths=False)
    if name == "mi250x-8":  # a pair has one, two or four links
        with pytest.raises(UsageError, match="how many xGMI links each pair has") as caught:
            detected(silent)
        assert "-m names a machine" in caught.value.hint
    else:
        assert rates(detected(silent).machine) == pytest.approx(expected)


def test_a_card_may_have_more_memory_than_its_model_and_a_part_is_refused(detected):
    gpus = load_catalogue()
    machine = detected(make_rocm_smi(gpus["mi50"], None, 2, memory_mib=32752)).machine
    assert {site.memory_bytes for site in machine.sites} == {(32752 - 1024) << 20}
    with pytest.raises(MachineError, match="GPU0 has 24574 MiB, and mi300x has 196592: it is a part of one"):
        detected(make_rocm_smi(gpus["mi300x"], None, 8, memory_mib=24574))


def test_bandwidths_that_are_no_links_are_refused(detected):
    gpu = load_catalogue()["mi300x"]
    run = make_rocm_smi(gpu, load_machine("mi300x-8"), 4)
    for old, new, words in (
        ("50000-50000", "50000-75000", "no whole number of links"),
        ("50000-50000", "50000-100000", "but not back"),
    ):
        with pytest.raises(MachineError, match=words):
            detected(lambda command, old=old, new=new: (run(command) or "").replace(old, new, 1))


def test_a_dump_of_rccl_counts_the_links(detected):
    gpu = load_catalogue()["mi210"]
    run = make_rocm_smi(gpu, load_machine("mi300x-8"), 2, bandwidths=False)
    gpus = "".join(
        f'<pci busid="0000:{3 + k}1:00.0" class="0x038000" device="0x740f"><gpu dev="{k}" gcn="gfx90a" rank="{k}">'
        f'<xgmi target="0000:{4 - k}1:00.0" count="3" tclass="0x038000"/></gpu></pci>'
        for k in range(2)
    )
    text = f'<system version="2"><cpu numaid="0">{gpus}</cpu></system>'
    with pytest.raises(UsageError, match="how many xGMI links"):
        detected(run)
    detection = detected(run, read_dump(text, "topo.xml"))
    assert [(r.name, r.gbs) for r in detection.machine.resources] == [("xgmi3 0>1", 150), ("xgmi3 1>0", 150)]
    assert "links: RCCL's dump" in detection.sources
    with pytest.raises(MachineError, match="lists 2 GPUs, and rocm-smi 4"):
        detected(make_rocm_smi(gpu, None, 4), read_dump(text, "topo.xml"))
    with pytest.raises(MachineError, match="no driver shows any here"):
        detected(lambda command: None, read_dump(text, "topo.xml"))
