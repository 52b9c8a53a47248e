"""Topology files: what they mean, what is assumed, and one clear error for each that is broken."""

import dataclasses
import random

import pytest

from einc.errors import EincError, MachineError, UsageError
from einc.machines.catalogue import compute_pcie_gbs, find_by_name, require_by_name
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides, build_machine
from einc.machines.importers.topology_facts import Topology
from einc.machines.load import build_gpu_site, format_machine, load_machine, parse_machine
from tests.support.paced import within
from tests.support.topologies import DGX1V, bus, cells, nccl, new_style, old_style, switched

CUBE = cells(DGX1V)


def machine_of(text, **overrides):
    return import_machine(text, "topo.txt", MachineOverrides(**overrides)).machine


def links(machine):
    """(GB/s, how many pairs share it) of every pair's narrowest resource."""
    table = {}
    for resource in machine.resources:
        for pair in resource.pairs:
            table[pair] = min(table.get(pair, (1e9, 0)), (resource.gbs, len(resource.pairs)))
    return table


@pytest.mark.parametrize("text", [old_style(CUBE), new_style(CUBE), nccl(CUBE)], ids=["old", "new", "nccl"])
def test_the_cube_mesh_is_the_preset(text):
    """Its links are; where it has one bridge, as the paper does, the import has a slot for each GPU."""
    machine, preset = machine_of(text), load_machine("dgx-v100")
    nvlinks = [resource for resource in machine.resources if resource.name.startswith("nv")]
    assert nvlinks == [resource for resource in preset.resources if resource.name.startswith("nv")]
    rates = links(machine)
    assert {pair for pair in rates if rates[pair][0] == 15.75} == set(preset.resources[-1].pairs)
    assert machine.sites == load_machine("dgx-1").sites
    assert machine.name == "v100-x8"
    assert parse_machine(format_machine(machine)) == machine


@pytest.mark.parametrize(
    ("preset", "count", "sm", "device", "chips"),
    [("dgx-a100", 12, 80, "0x20b0", 6), ("dgx-h100", 18, 90, "0x2330", 4)],
)
def test_switched_machines_are_the_presets(preset, count, sm, device, chips):
    rows = switched(8, count)
    for text in (old_style(rows), new_style(rows), nccl(rows, sm=sm, device=device, switches=chips)):
        assert machine_of(text, name=preset) == load_machine(preset)


def test_seventy_two_sites_from_nccl():
    text = nccl(switched(72, 18), sm=100, device="0x2941", switches=1)
    # 72 bus ids do not fit into one domain: number the GPUs' domains instead
    for site in range(72):
        text = text.replace(f'busid="{bus(site).upper()}"', f'busid="{site:04x}:01:00.0"')
    assert machine_of(text, name="gb200-nvl72") == load_machine("gb200-nvl72")


def test_the_file_may_name_the_gpus():
    listing = "".join(f"GPU {k}: NVIDIA A100-SXM4-80GB (UUID: GPU-{k})\n" for k in range(4))
    machine = machine_of(new_style(switched(4, 4), listing))
    assert machine == machine_of(new_style(switched(4, 4)) + listing)
    assert {site.memory_bytes for site in machine.sites} == {(81050 - 1024) * 2**20}
    assert links(machine) == {(a, b): (76.4, 1) for a in range(4) for b in range(4) if a != b}  # four boards in a mesh
    table = "|   0  NVIDIA H200                    On  |   00000000:19:00.0 Off |\n"
    table += "|   1  NVIDIA H200                    On  |   00000000:3B:00.0 Off |\n"
    machine = machine_of(new_style(switched(2, 18), table))
    assert machine.sites == (build_gpu_site(require_by_name("h200")),) * 2
    assert links(machine) == {(0, 1): (360, 1), (1, 0): (360, 1)}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM2...", None),  # cut, and there are two
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("a100-pcie", "a100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA RTX 6000 Ada Gene...", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("...", None),
    ],
)
def test_names_of_drivers(name, key):
    gpu = find_by_name(name)
    assert (None if gpu is None else gpu.name) == key


@pytest.mark.parametrize(
    ("name", "similar"),
    [("RTX 3090 Ti", "rtx-3090"), ("h100-sxm6", "h100-sxm"), ("NVIDIA L40G", "l40"), ("MI300", "mi300")],
)
def test_an_unknown_gpu_is_not_guessed(name, similar):
    with pytest.raises(UsageError, match="no GPU is known by the name") as caught:
        require_by_name(name)
    assert f"did you mean '{similar}" in caught.value.hint
    listing = f"GPU 0: {name} (UUID: GPU-1)\nGPU 1: {name} (UUID: GPU-2)\n"
    with pytest.raises(UsageError, match="names a GPU that is not known"):
        machine_of(listing + new_style([["X", "SYS"], ["SYS", "X"]]))


