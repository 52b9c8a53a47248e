"""The machines that come with einc, against the published figures."""

import itertools

import pytest

from einc.errors import MachineError, ReadError, UsageError
from einc.machines.load import (
    count_host_cores,
    format_machine,
    list_presets,
    load_instances,
    load_machine,
    parse_machine,
)
from einc.machines.several_hosts import load_networks

V100 = """
X 1 1 2 2 S S S
1 X 2 1 S 2 S S
1 2 X 2 S S 1 S
2 1 2 X S S S 1
2 S S S X 1 1 2
S 2 S S 1 X 2 1
S S 1 S 1 2 X 2
S S S 1 2 1 2 X
"""
LINKS = [row.split() for row in V100.strip().splitlines()]


def width(machine, pair):
    """Bandwidth of a pair alone, and how many pairs share its narrowest resource."""
    crossed = [machine.resources[k] for k in machine.routes[pair]]
    narrow = min(crossed, key=lambda resource: resource.gbs)
    return narrow.gbs, len(narrow.pairs)


def test_the_names():
    assert list_presets() == (
        "dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dgx-v100",
        "dgx-v100-paper", "gb200-nvl72", "gb300-nvl72", "geforce-3090x2", "geforce-3090x4",
        "geforce-4090x2", "geforce-4090x4", "geforce-5090x2", "geforce-5090x4", "gh200x4", "h100-nvl-4", "h100-nvl-8",
        "hgx-a100-4", "hgx-a100-80gb", "hgx-a100-80gb-4", "hgx-b200", "hgx-b300", "hgx-h100-4", "hgx-h200", "host",
        "hosts-100g", "hosts-100g-2s", "hosts-25g", "hosts-25g-2s", "l40s-pcie4", "l40s-pcie8", "mi250x-8", "mi300x-8",
        "mi325x-8", "mi355x-8", "rtx-pro-6000-pcie4", "rtx-pro-6000-pcie8",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pair", "gbs", "sharing"),
    [
        ("dgx-2", (0, 15), 150, 15),  # 300 GB/s both ways, 16 GPUs
        ("hgx-a100-4", (1, 3), 76.4, 1),
        ("hgx-h100-4", (1, 3), 118.8, 1),
        ("gh200x4", (0, 3), 150, 1),
        ("mi250x-8", (6, 7), 200, 1),
        ("mi300x-8", (6, 7), 64, 1),
        ("h100-nvl-8", (2, 3), 300, 1),
        ("h100-nvl-8", (0, 7), 16, 16),
        ("h100-nvl-8", (0, 2), 63.02, 6),
        ("l40s-pcie4", (0, 1), 31.51, 3),
        ("geforce-5090x4", (0, 3), 63.02, 3),
    ],
)
def test_pairs_of_machines(name, pair, gbs, sharing):
    assert width(load_machine(name), pair) == (gbs, sharing)


def test_instances_of_clouds_are_machines():
    assert load_machine("p5.48xlarge") == load_machine("dgx-h100")
    assert load_machine("Standard_ND96isr_MI300X_v5") == load_machine("mi300x-8")
    assert set(load_instances().values()) <= set(list_presets())
    assert not set(load_instances()) & set(list_presets())
    with pytest.raises(UsageError, match=r"no machine 'p5\.48xlarg'") as caught:
        load_machine("p5.48xlarg")
    assert "did you mean 'p5.48xlarge'?" in caught.value.render()


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_survives_its_canonical_text(name):
    machine = load_machine(name)
    text = format_machine(machine)
    assert parse_machine(text) == machine
    assert format_machine(parse_machine(text)) == text


