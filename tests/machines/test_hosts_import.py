"""Machines of several hosts: what a hosts file and the topology of a node say together."""

import re

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from einc.machines.load import load_machine
from tests.support.paced import within
from tests.support.topologies import DGX1V, cells, nccl, new_style, switched

CUBE = cells(DGX1V)
HOSTS = "# two\nnode1 slots=8 max_slots=8\n\nnode-2.rack slots=8  # the last\n"


def node_text(cards=8, count=8):
    """NCCL's dump of a DGX H100 with `cards` cards of 400 Gbit/s, some of them listed twice, and a slow one."""
    text = nccl(switched(count, 18), sm=90, device="0x2330", speed="32 GT/s", switches=4)
    nets = "".join(f'<net name="mlx5_{k}" dev="{k}" speed="400000"/>' for k in [*range(cards), 0])
    nets += '<net name="eth0" dev="99" speed="25000"/>'
    return re.sub("<net [^>]*/>", nets, text)


def shape_of(machine):
    """Sites, and the rates and the sharing pairs of everything that each pair crosses; names aside."""
    crossed = {
        pair: sorted((machine.resources[k].gbs, sorted(machine.resources[k].pairs)) for k in crossed)
        for pair, crossed in machine.routes.items()
    }
    return machine.sites, crossed


def test_hosts_of_one_kind_are_the_preset():
    imported = import_machine(HOSTS, "hosts", MachineOverrides(name="mine"), node_text(), "node.xml")
    assert shape_of(imported.machine) == shape_of(load_machine("dgx-h100x2"))
    network = [line for line in imported.assumptions if line.startswith("network")]
    assert network == ["network: cards of 50 GB/s, one for each site (--network-gbs, --network-cards)"]
    table = import_machine(HOSTS, "hosts", MachineOverrides(gpu="h100", network_gbs=50, network_cards=8),
                           new_style(switched(8, 18)), "topo")  # fmt: skip
    assert shape_of(table.machine) == shape_of(imported.machine)


def test_sites_of_a_host_share_its_cards():
    two = import_machine("a slots=3\nb slots=2", "hosts", MachineOverrides(), node_text(2), "node.xml").machine
    assert len(two.sites) == 5
    rates = {resource.name: (resource.gbs, len(resource.pairs)) for resource in two.resources if "net" in resource.name}
    one_each = {"net out 3": (50, 3), "net in 3": (50, 3), "net out 4": (50, 3), "net in 4": (50, 3)}
    assert rates == {"net out 0": (100, 6), "net in 0": (100, 6)} | one_each
    options = MachineOverrides(hbm_gbs=300, memory_gib=256, network_gbs=12.5)
    plain = import_machine("a slots=1\nb slots=1\nc slots=1", "hosts", options).machine
    assert {(resource.gbs, len(resource.pairs)) for resource in plain.resources} == {(12.5, 2)}
    options = MachineOverrides(hbm_gbs=300, memory_gib=256, network_gbs=12.5, pcie_gbs=40)
    sockets = import_machine("a slots=2\nb slots=2", "hosts", options).machine
    assert (
        sorted((resource.gbs, len(resource.pairs)) for resource in sockets.resources) == [(12.5, 4)] * 4 + [(40, 2)] * 2
    )


