"""What `einc machine show` draws."""

import re

import pytest

from einc.machines.load import list_presets, load_machine, parse_machine
from einc.machines.model import Machine, Resource, Site
from einc.machines.picture import draw, format_ranges


def test_a_mesh_is_a_matrix_with_its_resources_below():
    lines = draw(load_machine("dgx-v100")).splitlines()
    assert lines[0] == "GB/s from row to column:"
    assert lines[2].split() == ["0", ".", "25", "25", "50", "50", "15.75", "15.75", "15.75"]
    assert len(lines) == 13
    assert lines[10:] == [
        "nv1: 25 GB/s, 16 links in one direction each",
        "nv2: 50 GB/s, 16 links in one direction each",
        "pcie: 15.75 GB/s, one path that 24 pairs share, both directions together",
    ]


def test_a_switch_is_a_bus():
    text = draw(load_machine("dgx-a100"))
    assert text.splitlines()[1].split() == [str(k) for k in range(8)]
    assert text.endswith("nvswitch: 229.2 GB/s out of, and as much into, each of the sites 0-7")
    big = draw(load_machine("gb200-nvl72"))
    assert [int(word) for word in re.findall(r"(?<= )\d+(?= |$)", "\n".join(big.splitlines()[1:-1:3]), re.M)] == [
        *range(72)
    ]


@pytest.mark.parametrize("name", list_presets())
def test_pictures_fit_a_terminal_and_colour_changes_nothing_else(name):
    machine = load_machine(name, 5 if name == "host" else None)
    plain, tinted = draw(machine), draw(machine, colour=True)
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in plain
    assert "\x1b[32m" in tinted
    assert re.sub(r"\x1b\[\d+m", "", tinted) == plain


def test_seventy_two_sites_without_a_switch_have_a_symbol_per_pair():
    ring = [(a, (a + 1) % 72) for a in range(72)]
    machine = parse_machine(
        '{"name": "ring", "sites": {"count": 72, "hbm_gbs": 1, "memory_bytes": 1}, "rules": ['
        f'{{"kind": "links", "name": "nv", "gbs": 50, "between": {[list(pair) for pair in ring]}}},'
        '{"kind": "shared", "name": "pcie", "gbs": 4, "pairs": "rest"}]}'
    )
    lines = draw(machine).splitlines()
    assert lines[0] == "GB/s from row to column: # 50, * 4"
    assert max(map(len, lines)) <= 80
    rows = [line[5:] for line in lines[3:75]]
    for a in range(72):
        for b in range(72):
            assert rows[a][b] == ("\\" if a == b else "#" if (a, b) in ring or (b, a) in ring else "*")
    assert "50 GB/s, 144 links" in lines[75]


def test_shared_paths_say_whether_both_directions_share_them():
    sites = (Site(1, 1),) * 4
    forth, back = ((0, 2), (0, 3), (1, 2), (1, 3)), ((2, 0), (3, 0), (2, 1), (3, 1))
    links = tuple(Resource(f"nv {a}>{b}", 9, ((a, b),)) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2)))
    text = draw(Machine("full duplex", sites, (*links, Resource("up", 5, forth), Resource("down", 5, back))))
    assert "up: 5 GB/s, one path that 4 pairs share, in one direction" in text.splitlines()
    assert "both directions" not in text
    text = draw(Machine("half duplex", sites, (*links, Resource("net", 5, forth + back))))
    assert "net: 5 GB/s, one path that 8 pairs share, both directions together" in text.splitlines()


def test_what_is_odd_is_said():
    sites = (Site(1, 1),) * 3
    machine = Machine(
        "odd",
        sites,
        (Resource("a", 5, ((0, 1),)), Resource("b", 7, ((1, 0),)), Resource("c", 1, ((1, 2), (2, 1)))),
    )
    text = draw(machine)
    assert "not alike both ways: 0>1 5 GB/s, 1>0 7 GB/s" in text
    assert "1 pair of sites without a direct link" in text
    assert draw(Machine("one", sites[:1], ())) == "links: none, as there is one site"
    assert "-" in draw(Machine("none", sites, ()))


def test_large_machines_have_a_summary():
    assert len(draw(load_machine("host", 300)).splitlines()) == 2


def test_ranges():
    assert format_ranges([]) == ""
    assert format_ranges({5, 0, 1, 2}) == "0-2, 5"