@pytest.mark.parametrize(
    ("name", "sites", "gbs", "hbm", "mib", "f16", "f32"),
    [
        ("dgx-a100", 8, 229.2, 1555, 40336, 312, 19.5),
        ("dgx-h100", 8, 356.4, 3350, 81009, 989, 67),
        ("gb200-nvl72", 72, 743.4, 8000, 188733, 2500, 80),
    ],
)
def test_switched_presets(name, sites, gbs, hbm, mib, f16, f32):
    """Links as NCCL's rings were measured on them, memory as CUDA reports it, less 1 GiB."""
    machine = load_machine(name)
    assert len(machine.sites) == sites
    assert len(machine.resources) == 2 * sites
    for site in machine.sites:
        assert (site.hbm_gbs, site.memory_bytes) == (hbm, (mib - 1024) * 2**20)
        assert dict(site.flops)["f16"] == pytest.approx(f16 * 1e12)
        assert dict(site.flops)["f32"] == pytest.approx(f32 * 1e12)
    routes = machine.routes
    assert set(routes) == set(itertools.permutations(range(sites), 2))
    for (a, b), (out, into) in routes.items():
        assert machine.resources[out].gbs == machine.resources[into].gbs == gbs
        assert {pair[0] for pair in machine.resources[out].pairs} == {a}
        assert {pair[1] for pair in machine.resources[into].pairs} == {b}


