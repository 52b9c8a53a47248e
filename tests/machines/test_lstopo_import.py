"""hwloc's XML: GPUs below packages and bridges, and the bandwidth of NVLinks."""

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides


def lstopo(models=("Tesla P100-SXM2-16GB",) * 4, links=((0, 1, 2), (2, 3, 1)), device="10de:15f9", speed="15.753846"):
    """A computer of two packages with two GPUs behind a switch each; `links` are NVLinks of pairs. A display too."""
    count = len(models)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">', "<topology>",
             '<object type="Machine" os_index="0" gp_index="1"><info name="Backend" value="Linux"/>']  # fmt: skip
    for package in (1, 0):  # cuda1 stands before cuda0: the number in its name counts
        lines += [f'<object type="Package" os_index="{package}" gp_index="{10 + package}">',
                  f'<object type="Bridge" gp_index="{20 + package}" bridge_type="0-1" depth="0">',
                  f'<object type="Bridge" gp_index="{30 + package}" bridge_type="1-1" depth="1" '
                  f'pci_busid="000{package}:00:01.0" pci_type="0604 [8086:2f02] [0000:0000] 00" '
                  f'pci_link_speed="{speed}">']  # fmt: skip
        for site in range(package * count // 2, (package + 1) * count // 2):
            lines += [f'<object type="PCIDev" gp_index="{40 + site}" pci_busid="000{package}:0{site}:00.0" '
                      f'pci_type="0302 [{device}] [10de:118f] a1" pci_link_speed="{speed}">',
                      f'<object type="OSDev" gp_index="{50 + site}" name="cuda{site}" subtype="CUDA" osdev_type="5">',
                      f'<info name="GPUModel" value="{models[site]}"/></object></object>']  # fmt: skip
        lines += ['<object type="PCIDev" gp_index="90" pci_type="0300 [102b:0534] [0000:0000] 00" '
                  'pci_link_speed="0.000000"/></object></object></object>']  # fmt: skip
    lines += ["</object>"]
    if links:
        gbs = {pair: 20000 * n for a, b, n in links for pair in ((a, b), (b, a))}
        values = [1000000 if a == b else gbs.get((a, b), 0) for a in range(count) for b in range(count)]
        lines += [f'<distances2 type="OSDev" nbobjs="{count}" kind="66" name="NVLinkBandwidth" indexing="gp">',
                  f'<indexes length="9">{" ".join(str(50 + k) for k in range(count))} </indexes>',
                  *(f'<u64values length="9">{v} </u64values>' for v in values), "</distances2>"]  # fmt: skip
    return "\n".join((*lines, "</topology>"))


def test_gpus_links_and_bridges():
    machine = import_machine(lstopo()).machine
    assert machine.name == "p100-x4"
    routes = {
        pair: [(machine.resources[k].name, machine.resources[k].gbs) for k in r] for pair, r in machine.routes.items()
    }
    assert routes[0, 1] == [("nv2 0>1", 40)]
    assert routes[3, 2] == [("nv1 3>2", 20)]
    assert routes[0, 2][0] == ("pcie out 0", 15.75)
    shared = machine.resources[machine.routes[0, 2][-1]]
    assert sorted(shared.pairs) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert shared.gbs == 15.75


def test_models_by_device_and_links_that_sleep():
    text = lstopo(models=("", ""), links=(), device="10de:26b9", speed="4.000000")
    imported = import_machine(text, overrides=MachineOverrides(socket_gbs=99))
    assert imported.machine.name == "l40s-x2"
    assert {resource.gbs for resource in imported.machine.resources} == {31.51}
    assert "asleep" in imported.warnings[0]
    with pytest.raises(UsageError, match="'NVIDIA Titan X'"):
        import_machine(lstopo(models=("NVIDIA Titan X",) * 2, links=(), device="10de:ffff"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lstopo().replace("10de:15f9", "8086:15f9"), "lists no GPU of NVIDIA or AMD"),
        (lstopo(speed="fast"), "expected a pci_link_speed in GB/s, found 'fast'"),
        (lstopo().replace('<u64values length="9">40000 </u64values>', "", 1), "expected 4 times 4 bandwidths"),
        (lstopo().replace("40000", "20000", 1), "have another bandwidth on the way back"),
        (lstopo().replace('"hwloc2.dtd"', '"http://127.0.0.1/hwloc2.dtd"'), "a document type"),
        (lstopo().replace('"hwloc2.dtd"', '"hwloc2.dtd" [<!ENTITY a "b">]'), "a document type"),
    ],
)
def test_broken_files_have_one_clear_error(text, words):
    with pytest.raises(MachineError) as caught:
        import_machine(text, "lstopo.xml")
    assert words in caught.value.render()