def test_what_stands_around_the_table_does_not_matter():
    around = "GPU0 <-> CPU:\n  * Atomic Supported: no\nGPU1 is fine\n\n```\n"
    plain = machine_of(new_style(CUBE))
    assert machine_of(around + new_style(CUBE) + "GPU0 again\n") == plain
    assert machine_of(new_style(CUBE).replace("\n", "\r\n")) == plain
    assert machine_of(old_style(CUBE).replace("\n", "\n\n").replace("GPU", "  GPU")) == plain
    plain = machine_of(nccl(CUBE))
    assert machine_of("\ufeff" + nccl(CUBE).replace("\n", "\r\n")) == plain
    assert machine_of('<?xml version="1.0" encoding="utf-16"?><!-- a dump -->' + nccl(CUBE)) == plain


def test_a_part_of_a_switch_is_a_switch_and_a_pair_is_a_link():
    for sites in (3, 4, 5):
        machine = machine_of(old_style(switched(sites, 12)), gpu="a100")
        assert [resource.name for resource in machine.resources][:1] == ["nvswitch out 0"]
        assert len(machine.resources) == 2 * sites
    pair = machine_of(old_style(switched(2, 12)), gpu="a100")
    assert [(r.name, r.gbs) for r in pair.resources] == [("nv12 0>1", 229.2), ("nv12 1>0", 229.2)]


def test_a_switch_port_that_lost_links_is_slower():
    rows = switched(8, 18)
    for peer in range(8):
        if peer != 3:
            rows[3][peer] = rows[peer][3] = "NV16"
    machine = machine_of(new_style(rows), gpu="h100")
    assert [r.gbs for r in machine.resources[:8]] == [356.4, 356.4, 356.4, 316.8, 356.4, 356.4, 356.4, 356.4]


def test_two_islands_and_a_bridge():
    rows = [["SYS"] * 6 for _ in range(6)]
    for k in range(6):
        rows[k][k] = "X"
    for a, b in ((0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)):
        rows[a][b] = rows[b][a] = "NV12"
    machine = machine_of(new_style(rows), gpu="a100")
    assert len({r.name for r in machine.resources}) == len(machine.resources) == 26
    assert links(machine)[0, 3] == (16, 9)  # between two sockets, as the affinities say
    assert links(machine)[3, 4] == (229.2, 2)


def test_a_gpu_without_nvlink_is_warned_about():
    text = nccl(switched(8, 18), sm=90, device="0x2330", speed="32.0 GT/s PCIe", switches=1)
    at = text.index('<gpu dev="5"')
    link = text.index("<nvlink", at)
    imported = import_machine(text[:link] + text[text.index("\n", link) :])
    assert [warning for warning in imported.warnings if "no NVLink at 5" in warning]
    assert links(imported.machine)[5, 0] == (16, 4)  # between the sockets, whose other GPUs have NVLink
    assert links(imported.machine)[5, 1] == links(imported.machine)[5, 3]
    assert links(imported.machine)[0, 1] == (356.4, 6)


def test_every_assumption_is_said_and_every_option_replaces_one():
    imported = import_machine(new_style(CUBE))
    text = "\n".join(imported.assumptions)
    for option in ("--gpu", "--memory-gib", "--hbm-gbs", "--nvlink-gbs", "--pcie-gbs"):
        assert option in text
    overrides = MachineOverrides(gpu="h100", name="mine", nvlink_gbs=21, pcie_gbs=12, hbm_gbs=800, memory_gib=30.5)
    imported = import_machine(new_style(CUBE), overrides=overrides)
    assert not [line for line in imported.assumptions if "--" in line]
    machine = imported.machine
    assert machine.name == "mine"
    assert links(machine)[0, 3] == (42, 1)
    assert links(machine)[0, 5] == (12, 3)
    assert machine.sites[0] == dataclasses.replace(
        build_gpu_site(require_by_name("h100")), hbm_gbs=800, memory_bytes=int(30.5 * 2**30)
    )


@pytest.mark.parametrize(
    "overrides",
    [{"name": "a\nb"}, {"name": "x" * 101}, {"memory_gib": 1e-12}, {"memory_gib": 1e15}, {"nvlink_gbs": 1e15}],
)
def test_overrides_that_no_machine_file_may_hold(overrides):
    with pytest.raises(UsageError, match="no machine can be like this"):
        machine_of(old_style(CUBE), **overrides)


