"""Machine files are untrusted: each mistake is one error that names its place, in bounded time and memory."""

import copy
import json
import random
import re
from pathlib import Path
from typing import get_args

import pytest

from einc.errors import MachineError
from einc.machines import load
from einc.machines.load import format_machine, parse_machine
from einc.machines.model import KernelRate, Machine, Resource, Site
from einc.machines.schema import TaskName
from einc_runtime.kernels.registry import JOINT_AGGREGATIONS
from einc_runtime.plan.reproducible import ADDING_KERNELS, SUMLESS_KERNELS
from tests.support.paced import within

GOOD = {
    "name": "two",
    "sites": [
        {"hbm_gbs": 900, "memory_bytes": 34359738368, "flops": {"f16": 1.25e14, "f32": 1.57e13}},
        {"hbm_gbs": 800.5, "memory_bytes": 1},
    ],
    "resources": [{"name": "nv 0>1", "gbs": 25, "pairs": [[0, 1]]}, {"name": "nv 1>0", "gbs": 12.5, "pairs": [[1, 0]]}],
    "latency_us": {"transfer": 4, "kernel": 2},
}
RULE = {"kind": "switch", "name": "s", "gbs": 5}
KERNEL = {"task": "contract", "dtype": "f32", "us": 20, "flops": 1e11, "gbs": 12.5}
NETWORK = {"kind": "network", "name": "net", "gbs": 50, "groups": [[0], [1]]}


def test_the_plain_form():
    assert parse_machine(json.dumps(GOOD)) == Machine(
        "two",
        (Site(900, 34359738368, (("f16", 1.25e14), ("f32", 1.57e13))), Site(800.5, 1)),
        (Resource("nv 0>1", 25, ((0, 1),)), Resource("nv 1>0", 12.5, ((1, 0),))),
        4,
        2,
    )


def test_a_measured_machine():
    kernels = [KERNEL, {"task": "contract", "us": 1}, {"task": "copy", "gbs": 8}]
    tree = GOOD | {"sites": {"count": 2, "hbm_gbs": 9, "memory_bytes": 1, "kernels": kernels}, "cores": 3}
    machine = parse_machine(json.dumps(tree | {"measured": "a processor"}))
    site = machine.sites[1]
    assert (machine.cores, machine.measured) == (3, "a processor")
    assert site.find_rate("contract", "f32") == KernelRate(20, 1e11, 12.5)
    assert site.find_rate("contract", "f16") == KernelRate(1)
    assert site.find_rate("copy", "f32") == KernelRate(0, gbs=8)
    assert site.find_rate("map", "f32") is None
    assert site.find_rate("contract", "f32").compute_ms(1e9, 1e6) == pytest.approx(0.02 + 10 + 0.08)
    assert parse_machine(format_machine(machine)) == machine
    assert machine.restrict([1]).sites == (site,)
    assert machine.restrict([1, 0]).cores == 3
    plain = parse_machine(json.dumps(GOOD))
    assert not {"kernels", "cores", "measured"} & set(format_machine(plain).split('"'))


def test_every_kernel_of_the_runtime_can_be_measured():
    # The time of an operator of a package comes from its own flops and bytes.
    further = {"aggregate", "copy", "transfer", *(f"aggregate_{name}" for name in JOINT_AGGREGATIONS["numpy"])}
    assert set(get_args(TaskName)) == ADDING_KERNELS | SUMLESS_KERNELS | further


def test_rules_stand_for_resources():
    text = json.dumps(
        {
            "name": "rules",
            "sites": {"count": 4, "hbm_gbs": 1, "memory_bytes": 1},
            "resources": [{"name": "own", "gbs": 9, "pairs": [[0, 3]]}],
            "rules": [
                {"kind": "switch", "name": "x", "gbs": 5, "sites": [1, 0]},
                {"kind": "links", "name": "l", "gbs": 2, "between": [[2, 1]]},
                {"kind": "shared", "name": "some", "gbs": 3, "pairs": [[2, 0]]},
                {"kind": "shared", "name": "bus", "gbs": 1, "pairs": "rest"},
            ],
        }
    )
    assert parse_machine(text).resources == (
        Resource("own", 9, ((0, 3),)),
        Resource("x out 0", 5, ((0, 1),)),
        Resource("x out 1", 5, ((1, 0),)),
        Resource("x in 0", 5, ((1, 0),)),
        Resource("x in 1", 5, ((0, 1),)),
        Resource("l 2>1", 2, ((2, 1),)),
        Resource("l 1>2", 2, ((1, 2),)),
        Resource("some", 3, ((0, 2), (2, 0))),
        Resource("bus", 1, ((1, 3), (2, 3), (3, 0), (3, 1), (3, 2))),
    )


