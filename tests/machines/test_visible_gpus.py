"""Detection with stand-in drivers: each GPU of the catalogue in 1, 2, 4 and 8 is right, or refused."""

import dataclasses
import itertools

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.catalogue import load_catalogue
from einc.machines.detect import describe_chip, describe_machine, detect_gpus
from einc.machines.importers import read_dump
from einc.machines.load import format_machine, load_machine, parse_machine
from einc.machines.visible import cuda_driver, topologies
from einc.machines.visible.cuda_driver import ask_driver
from einc.machines.visible.nvml import ask_nvml
from einc.machines.visible.topologies import VisibleSources, read_pci_tree, read_socket_rate
from tests.machines import detected_plans, detection_page
from tests.support.stand_in_driver import CUDA_NAMES, Card, StandInCuda, hide, list_systems, make_cards, make_driver
from tests.support.topologies import new_style, peers, switched

NVIDIA = [gpu for gpu in load_catalogue().values() if gpu.maker == "nvidia"]


def detected(cuda, nvml=None, run=lambda command: None, ways=None):
    driver = ask_driver(cuda)
    links = None if nvml is None else ask_nvml([gpu.bus_id for gpu in driver.gpus], nvml)
    return describe_machine(driver, VisibleSources(links, ways, run))


def narrowest(machine):
    """GB/s of every pair."""
    return {pair: min(machine.resources[k].gbs for k in route) for pair, route in machine.routes.items()}


def test_the_stand_ins_have_a_name_for_every_gpu():
    assert set(CUDA_NAMES) == {gpu.name for gpu in NVIDIA}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", NVIDIA, ids=[gpu.name for gpu in NVIDIA])
def test_gpus_over_pcie(gpu, count):
    """Without NVLinks, with NVML and without, and with peers as the driver says."""
    cuda, nvml = make_driver(gpu, None, count)
    for detection in (detected(cuda, nvml), detected(cuda)):
        machine = detection.machine
        assert machine.name == f"{gpu.name}-x{count}"
        assert {site.memory_bytes for site in machine.sites} == {gpu.memory_bytes}
        assert {site.hbm_gbs for site in machine.sites} == {gpu.memory_gbs}
        assert set(narrowest(machine).values()) <= {gpu.pcie_gbs}
        assert len(machine.routes) == count * (count - 1)
        staged = any(resource.name == "host memory" for resource in machine.resources)
        assert staged == (count > 1 and not gpu.pcie_peers)
        assert parse_machine(format_machine(machine)) == machine
        assert any(gpu.source in line for line in detection.sources)


@pytest.mark.parametrize(
    ("gpu", "name"), list_systems(), ids=lambda value: value if isinstance(value, str) else value.name
)
def test_the_machines_that_gpus_are_sold_in(gpu, name):
    """NVML says what the machine has. Without it, the driver's word about NVLinks leads to the same machine."""
    preset = load_machine(name)
    cuda, nvml = make_driver(gpu, preset, len(preset.sites))
    linked = {pair: gbs for pair, gbs in narrowest(preset).items() if pair in cuda.linked}
    for detection in (detected(cuda, nvml), detected(cuda)):
        rates = narrowest(detection.machine)
        assert {pair: rates[pair] for pair in linked} == pytest.approx(linked)
        assert set(rates) == set(narrowest(preset))
    assert bool(cuda.linked) == any("NVLinks" in line for line in detected(cuda).assumed)


def test_a_part_of_a_switch_and_what_nobody_says():
    h100, v100 = load_catalogue()["h100-sxm"], load_catalogue()["v100"]
    cuda, nvml = make_driver(h100, load_machine("dgx-h100"), 2)
    assert narrowest(detected(cuda, nvml).machine) == {(0, 1): 356.4, (1, 0): 356.4}
    assumed = detected(cuda)
    assert narrowest(assumed.machine) == narrowest(detected(cuda, nvml).machine)
    assert assumed.assumed[0] == "NVLinks: those of dgx-h100, through switches"
    four = StandInCuda(make_cards(v100, 4), linked=frozenset(itertools.permutations(range(4), 2)))
    with pytest.raises(UsageError, match="neither NVML nor nvidia-smi") as caught:
        detected(four)
    assert "-m names a machine" in caught.value.hint