def test_unknown_gpus_need_an_option():
    rows = [["X", "SYS"], ["SYS", "X"]]
    with pytest.raises(UsageError, match="does not tell which GPU") as caught:
        machine_of(old_style(rows))
    assert "--gpu (p100, v100" in caught.value.render()
    machine = machine_of(old_style(rows), hbm_gbs=900, memory_gib=24)
    assert (machine.name, links(machine)[0, 1], machine.sites[0].flops) == ("gpus-x2", (15.75, 1), ())
    with pytest.raises(UsageError, match="NVLinks"):
        machine_of(old_style(switched(2, 3)), hbm_gbs=900, memory_gib=24)
    machine = machine_of(old_style(switched(2, 3)), hbm_gbs=900, memory_gib=24, nvlink_gbs=14)
    assert links(machine)[0, 1] == (42, 1)
    assert machine_of("GPU0 CPU Affinity\nGPU0 X 0-9\n", gpu="a100").resources == ()


def test_pcie_rates():
    assert [compute_pcie_gbs(gts, 16) for gts in (2.5, 5, 8, 16, 32)] == [4, 8, 15.75, 31.51, 63.02]
    rows = [["X", "SYS"], ["SYS", "X"]]

    def read(text):
        return links(machine_of(text, socket_gbs=50))[0, 1]

    speeds = ("16.0 GT/s PCIe", "2.5 GT/s", "Unknown", "")
    assert [read(nccl(rows, speed=speed))[0] for speed in speeds] == [31.51, 15.75, 15.75, 15.75]
    assert read(nccl(rows).replace('link_width="16"', 'link_width="8"', 1)) == (7.88, 1)
    assert read(nccl(rows).replace('link_width="16"', 'link_width="0"')) == (15.75, 1)
    assert links(machine_of(nccl(rows, speed="32 GT/s")))[0, 1] == (16, 1)  # between two sockets


def test_links_to_gpus_that_nccl_was_not_given():
    text = nccl(CUBE)
    machine = machine_of(text)
    kept, left_out = [], False
    for line in text.splitlines():
        left_out = left_out or any(f'busid="{bus(site).upper()}"' in line for site in (4, 5, 6, 7))
        if not left_out:
            kept.append(line)
        left_out = left_out and "</pci>" not in line
    imported = import_machine("\n".join(kept))
    assert len(imported.machine.sites) == 4
    assert "0000:30:00.0" in imported.warnings[0]
    assert links(imported.machine) == {pair: rate for pair, rate in links(machine).items() if max(pair) < 4}


BROKEN_TABLES = {
    "asymmetric": (lambda t: t.replace("NV1", "NV2", 1), "GPU0 to GPU1 is NV2, but GPU1 to GPU0 is NV1"),
    "asymmetric path": (lambda t: t.replace("SYS", "PIX", 1), "is PIX, but GPU5 to GPU0 is SYS"),
    "one way only": (lambda t: t.replace("NV1", "SYS", 1), "GPU0 to GPU1 is SYS, but GPU1 to GPU0 is NV1"),
    "truncated": (lambda t: t[: t.index("GPU5", 100)], "ends before the row of GPU5 (and those of 2 more)"),
    "cut in a row": (lambda t: t[: t.index("GPU7", 100) + 22], "the row of GPU7 should have 9 columns of links"),
    "a column less": (
        lambda t: t.replace("NV1", "   ", 1),
        "the row of GPU0 should have 9 columns of links, and has 8",
    ),
    "a column more": (lambda t: t.replace("NV1", "NV1 NV1", 1), "columns of links, and has more"),
    "unknown word": (lambda t: t.replace("NV1", "XGMI", 1), "GPU0 to GPU1 is 'XGMI', which is no kind of link"),
    "no links": (lambda t: t.replace("NV1", "NV0", 1), "'NV0'"),
    "NaN": (lambda t: t.replace("NV1", "NaN", 1), "'NaN'"),
    "p2p": (lambda t: t.replace("NV1", "OK").replace("NV2", "OK"), "which is no kind of link"),
    "no diagonal": (lambda t: t.replace(" X ", "SYS", 1), "GPU0 to GPU0 is SYS, and should be X"),
    "two tables": (lambda t: t.split("Legend")[0] * 2, "GPU0 has a second row"),
    "row of another": (lambda t: t.replace("\nGPU7", "\nGPU9"), "the row GPU9 has no column"),
    "column twice": (lambda t: t.replace("GPU7", "GPU6", 1), "the column GPU6 is there twice"),
    "disconnected": (lambda t: t.replace("SYS", "N/A").replace("NV1", "N/A").replace("NV2", "N/A"), "no data can get"),
    "two links too many": (lambda t: t.replace("NV2", "NV4"), "shows 10 NVLinks, but such a GPU has 6"),
    "empty": (lambda t: "", "there is no topology table"),
    "legend only": (lambda t: t[t.index("Legend") :], "there is no topology table"),
    "header only": (lambda t: t.splitlines()[0], "ends before the row of GPU0"),
    "a machine file": (lambda t: '{"name": 1}', "this is JSON"),
    "binary": (lambda t: "\0\x01\x02", "there is no topology table"),
}