def test_a_network_joins_groups_of_sites():
    groups = ((3, 0), (1,), (2, 4))
    at = {site: number for number, group in enumerate(groups) for site in group}
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    for per, key in (("group", at.get), ("site", int), (None, at.get)):
        rule = {"kind": "network", "name": "net", "gbs": 50, "groups": groups} | ({} if per is None else {"per": per})
        nodes = {"kind": "links", "name": "nv", "gbs": 300, "between": [[0, 3], [2, 4]]}
        sites = {"count": 5, "hbm_gbs": 1, "memory_bytes": 1}
        machine = parse_machine(json.dumps({"name": "nodes", "sites": sites, "rules": [nodes, rule]}))
        crossed = {pair: {machine.resources[k].name for k in machine.routes[pair]} for pair in pairs}
        for a, b in pairs:
            inside = {f"nv {a}>{b}"}
            assert crossed[a, b] == (inside if at[a] == at[b] else {f"net out {key(a)}", f"net in {key(b)}"})
        assert {resource.gbs for resource in machine.resources if resource.name.startswith("net")} == {50}


def rails(spine_gbs):
    rule = {"kind": "network", "name": "ib", "gbs": 50, "groups": [[0, 1], [3, 2], [4, 5]], "per": "site"}
    nodes = {"kind": "links", "name": "nv", "gbs": 450, "between": [[0, 1], [2, 3], [4, 5]]}
    sites = {"count": 6, "hbm_gbs": 1, "memory_bytes": 1}
    text = json.dumps({"name": "rails", "sites": sites, "rules": [nodes, rule | {"spine_gbs": spine_gbs}]})
    machine = parse_machine(text)
    return {pair: {machine.resources[k].name for k in crossed} for pair, crossed in machine.routes.items()}


def test_rails_share_leaf_switches():
    rail = {0: 0, 3: 0, 4: 0, 1: 1, 2: 1, 5: 1}
    for a, b in [(a, b) for a in range(6) for b in range(6) if a != b]:
        cards = {f"ib out {a}", f"ib in {b}"}
        if a // 2 == b // 2:
            expected = narrow = none = {f"nv {a}>{b}"}
        elif rail[a] == rail[b]:
            expected = narrow = none = cards
        else:
            expected, narrow, none = cards, cards | {f"ib spine out {rail[a]}", f"ib spine in {rail[b]}"}, None
        assert rails(150)[a, b] == expected  # no spine of three cards' rate is ever full
        assert rails(149)[a, b] == narrow
        assert rails(0).get((a, b)) == none