@pytest.mark.parametrize(
    ("name", "node", "nodes", "of"),
    [("dgx-h100x2", 8, 2, "dgx-h100"), ("dgx-h100x4", 8, 4, "dgx-h100"), ("dgx-h100x8", 8, 8, "dgx-h100"),
     ("gb200-nvl72x2", 72, 2, "gb200-nvl72")],
)  # fmt: skip
def test_several_nodes_with_a_card_for_every_gpu(name, node, nodes, of):
    machine, alone = load_machine(name), load_machine(of)
    assert machine.sites == alone.sites * nodes
    inside = alone.resources[0].gbs
    for (a, b), crossed in machine.routes.items():
        outgoing, second = sorted(
            (machine.resources[k] for k in crossed), key=lambda resource: resource.name, reverse=True
        )
        assert outgoing.gbs == second.gbs == (inside if a // node == b // node else 400 / 8)
        assert {pair[0] for pair in outgoing.pairs} == {a}
        assert {pair[1] for pair in second.pairs} == {b}
    assert len(machine.routes) == node * nodes * (node * nodes - 1)
    first = machine.restrict(range(node))
    assert (first.sites, first.routes) == (alone.sites, alone.routes)


@pytest.mark.parametrize("preset", load_networks())
def test_two_hosts_of_each_kind(preset):
    """Each host is what one alone is, and data gets from each site to those of the other host, by their cards alone."""
    alone, machine = load_machine(preset), load_machine(f"{preset}x2")
    size, gbs = len(alone.sites), load_networks()[preset].gbs
    assert machine.name == f"{preset}x2"
    assert parse_machine(format_machine(machine)) == machine
    for first in (0, size):
        host = machine.restrict(range(first, first + size))
        assert (host.sites, host.routes.keys()) == (alone.sites, alone.routes.keys())
        assert all(width(host, pair) == width(alone, pair) for pair in alone.routes)
    assert {width(machine, (a, size + b))[0] for a in range(size) for b in range(size)} == {gbs}


def test_names_of_several_hosts():
    assert len(load_machine("dgx-h100x128").sites) == 1024
    assert len(load_machine("dgx-h100x2:0,8").sites) == 2
    for name in ("dgx-h100x1", "dgx-h100x02", "hostx2", "hosts-25gx2", "dgx-h100x2x2"):
        with pytest.raises(UsageError, match=f"no machine '{name}'"):
            load_machine(name)
    with pytest.raises(MachineError, match="dgx-h100x129 has 1032 sites; at most 1024"):
        load_machine("dgx-h100x129")


@pytest.mark.parametrize(("name", "gbits"), [("hosts-25g", 25), ("hosts-100g", 100)])
def test_hosts_on_ethernet(name, gbits):
    machine = load_machine(name)
    assert len(machine.sites) == 16
    assert {width(machine, pair) for pair in machine.routes} == {(gbits / 8, 15)}
    sockets = load_machine(f"{name}-2s")
    assert sockets.sites == machine.sites
    for (a, b), crossed in sockets.routes.items():
        shared = {pair for k in crossed for pair in sockets.resources[k].pairs}
        if a // 2 == b // 2:
            assert shared == {(a, b)}
        else:  # one card for both sockets of a host
            assert width(sockets, (a, b)) == (gbits / 8, 28)
            apart = {(c, d) for c in range(16) for d in range(16) if c // 2 != d // 2}
            assert shared == {(c, d) for c, d in apart if c // 2 == a // 2 or d // 2 == b // 2}
    site = machine.sites[0]
    assert site.hbm_gbs == pytest.approx(8 * 4.8 * 8)  # channels, GT/s, bytes
    assert dict(site.flops)["f32"] == 56 * 2.0e9 * 2 * 16 * 2  # cores, Hz, units, lanes, operations
    assert dict(site.flops)["bf16"] == 56 * 2.0e9 * 1024


@pytest.mark.parametrize(("name", "number"), [("dgx-v100", range(8)), ("dgx-v100-paper", (0, 1, 2, 6, 4, 5, 3, 7))])
def test_the_hybrid_cube_mesh(name, number):
    machine = load_machine(name)
    unlinked = sum(row.count("S") for row in LINKS)
    for a, b in itertools.permutations(range(8), 2):
        expected = {"1": (25, 1), "2": (50, 1), "S": (15.75, unlinked)}[LINKS[a][b]]
        assert width(machine, (number[a], number[b])) == expected
    assert (machine.sites[0].hbm_gbs, machine.sites[0].memory_bytes) == (900, (32500 - 1024) * 2**20)


def test_the_paper_machine_has_the_links_that_its_example_names():
    machine = load_machine("dgx-v100-paper")
    for pair in ((0, 4), (1, 5), (2, 6), (3, 7)):
        assert width(machine, pair) == (50, 1)
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7)):
        assert width(machine, pair) == (25, 1)


def test_host_takes_any_number_of_sites_and_shares_one_memory():
    assert len(load_machine("host").sites) == count_host_cores()
    for sites in (1, 2, 3, 72):
        machine = load_machine("host", sites)
        assert len(machine.sites) == sites
        assert len(machine.routes) == sites * (sites - 1)
        assert len(machine.resources) == (sites > 1)
        assert parse_machine(format_machine(machine)) == machine
    for sites in (0, -1, 10**9):
        with pytest.raises(MachineError):
            load_machine("host", sites)


def test_a_part_of_a_preset():
    machine = load_machine("dgx-a100", 4)
    assert len(machine.sites) == 4
    assert len(machine.routes) == 12
    with pytest.raises(MachineError, match="has 8 sites, not 9"):
        load_machine("dgx-a100", 9)


def test_files_and_names_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="no machine 'dgx-a10O'") as caught:
        load_machine("dgx-a10O")
    assert "did you mean 'dgx-a100'?" in caught.value.render()
    assert load_machine("dgx-a100:0,4") == load_machine("dgx-a100").restrict((0, 4))
    assert load_machine("host:3") == load_machine("host", 3)
    for wrong in ("9", "0", "0,0", "1,8"):
        with pytest.raises(MachineError, match="dgx-a100 has the sites 0 to 7"):
            load_machine(f"dgx-a100:{wrong}")
    with pytest.raises(UsageError):
        load_machine(str(tmp_path / "none.json"))
    with pytest.raises(ReadError):
        load_machine(str(tmp_path))
    with pytest.raises(UsageError):
        load_machine("a\0b")
    path = tmp_path / "mine.json"
    path.write_text(format_machine(load_machine("dgx-v100")))
    assert load_machine(str(path)) == load_machine("dgx-v100")
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(MachineError, match="UTF-8"):
        load_machine(str(path))


def test_endless_files_are_read_only_so_far():
    with pytest.raises(MachineError, match="larger"):
        load_machine("/dev/zero")