@pytest.mark.parametrize("case", BROKEN_TABLES)
def test_broken_tables_have_one_clear_error(case):
    damage, words = BROKEN_TABLES[case]
    with pytest.raises(MachineError) as caught:
        machine_of(damage(old_style(CUBE)), gpu="v100")
    assert words in caught.value.render()
    assert caught.value.render().startswith("topo.txt")
    assert len(caught.value.render()) < 700


LAUGHS = "<!DOCTYPE l [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {chr(98 + k)} '{f'&{chr(97 + k)};' * 10}'>" for k in range(9)
)
BROKEN_XML = {
    "asymmetric": (lambda t: t.replace('count="1"', 'count="2"', 1), "NVLinks to"),
    "one way only": (lambda t: t.replace(t[(i := t.index("<nvlink")) : t.index("/>", i) + 2], "", 1), "and GPU "),
    "no count": (lambda t: t.replace(' count="1"', "", 1), "<nvlink> lacks its attribute count"),
    "count 0": (lambda t: t.replace('count="1"', 'count="0"', 1), "expected a count of NVLinks from 1, found '0'"),
    "count NaN": (lambda t: t.replace('count="1"', 'count="nan"', 1), "found 'nan'"),
    "count huge": (lambda t: t.replace('count="1"', f'count="{"9" * 5000}"', 1), "expected a count"),
    "speed 0": (lambda t: t.replace("8 GT/s", "0 GT/s"), "expected a link_speed such as '16.0 GT/s', found '0 GT/s'"),
    "speed NaN": (lambda t: t.replace("8 GT/s", "nan GT/s"), "found 'nan GT/s'"),
    "speed inf": (lambda t: t.replace("8 GT/s", "inf GT/s"), "found 'inf GT/s'"),
    "speed negative": (lambda t: t.replace("8 GT/s", "-8 GT/s"), "found '-8 GT/s'"),
    "to itself": (lambda t: t.replace(f'target="{bus(1)}"', f'target="{bus(0)}"'), "to itself"),
    "class": (lambda t: t.replace(f'"{bus(1)}" count="1" tclass="0x030200"', '"x" count="1" tclass="7"'), "class '7'"),
    "bus ids": (lambda t: t.replace(bus(1).upper(), bus(0).upper()), "two GPUs have the bus id"),
    "hosts": (
        lambda t: t.replace('0x7"', '0x8"', 1).replace("0x030200", "0x068001").replace("<net ", "<other "), "no data"
    ),
    "truncated": (lambda t: t[: len(t) // 2], "not well-formed XML"),
    "no GPUs": (lambda t: "<system version='1'><cpu><pci busid='0'/></cpu></system>", "lists no GPUs"),
    "graph": (lambda t: "<graphs version='1'/>", "NCCL_GRAPH_DUMP_FILE"),
    "html": (lambda t: "<html/>", "expected NCCL's <system>, or hwloc's <topology>, found <html>"),
    "version": (lambda t: t.replace('version="1"', 'version="3"'), "expected version 1 of NCCL's topology, or 2"),
    "gpu alone": (lambda t: "<system><gpu/></system>", "stands in no <pci>"),
    "doctype": (lambda t: "<!DOCTYPE system>" + t, "a document type"),
    "laughs": (lambda t: LAUGHS + "]><system>&j;</system>", "a document type"),
    "external": (lambda t: "<!DOCTYPE s SYSTEM 'file:///etc/passwd'>" + t, "a document type"),
    "parameter": (lambda t: "<!DOCTYPE s [<!ENTITY % p SYSTEM 'http://127.0.0.1/'> %p;]>" + t, "a document type"),
    "entity": (lambda t: "<system version='&x;'/>", "undefined entity"),
    "deep": (lambda t: "<system>" * 100_000, "nested deeper"),
    "many": (lambda t: "<system>" + "<a/>" * 200_000, "more than 200000 elements"),
    "attributes": (lambda t: "<system " + " ".join(f"a{k}=''" for k in range(9999)) + "/>", "attributes"),
    "surrogate": (lambda t: t.replace("0x7", "\ud800"), "no text"),
    "nul": (lambda t: t.replace("0x7", "\0"), "not well-formed"),
    "two roots": (lambda t: t + t, "not well-formed"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_XML)
def test_broken_xml_has_one_clear_error(case):
    damage, words = BROKEN_XML[case]
    text = damage(nccl(CUBE))
    with within(5), pytest.raises(MachineError) as caught:
        machine_of(text)
    assert words in caught.value.render()
    assert caught.value.render().startswith("topo.txt")
    assert len(caught.value.render()) < 700


def test_an_error_points_at_its_word():
    text = old_style(CUBE).replace("NV2", "NVX", 1)
    lines = text.splitlines()
    with pytest.raises(MachineError) as caught:
        machine_of(text)
    span = caught.value.where
    assert lines[span.line - 1][span.column - 1 : span.end_column - 1] == "NVX"
    text = nccl(CUBE).replace('count="2"', 'count="x"', 1)
    with pytest.raises(MachineError) as caught:
        machine_of(text)
    span = caught.value.where
    marked = text.splitlines()[span.line - 1][span.column - 1 : span.end_column - 1]
    assert marked.startswith("<nvlink")
    assert marked.endswith('count="x" tclass="0x030200"/>')


@pytest.mark.parametrize("text", [old_style(CUBE), new_style(switched(5, 12)), nccl(CUBE)], ids=["old", "new", "nccl"])
def test_damaged_files_are_refused_or_read_but_never_crash(text):
    noise, reports = random.Random(5), []
    for _ in range(250):
        damaged = text
        for _ in range(noise.randrange(1, 4)):
            at, length = noise.randrange(len(damaged)), noise.randrange(5)
            change = "".join(noise.choices("0159-.NVXSYGPU/<>&;\"'= \n\t\x00\x1b[é", k=length))
            damaged = damaged[:at] + change + damaged[at + noise.randrange(6) :]
        try:
            machine = import_machine(damaged).machine
        except EincError as error:
            reports.append(len(error.render()))
            continue
        assert parse_machine(format_machine(machine)) == machine
    assert max(reports) < 1200


def test_large_tables_are_read_in_time_and_larger_ones_refused():
    with within(5):
        assert len(machine_of(new_style(switched(100, 12)), gpu="a100").sites) == 100
    for text in (
        " ".join(f"GPU{k}" for k in range(1500)),
        " ".join(f"n{k}" for k in range(9)) + " GPU0" * 100_000,
        "GPU0 " + " ".join(f"n{k}" for k in range(100_000)),
        "GPU0\n" + "GPU0 X" + " SYS" * 200_000,
        "\x1b[" * 1_000_000,
        "<" * 1_000_000,
        "\n" * 5_000_000,
    ):
        with within(5), pytest.raises(MachineError) as caught:
            import_machine(text)
        assert len(caught.value.render()) < 700


def test_unlike_gpus_meet_at_the_slower_ones_rate():
    pair = {(0, 1): 3, (1, 0): 3}
    topology = Topology(("GPU 0", "GPU 1"), (require_by_name("b200"), require_by_name("h100")), pair, (0, 0), (0, 0))
    for links in (
        (require_by_name("b200"), require_by_name("h100")),
        (require_by_name("h100"), require_by_name("b200")),
    ):
        machine = build_machine(dataclasses.replace(topology, gpus=links), MachineOverrides(), "t").machine
        assert [resource.gbs for resource in machine.resources] == [59.4] * 2


def test_what_the_user_says_of_pcie_comes_before_the_file_and_that_before_the_table():
    topology = Topology(("GPU 0", "GPU 1"), (require_by_name("a100"), require_by_name("v100")), {}, (0, 0), (0, 0))
    for told, wish, gbs in ((8.0, 12.0, 12.0), (8.0, None, 8.0), (None, None, require_by_name("v100").pcie_gbs)):
        machine = build_machine(
            dataclasses.replace(topology, pcie_gbs=told), MachineOverrides(pcie_gbs=wish), "t"
        ).machine
        assert [(resource.name, resource.gbs) for resource in machine.resources] == [("pcie", gbs)]