def change(path, value):
    tree = copy.deepcopy(GOOD)
    at = tree
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["extra"], 1, "unknown field 'extra'"),
        (["name"], "", "name: expected a name"),
        (["name"], "a\nb", "name: expected a name"),
        (["name"], 5, "name: expected a name"),
        (["sites"], [], "at least one site"),
        (["sites"], 8, "sites: expected a list"),
        (["sites"], {"hbm_gbs": 1, "memory_bytes": 1}, "sites.count: the number of sites is missing"),
        (["sites"], {"hbm_gbs": 1, "memory_bytes": 1, "count": 10**9}, "sites.count: expected a whole number"),
        (["sites"], [GOOD["sites"][1]] * 2000, "at most 1024"),
        (["sites", 0, "hbm_gbs"], 0, "sites[0].hbm_gbs"),
        (["sites", 0, "hbm_gbs"], -1, "sites[0].hbm_gbs"),
        (["sites", 0, "hbm_gbs"], 1e300, "sites[0].hbm_gbs"),
        (["sites", 0, "hbm_gbs"], "900", 'sites[0].hbm_gbs: expected a number from 1e-09 to 1e+15, found "900"'),
        (["sites", 0, "hbm_gbs"], True, "sites[0].hbm_gbs: expected a number from 1e-09 to 1e+15, found true"),
        (["sites", 0, "hbm_gbs"], None, "found null"),
        (["sites", 0, "memory_bytes"], 1.5, "memory_bytes: expected a whole number"),
        (["sites", 0, "memory_bytes"], True, "memory_bytes: expected a whole number"),
        (["sites", 0, "memory_bytes"], 2**80, "memory_bytes: expected a whole number"),
        (["sites", 0, "memory_bytes"], 0, "memory_bytes: expected a whole number"),
        (["sites", 0, "flops"], {"f16": 0}, "sites[0].flops.f16"),
        (["sites", 0, "flops"], [1], "sites[0].flops"),
        (["sites", 0, "flops"], {"fp16": 1e12}, "sites[0].flops: unknown field 'fp16' (known: f16, bf16, f32, f64"),
        (["sites", 1], {}, "sites[1]: the field 'hbm_gbs' is missing"),
        (["resources", 1, "gbs"], 0, "resources[1].gbs"),
        (["resources", 1, "pairs"], [], "at least one pair"),
        (["resources", 1, "pairs"], [[1, 1]], "a pair of site 1 with itself"),
        (["resources", 1, "pairs"], [[1, 2]], "resources[1].pairs[0]"),
        (["resources", 1, "pairs"], [[1, -1]], "resources[1].pairs[0]"),
        (["resources", 1, "pairs"], [[1, False]], "resources[1].pairs[0]"),
        (["resources", 1, "pairs"], [[1]], "expected a pair"),
        (["resources", 1, "pairs"], [[1, 0, 1]], "pairs[0]: expected a pair of sites, found a list of 3"),
        (["resources", 1, "pairs"], [[1, 0], [1, 0]], "the pair [1, 0] is listed twice"),
        (["resources", 1, "pairs"], [[1, 0]] * 500, "at most 4"),
        (["resources", 1, "name"], "nv 0>1", "two resources have the name"),
        (["resources", 0], "nv", "resources[0]: expected an object"),
        (["resources"], [], "no data can get from site 0 to site 1"),
        (["resources"], [GOOD["resources"][0]], "resources: site 0 can send to site 1, but 1 not to 0"),
        (["sites"], [GOOD["sites"][1]] * 4, "joined with 1 of the 3 others"),
        (["latency_us", "transfer"], -1, "latency_us.transfer"),
        (["latency_us", "wire"], 1, "unknown field 'wire'"),
        (["cores"], 0, "cores: expected a whole number from 1 to 1024, found 0"),
        (["cores"], "2", "cores: expected a whole number"),
        (["measured"], "a\nb", "measured: expected a name of 1 to 100 printable characters"),
        (["measured"], 7, "measured: expected a text"),
        (["sites", 0, "kernels"], {}, "sites[0].kernels: expected a list of at most 200 measured tasks"),
        (["sites", 0, "kernels"], [KERNEL] * 201, "sites[0].kernels: expected a list of at most 200"),
        (["sites", 0, "kernels"], [KERNEL, KERNEL], "sites[0].kernels[1]: 'contract.f32' is listed twice"),
        (["sites", 0, "kernels"], [{"us": 1}], "sites[0].kernels[0]: the field 'task' is missing"),
        (["sites", 0, "kernels"], [{**KERNEL, "task": "gemm"}], "sites[0].kernels[0].task: expected one of contract, "),
        (["sites", 0, "kernels"], [{**KERNEL, "dtype": "f8"}], "sites[0].kernels[0].dtype: expected one of f16, "),
        (["sites", 0, "kernels"], [{**KERNEL, "us": -1}], "sites[0].kernels[0].us: expected a number from 0"),
        (["sites", 0, "kernels"], [{**KERNEL, "flops": 0}], "sites[0].kernels[0].flops: expected a number from 1"),
        (["sites", 0, "kernels"], [{**KERNEL, "gbs": 0}], "sites[0].kernels[0].gbs: expected a number from 1e-09"),
        (["sites", 0, "kernels"], [{**KERNEL, "k": 0}], "sites[0].kernels[0]: unknown field 'k' (known: task, dtype"),
        (["rules"], [{**RULE, "kind": "ring"}], "rules[0].kind: expected switch, links, shared or network"),
        (["rules"], [{**RULE, "sites": [0, 0]}], "rules[0].sites: a site is listed twice"),
        (["rules"], [{**RULE, "between": [[0, 1]]}], "rules[0]: unknown field 'between'"),
        (["rules"], [{**RULE, "kind": "links"}], "rules[0]: the field 'between' is missing"),
        (["rules"], [{**RULE, "kind": "links", "between": [[0, 1], [1, 0]]}], "in both directions"),
        (["rules"], [RULE, RULE], "rules[1].name: with 's', two resources have the name 's out 0'"),
        (["rules"], [{**RULE, "peak_gbs": 4}], "rules[0].peak_gbs: expected at least gbs, 5, found 4"),
        (["rules"], [{**NETWORK, "groups": [[0, 1]]}], "rules[0].groups: a network joins at least two groups"),
        (["rules"], [{**NETWORK, "groups": [[0, 1], []]}], "rules[0].groups: a network joins at least two groups"),
        (["rules"], [{**NETWORK, "groups": [[0], [1, 0]]}], "rules[0].groups: a site is listed in two groups"),
        (["rules"], [{**NETWORK, "groups": [[0], [2]]}], "rules[0].groups[1]"),
        (["rules"], [{**NETWORK, "per": "node"}], 'rules[0].per: expected "group" or "site", found "node"'),
        (["rules"], [{**NETWORK, "spine_gbs": -1}], "rules[0].spine_gbs: expected a number from 0 to 1e+15, found -1"),
        (["rules"], [{**NETWORK, "spine_gbs": 5}], 'rules[0]: with spine_gbs, groups must be of one size, and "per"'),
        (["rules"], [{**NETWORK, "pairs": "rest"}], "rules[0]: unknown field 'pairs'"),
        (["rules"], [{"name": "s", "gbs": 5}], "rules[0]: the field 'kind' is missing"),
        (["rules"], [{**RULE, "kind": ["switch"]}], "rules[0].kind: expected switch, links, shared or network"),
        (["rules"], [{**RULE, "kind": "shared", "pairs": "all"}], "rules[0].pairs: expected a list of pairs"),
        (["rules"], [{**RULE, "sites": [0, 2]}], "rules[0].sites[1]: expected a site from 0 to 1, found 2"),
        (["rules"], [{**RULE, "sites": [0, "1"]}], "rules[0].sites[1]: expected the number of a site"),
        (["rules"], [{**RULE, "name": "\x1b[2J"}], "rules[0].name: expected a name of 1 to 100 printable characters"),
        (["rules"], [RULE] * 1001, "rules: expected a list of at most 1000 rules, found a list of 1,001 items"),
        (["resources", 0, "x` - at `$.sites[7].hbm_gbs"], 1, "resources[0]: unknown field 'x` - at `$.sites[7]"),
        (["x` - at `$.sites[7].hbm_gbs"], 1, "unknown field 'x` - at `$.sites[7]"),
        (["\ud800"], 1, "half of a pair of surrogates"),
    ],
)
def test_each_mistake_names_its_place(path, value, words):
    with pytest.raises(MachineError) as caught:
        parse_machine(change(path, value), "mine.json")
    assert words in caught.value.message
    assert caught.value.render().startswith("mine.json: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"two"',
        "\x00\x01",
        "[" * 200_000,
        '{"a":' * 100_000,
        json.dumps(GOOD).replace("900", "NaN"),
        json.dumps(GOOD).replace("900", "-Infinity"),
        json.dumps(GOOD).replace("900", "1e999"),
        json.dumps(GOOD).replace("900", "9" * 100_000),
        json.dumps(GOOD).replace("34359738368", "9" * 5000),
        json.dumps(GOOD).replace('"name": "two"', '"name": "two", "name": "three"'),
        json.dumps(GOOD) + "x",
        " " * (17 * 2**20),
        '{"name": "\\ud800", "sites": []}',
        json.dumps({"name": "p", "sites": {"count": 1024, "hbm_gbs": 1, "memory_bytes": 1}, "rules": [
            {**RULE, "name": f"s{k}"} for k in range(50)]}),
        json.dumps({"name": "p", "sites": {"count": 1024, "hbm_gbs": 1, "memory_bytes": 1}, "rules": [
            {"kind": "shared", "name": f"s{k}", "gbs": 1, "pairs": "rest"} for k in range(1000)] + [RULE, RULE]}),
        json.dumps({**GOOD, "resources": [{"name": "r", "gbs": 1, "pairs": [[0, 1]]}] * 20_000}),
    ],
    ids=lambda text: text[:12] + text[-8:] if text.isprintable() else "binary",
)  # fmt: skip
def test_hostile_texts_end_in_one_error(text):
    with within(10), pytest.raises(MachineError) as caught:
        parse_machine(text)
    assert len(caught.value.render()) < 500


