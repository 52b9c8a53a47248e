"""GPUs whose driver gives them no peers: their transfers go through the memory of the host."""

import pytest

from einc.errors import MachineError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from einc.machines.load import load_machine
from tests.support.topologies import new_style, peers

FOUR = [
    ["X", "PIX", "SYS", "SYS"],
    ["PIX", "X", "SYS", "SYS"],
    ["SYS", "SYS", "X", "NODE"],
    ["SYS", "SYS", "NODE", "X"],
]
SOME = [["X", "OK", "NS", "NS"], ["OK", "X", "NS", "NS"], ["NS", "NS", "X", "OK"], ["NS", "NS", "OK", "X"]]


def imported(text, **overrides):
    return import_machine(text, "topo.txt", MachineOverrides(**overrides))


def crossed(machine, pair):
    return [machine.resources[k].name for k in machine.routes[pair]]


def test_pairs_without_peers_cross_the_memory_of_the_host():
    machine = imported(new_style(FOUR) + peers(SOME), gpu="l40s", staging_gbs=20, socket_gbs=40).machine
    assert crossed(machine, (0, 1)) == ["pcie out 0", "pcie in 1"]
    assert crossed(machine, (0, 2)) == ["pcie out 0", "pcie in 2", "switch out 0", "host memory"]
    memory = machine.resources[-1]
    assert (memory.name, memory.gbs, len(memory.pairs)) == ("host memory", 20, 8)
    assert machine.transfer_latency_us == 4
    assert imported(peers(SOME) + new_style(FOUR), gpu="l40s", staging_gbs=20, socket_gbs=40).machine == machine


def test_geforce_have_none_unless_the_table_says_so():
    rows = [["X", "PHB"], ["PHB", "X"]]
    assumed = imported(new_style(rows), gpu="rtx-4090", name="geforce-4090x2")
    assert assumed.machine == load_machine("geforce-4090x2")
    assert any("topo -p2p" in line for line in assumed.assumptions)
    told = imported(new_style(rows) + peers([["X", "GNS"], ["GNS", "X"]]), gpu="rtx-4090", name="geforce-4090x2")
    assert told.machine == assumed.machine
    assert not any("topo -p2p" in line for line in told.assumptions)
    changed_driver = imported(new_style(rows) + peers([["X", "OK"], ["OK", "X"]]), gpu="rtx-4090")
    assert crossed(changed_driver.machine, (0, 1)) == ["pcie out 0"]
    linked = imported(new_style([["X", "NV4"], ["NV4", "X"]]), gpu="rtx-3090")
    assert crossed(linked.machine, (0, 1)) == ["nv4 0>1"]


def test_a_table_of_peers_that_is_cut_off():
    text = new_style(FOUR) + peers(SOME)
    with pytest.raises(MachineError, match="topo -p2p` is not whole"):
        imported(text[: text.rindex(" GPU3")], gpu="l40s")
