"""RCCL's topologies: links, models and PCIe as their lines say, against another reading of the XML."""

import xml.etree.ElementTree as ET

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from einc.machines.load import format_machine, load_machine, parse_machine
from tests.support.topologies import bus, rccl

OAM = {(0, 1): 4, (2, 3): 4, (0, 2): 2, (1, 3): 1}


def read_links(text):
    """The links of a dump as a second reader has them: {(site, site): links}, sites by device number."""
    root = ET.fromstring(text)
    site_of = {
        pci.get("busid"): int(pci.find("gpu").get("dev")) for pci in root.iter("pci") if pci.find("gpu") is not None
    }
    return {
        (int(gpu.get("dev")), site_of[link.get("target").lower()]): int(link.get("count"))
        for gpu in root.iter("gpu")
        for link in gpu.iter("xgmi")
    }


def test_links_are_those_of_another_reading():
    text = rccl(OAM)
    machine = import_machine(text).machine
    links = {
        r.pairs[0]: (int(r.name.split()[0].removeprefix("xgmi")), r.gbs) for r in machine.resources if "xgmi" in r.name
    }
    assert links == {pair: (count, 50.0 * count) for pair, count in read_links(text).items()}
    assert machine.name == "mi250-x4"
    assert parse_machine(format_machine(machine)) == machine


def test_pairs_without_links_share_sockets():
    machine = import_machine(rccl(OAM)).machine
    crossed = [machine.resources[k] for k in machine.routes[0, 3]]
    assert [(resource.name, resource.gbs) for resource in crossed] == [
        ("pcie out 0", 31.51), ("socket out 0", 16.0)
    ]  # fmt: skip
    assert set(crossed[-1].pairs) == {(0, 3), (1, 2)}
    alone = import_machine(rccl({}, sockets=1)).machine
    inside = [alone.resources[k].name for k in alone.routes[0, 3]]
    assert inside == ["pcie out 0", "pcie in 3"]


def test_a_mesh_is_the_preset():
    mesh = {(a, b): 1 for a in range(8) for b in range(a)}
    for text in (rccl(mesh, units=304, gcn="gfx942", device="0x74a1"), rccl(mesh, units=304, gcn="942", device="0x1")):
        assert (
            import_machine(text, overrides=MachineOverrides(name="mi300x-8")).machine.sites
            == load_machine("mi300x-8").sites
        )
        links = {r.pairs: r.gbs for r in import_machine(text).machine.resources}
        assert links == {r.pairs: r.gbs for r in load_machine("mi300x-8").resources}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rccl(OAM).replace('count="4"', 'count="3"', 1), "xGMI links to GPU 1, and GPU 1 has 4"),
        (rccl(OAM).replace('count="4"', 'count="x"', 1), "expected a count of xGMI links from 1, found 'x'"),
        (
            rccl(OAM).replace(f'target="{bus(1).upper()}', f'target="{bus(0).upper()}'),
            "an xGMI link from GPU 0 to itself",
        ),
    ],
)
def test_a_mistake_is_named(text, words):
    with pytest.raises(MachineError) as caught:
        import_machine(text, "topo.xml")
    assert words in caught.value.message
    assert caught.value.where.line > 1


def test_an_unknown_architecture_is_asked_for():
    with pytest.raises(UsageError, match="'gfx1100'"):
        import_machine(rccl(OAM, gcn="gfx1100", device="0x9999"))
    told = import_machine(rccl(OAM, gcn="gfx1100", device="0x9999"), overrides=MachineOverrides(gpu="mi210"))
    assert told.machine.name == "mi210-x4"


def test_a_card_that_states_kbits():
    """That of Slingshot does, as in RCCL's model of MI300A."""

    def text(speed):
        net = f'<nic><net name="cxi0" dev="0" speed="{speed}" port="1"/></nic></cpu>'
        node = rccl(OAM).replace("</cpu>", net, 1)
        return import_machine("a slots=4\nb slots=4\n", "hosts", None, node).machine.resources[-1].gbs

    assert text(200_000_000) == text(200_000) == 25