def test_damaged_files_are_refused_or_read_but_never_crash():
    noise = random.Random(3)
    text = json.dumps(GOOD)
    for _ in range(600):
        at, length = noise.randrange(len(text)), noise.randrange(4)
        damaged = (
            text[:at] + "".join(noise.choices('0159-.e"[]{},:ntf \x00', k=length)) + text[at + noise.randrange(4) :]
        )
        try:
            machine = parse_machine(damaged)
        except MachineError:
            continue
        assert all(site.hbm_gbs > 0 for site in machine.sites)
        assert all(a != b and max(a, b) < len(machine.sites) for r in machine.resources for a, b in r.pairs)


def test_a_part_of_a_machine_may_be_apart():
    text = json.dumps({**GOOD, "resources": []})
    assert len(parse_machine(text, connected=False).sites) == 2
    with pytest.raises(MachineError):
        parse_machine(text)


def test_the_machines_of_the_documentation_are_machines():
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text(encoding="utf-8")
    texts = re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)
    machines = [parse_machine(text) for text in texts]
    assert [machine.name for machine in machines] == ["two GPUs", "host", "mesh", "two nodes"]
    assert len(machines[3].routes) == 8 * 7


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path, monkeypatch):
    """Its bytes are counted: letters of two bytes would be cut off where the text is still short enough."""
    monkeypatch.setattr(load, "MAX_MACHINE_TEXT", 1000)
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"name": "\u00e9" * 600}, ensure_ascii=False))
    with pytest.raises(MachineError, match="larger than 1000 bytes"):
        load.load_machine(str(path))