def test_the_cube_mesh_by_all_sources():
    """NVML and the tables of nvidia-smi, which numbers GPUs by their place on the bus."""
    v100, preset = load_catalogue()["v100"], load_machine("dgx-v100")
    cuda, nvml = make_driver(v100, preset, 8)
    rows = [["X" if a == b else "SYS" for b in range(8)] for a in range(8)]
    for resource in preset.resources:
        if resource.name.startswith("nv"):
            ((a, b),) = resource.pairs
            rows[7 - a][7 - b] = f"NV{int(resource.gbs / 25)}"  # the tool counts the other way round
    ids = "\n".join(f"{7 - k}, 0000{card.bus_id.upper()}" for k, card in enumerate(cuda.cards))

    def run(command):
        return {"--query-gpu=index,pci.bus_id": ids, "-m": new_style(rows), "-p2p": None}[
            command[-1 if command[-1] == "-m" else 1 if command[1] != "topo" else 2]
        ]

    links = [r for r in preset.resources if r.name.startswith("nv")]
    for detection in (detected(cuda, nvml), detected(cuda, run=run)):
        assert [r for r in detection.machine.resources if r.name.startswith("nv")] == links
    assert detected(cuda, run=run).sources[-2:] == ("NVLinks: `nvidia-smi topo -m`", "PCIe: `nvidia-smi topo -m`")
    assert detected(cuda, run=lambda command: "garbage").assumed[0] == "NVLinks: those of dgx-1"


def test_a_dump_of_nccl_replaces_what_was_assumed():
    """Three bridged cards of which two are visible, in the other order."""
    gpu = load_catalogue()["rtx-a6000"]
    slots = "".join(
        f'<pci busid="0000:{bus}:00.0" class="0x030000" link_speed="8.0 GT/s" link_width="16"><gpu dev="{k}" sm="86" '
        f'rank="{k}"><nvlink target="0000:{peer}:00.0" count="3" tclass="0x030000"/></gpu></pci>'
        * (k < 2)
        + f'<pci busid="0000:{bus}:00.0" class="0x030000"><gpu dev="{k}" sm="86" rank="{k}"/></pci>' * (k == 2)
        for k, (bus, peer) in enumerate((("A1", "b1"), ("b1", "a1"), ("c1", "")))
    )
    text = f'<system version="1"><cpu vendor="GenuineIntel" modelid="85">{slots}</cpu></system>'
    cards = [
        dataclasses.replace(card, bus_id=f"0000:{bus}:00.0")
        for card, bus in zip(make_cards(gpu, 2), ("B1", "A1"), strict=True)
    ]
    cuda = StandInCuda(cards)
    detection = describe_machine(ask_driver(cuda), VisibleSources(dump=read_dump(text, "topo.xml")))
    assert {(r.name, r.gbs) for r in detection.machine.resources} == {("nv3 0>1", 42.18), ("nv3 1>0", 42.18)}
    assert "NVLinks and PCIe: NCCL's dump" in detection.sources
    assert not any("PCIe" in line or "NVLinks" in line for line in detection.assumed)
    strange = StandInCuda([dataclasses.replace(cards[0], bus_id="0000:d1:00.0"), cards[1]])
    with pytest.raises(MachineError, match="lists no GPU at 0000:d1"):
        describe_machine(ask_driver(strange), VisibleSources(dump=read_dump(text, "topo.xml")))


def test_hidden_gpus_and_gpus_of_several_kinds():
    gpus = load_catalogue()
    cuda, nvml = make_driver(gpus["a100-sxm"], load_machine("hgx-a100-80gb-4"), 4)
    machine = detected(hide(cuda, [3, 1]), nvml).machine
    assert (len(machine.sites), narrowest(machine)) == (2, {(0, 1): 76.4, (1, 0): 76.4})
    cards = [make_cards(gpus["l40s"], 1)[0], make_cards(gpus["rtx-5090"], 2)[1]]
    mixed = detected(StandInCuda(cards, staged=frozenset(((0, 1), (1, 0))))).machine
    assert [site.hbm_gbs for site in mixed.sites] == [864, 1792]
    assert set(narrowest(mixed).values()) == {31.51}
    assert mixed.resources[-1].name == "host memory"


def test_parts_of_a_gpu():
    """MIG: three of seven slices of an A100, twice, on one GPU."""
    card = Card("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 39 << 30, 42, "0000:07:00.0")
    detection = detected(StandInCuda([card, card], staged=frozenset(((0, 1), (1, 0)))))
    site = detection.machine.sites[0]
    assert site.memory_bytes == 38 << 30
    assert site.hbm_gbs == pytest.approx(2039 * 39 * 1024 / 81050, abs=0.1)
    assert dict(site.flops)["bf16"] == pytest.approx(312e12 * 42 / 108)
    assert site.gpu.products[0].multiprocessors == 42
    assert detection.machine.resources[-1].name == "host memory"
    assert parse_machine(format_machine(detection.machine)) == detection.machine


def test_machines_are_seen_as_they_are():
    """Every GPU of the catalogue in 2, 4 and 8, so that plans lose nothing; but the PCIe switches of DGX-1."""
    different = {
        (gpu.name, len(real.sites), name)
        for gpu, name, real in detected_plans.list_cases()
        if not detected_plans.sees_as_it_is(real, detected_plans.detect_real_machine(gpu, name, real))
    }
    assert different == {("v100", 8, "dgx-1"), ("v100-16gb", 8, "dgx-1")}


def test_an_unknown_gpu_is_asked_for():
    card = Card("NVIDIA L40G", 24 << 30, 100, "0000:07:00.0")
    with pytest.raises(UsageError, match="GPU 0 is 'NVIDIA L40G', which is not known") as caught:
        detected(StandInCuda([card]))
    assert "did you mean 'l40" in caught.value.hint
    machine = describe_machine(ask_driver(StandInCuda([card])), VisibleSources(), known=False).machine
    assert (machine.sites[0].hbm_gbs, machine.sites[0].memory_bytes) == (1555.2, 23 << 30)


def test_no_driver_and_a_driver_that_fails(monkeypatch):
    assert ask_driver("libnothing-there.so") is None
    assert ask_driver(StandInCuda([])) is None
    assert ask_driver(StandInCuda(make_cards(NVIDIA[0], 1), status=100)) is None
    assert ask_nvml(["0000:01:00.0"], "libnothing-there.so") is None
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda name: StandInCuda(make_cards(NVIDIA[0], 2)))
    assert describe_chip(1).multiprocessors == 56
    monkeypatch.setattr(topologies, "run_tool", lambda command: None)
    assert detect_gpus().machine.name == "p100-x2"