def test_nodes_that_share_no_switches_in_one_file_need_their_network():
    v100 = MachineOverrides(gpu="v100")
    moved = nccl(CUBE).replace('host_hash="0x7" numaid="0"', 'host_hash="0x8" numaid="0"')
    moved = re.sub(r" *<nvlink [^>]*/>\n", "", moved)
    machine = import_machine(moved, overrides=v100).machine
    crossing = {resource.gbs for resource in machine.resources if resource.name.startswith("net")}
    assert crossing == {12.5}  # 100 Gbit/s, as the file says
    with pytest.raises(MachineError, match="no data can get") as caught:
        import_machine(re.sub(r"<net [^>]*/>", "", moved), overrides=v100)
    assert "--network-gbs" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "node", "words"),
    [
        ("a slots=8\nb", None, "hosts:2:1: expected a host, as in `node1 slots=8`"),
        ("a slots=8\nb slots=x", None, "hosts:2:1: expected slots from 1 to 1024, found 'x'"),
        ("a slots=0", None, "found '0'"),
        ("a slots=-1\n", None, "expected"),
        ("a slots=99999999999", None, "found '99999999999'"),
        ("a slots=8\na slots=8", None, "hosts:2:1: the host a is listed twice"),
        ("\n".join(f"n{k} slots=1024" for k in range(5)), None, "hosts:2:1: the hosts have more than 1024 slots"),
        ("a slots=2\n\x1b[2J slots=2", None, "hosts:2:1: expected a host"),
        ("a slots=9", node_text(), "a has 9 slots, but the node has 8 GPUs"),
        ("a slots=2\nb slots=2", None, "the file does not tell which GPU this is"),
        ("a slots=2", "{", "node.xml: this is JSON"),
        ("a slots=2", node_text().replace("25000", "fast"), "expected a speed in Mbit/s, found 'fast'"),
        ("a slots=2", node_text().replace('0x7" numaid="0"', '0x8" numaid="0"'), "--node describes several computers"),
        (new_style(CUBE), node_text(), "--node is for a hosts file"),
    ],
)
def test_broken_hosts_files_have_one_clear_error(text, node, words):
    with within(5), pytest.raises((MachineError, UsageError)) as caught:
        import_machine(text, "hosts", MachineOverrides(), node, "node.xml")
    assert words in caught.value.render()
    assert len(caught.value.render()) < 700


@pytest.mark.parametrize(
    "text",
    [
        "node1:8\nnode2:8\n",
        "node1\n" * 8 + "node2\n" * 8,
        "node[1-2] slots=8",
        "node1\nnode2\n",  # all GPUs of the node
        "node[1-2]",
        "SLURM_JOB_NODELIST=node[1-2]\nSLURM_TASKS_PER_NODE=8(x2)\nSLURM_JOB_ID=7\n",
        "SLURM_NODELIST=node1,node2\nSLURM_TASKS_PER_NODE=4(x2)\nSLURM_GPUS_ON_NODE=8\n",
    ],
)
def test_other_lists_of_hosts_are_the_same_machine(text):
    options = MachineOverrides(gpu="h100", name="mine")
    machine = import_machine(text, "hosts", options, node_text(), "node.xml").machine
    assert machine == import_machine("node1 slots=8\nnode2 slots=8", "hosts", options, node_text(), "node.xml").machine


def test_numbers_keep_their_zeros_and_hosts_without_slots_are_sites():
    options = MachineOverrides(hbm_gbs=300, memory_gib=256, network_gbs=12.5)
    assert len(import_machine("rack1-n[08-10,12].lan\nlast", "hosts", options).machine.sites) == 5
    with pytest.raises(MachineError, match=r"the host n09 is listed twice"):
        import_machine("n[08-10] slots=1\nn09 slots=1", "hosts", options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:8\nb", "hosts:2:1: expected a host and its slots, as in `node1:8`"),
        ("a:0", "expected slots from 1 to 1024, found '0'"),
        ("n[3-1]", "expected numbers of hosts, as in `node[01-04,7]`, found '3-1'"),
        ("n[1-999999999]", "more than 1024 hosts"),
        ("SLURM_NODELIST=n[1-3]\nSLURM_TASKS_PER_NODE=8(x2)", "hosts:2:1: 3 hosts, and tasks of 2"),
        ("SLURM_NODELIST=n[1-3]\nSLURM_TASKS_PER_NODE=8x2", "expected tasks of nodes, as in `8(x4)`"),
        ("SLURM_NODELIST=n;m", "expected hosts, as in `node[01-04]`"),
    ],
)
def test_broken_lists_of_hosts_have_one_clear_error(text, words):
    with within(5), pytest.raises(MachineError) as caught:
        import_machine(text, "hosts", MachineOverrides(hbm_gbs=300, memory_gib=256, network_gbs=12.5))
    assert words in caught.value.render()
