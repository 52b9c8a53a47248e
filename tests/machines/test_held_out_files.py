"""Files of kinds that importers were not written with: they import, or the error says where and what to do."""

import pytest

from einc.errors import MachineError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from tests.support.rocm_tables import mesh, rocm


def dump(*gpus, version="1"):
    """NCCL's file with cards that stand behind one switch; each is its attributes and what stands in it."""
    slots = "".join(
        f'\n<pci busid="0000:{8 + k:02x}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe">'
        f'<gpu dev="{k}" {attributes}>{links}</gpu></pci>'
        for k, (attributes, links) in enumerate(gpus)
    )
    bridge = f'<pci busid="0000:04:00.0" link_width="16">{slots}</pci>'
    return f'<system version="{version}"><cpu numaid="0">{bridge}</cpu></system>'


def rates(machine):
    return {resource.name: resource.gbs for resource in machine.resources}


def test_links_that_do_not_say_what_they_lead_to():
    """Two A100 with a bridge; a comment, and a class at one end only."""
    text = dump(
        ('sm="80"', '<nvlink target="0000:09:00.0" count="12" tclass="0x030200"/><!-- a bridge -->'),
        ('sm="80"', '<nvlink target="0000:08:00.0" count="12"/>'),
    )
    assert rates(import_machine(text).machine) == {"nv12 0>1": 229.2, "nv12 1>0": 229.2}


def test_a_virtual_machine_without_widths_and_with_bridges_asleep():
    """Four switches with unequal shares of the links, as in a guest of a cloud."""
    links = "".join(
        f'<nvlink target="0000:f{k}:00.0" count="{count}" tclass="0x068000"/>' for k, count in enumerate((4, 5, 5, 4))
    )
    imported = import_machine(dump(('sm="90"', links), ('sm="90"', links)).replace('link_width="16"', 'link_width="0"'))
    assert set(rates(imported.machine).values()) == {356.4}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (dump(('sm="90"', '<nvlink nlinks="18" target="1,2"/>')), "<nvlink> lacks its attribute count"),
        (
            dump(('sm="304" gcn="gfx942"', '<xgmi maxcount="8"><link target="1" count="4"/></xgmi>'), version="2"),
            "<xgmi> lacks its attribute count",
        ),
        (
            dump(('sm="80"', "")).replace(
                "</pci></cpu>", '\n<nvlink target="0" count="12" tclass="0x03"/></pci></cpu>'
            ),
            "an NVLink that stands in no <gpu>",
        ),
        (
            dump(('sm="80"', '<nvlink target="0000:0b:00.0" count="12"/>')),
            "<nvlink> lacks its attribute tclass",
        ),
    ],
)
def test_files_that_people_made_up(text, words):
    with pytest.raises(MachineError) as caught:
        import_machine(text, "topo.xml")
    assert words in caught.value.render()
    assert caught.value.render().startswith("topo.xml:")
    assert "NCCL_TOPO_DUMP_FILE=topo.xml" in caught.value.hint


def test_an_old_rocm_smi_counts_gpus_without_brackets():
    text = rocm(mesh(4, "PCIE"), mesh(4, "40"), [0, 0, 1, 1]).replace("GPU[", "GPU ").replace("]", "")
    machine = import_machine(text, overrides=MachineOverrides(gpu="mi100")).machine
    assert {machine.resources[k].name for k in machine.routes[0, 2]} >= {"socket out 0"}


def test_hives_that_pcie_joins():
    """Eight MI100 in two hives of four; the name of the chip stands before that of the card."""
    kinds = [["0" if a == b else "XGMI" if a // 4 == b // 4 else "PCIE" for b in range(8)] for a in range(8)]
    weights = [["0" if a == b else "15" if a // 4 == b // 4 else "72" for b in range(8)] for a in range(8)]
    text = rocm(kinds, weights, [k // 4 for k in range(8)], "Arcturus GL-XL [AMD Instinct MI100]")
    machine = import_machine(text).machine
    assert machine.name == "mi100-x8"
    narrowest = {pair: min(machine.resources[k].gbs for k in route) for pair, route in machine.routes.items()}
    assert (narrowest[0, 3], narrowest[3, 4], narrowest[4, 7]) == (46, 16, 46)