def test_the_tree_of_pci_devices(tmp_path):
    """Two GPUs behind a switch in a socket, one in the other; links that sleep do not matter."""
    devices = tmp_path / "bus" / "pci" / "devices"
    devices.mkdir(parents=True)
    paths = {
        "0000:03:00.0": ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", 0),
        "0000:04:00.0": ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0),
        "0000:83:00.0": ("pci0000:80/0000:80:01.0/0000:83:00.0", 1),
    }
    for bus_id, (path, node) in paths.items():
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True)
        (devices / bus_id).symlink_to(folder)
        while folder.name.count(":") == 2:
            (folder / "max_link_speed").write_text("16.0 GT/s PCIe\n")
            (folder / "max_link_width").write_text("8\n" if bus_id in folder.name and node else "16\n")
            folder = folder.parent
        (devices / bus_id / "numa_node").write_text(f"{node}\n")
    ways = read_pci_tree(list(paths), tmp_path)
    assert ways is not None
    assert read_pci_tree([*paths, "0000:99:00.0"], tmp_path) is None
    assert read_pci_tree(["../../x"], tmp_path) is None
    l4 = load_catalogue()["l4"]
    cards = [dataclasses.replace(card, bus_id=bus_id) for card, bus_id in zip(make_cards(l4, 3), paths, strict=True)]
    machine = detected(StandInCuda(cards), ways=ways).machine
    routes = {pair: [machine.resources[k] for k in route] for pair, route in machine.routes.items()}
    assert [(r.name, r.gbs) for r in routes[0, 1]] == [("pcie out 0", 31.51), ("pcie in 1", 31.51)]
    assert [(r.name, r.gbs) for r in routes[0, 2]] == [
        ("pcie out 0", 31.51),
        ("pcie in 2", 15.75),
        ("socket out 0", 16.0),
    ] or [(r.name, r.gbs) for r in routes[0, 2]] == [("pcie out 0", 31.51), ("pcie in 2", 15.75)]


def test_the_rate_between_sockets_is_that_of_the_processor(tmp_path):
    info = tmp_path / "cpuinfo"
    rates = []
    for vendor, model in (
        ("GenuineIntel", 79),
        ("GenuineIntel", 85),
        ("GenuineIntel", 143),
        ("AuthenticAMD", 1),
        ("X", 1),
    ):
        info.write_text(
            f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: x\n"
        )
        rates.append(read_socket_rate(info))
    assert rates == [6, 10, 22, 16, None]
    assert read_socket_rate(tmp_path / "none") is None


def test_tables_of_peers_are_read_with_the_links():
    """`nvidia-smi` has no say about peers where CUDA's driver has."""
    a6000 = load_catalogue()["rtx-a6000"]
    cuda = StandInCuda(make_cards(a6000, 2))
    ids = "\n".join(f"{k}, {card.bus_id}" for k, card in enumerate(cuda.cards))
    tables = {
        "--query-gpu=index,pci.bus_id": ids,
        "-m": new_style(switched(2, 4)),
        "-p2p": peers([["X", "NS"], ["NS", "X"]]),
    }
    machine = detected(cuda, run=lambda command: tables[command[1] if command[1] != "topo" else command[2]]).machine
    assert [(r.name, r.gbs) for r in machine.resources] == [("nv4 0>1", 56.24), ("nv4 1>0", 56.24)]


def test_the_page_has_the_rates_that_both_rules_find():
    lines = detection_page.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| `")]
    shown = {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}
    for preset, machine, seen, warns in detection_page.list_detections():
        real, named, *_, driver = shown.pop(preset)
        assert real == detection_page.format_rates(machine)
        assert named == detection_page.format_rates(seen["name"]) + " (warns)" * warns
        assert driver == detection_page.format_rates(seen["driver"])
    assert shown == {}
