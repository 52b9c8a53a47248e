"""The naive body, and the memberships of partitions that are declared by size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.language import resolve as resolving
from einc.exchange.language.checker import check
from einc.exchange.language.parser import parse
from einc.exchange.language.printer import format_action, print_program
from einc.exchange.language.resolve import ground, read_program, resolve
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, PREAMBLE, SWAP, machines_and_programs
from tests.support.property_examples import examples


def naive_actions(text, machine):
    return list(map(format_action, build_naive_body(read_program(text), load_machine(machine)).actions))


def test_the_naive_body_of_the_papers_programs():
    assert naive_actions(SWAP, "dgx-h100") == ["B @ 1 -> 0", "A @ 0 -> 1", "A+B @ 0", "A+B @ 1"]
    h100 = load_machine("dgx-h100").ideal()
    # swap: as the paper's own. all-reduce of four: 3 GB into each site, then 5 GB of HBM traffic
    assert simulate(build_naive_body(read_program(SWAP), h100), h100).completion_ms == pytest.approx(
        1e3 / 450 + 3e3 / 3350
    )
    program = build_naive_body(read_program(DOUBLING), h100)
    assert simulate(program, h100).completion_ms == pytest.approx(3e3 / 450 + 5e3 / 3350)


def test_each_missing_part_comes_from_the_widest_then_lowest_holder():
    assert naive_actions("IN: A @ 1, 2, 3, 6, 7\nOUT: A @ 0", "dgx-v100") == ["A @ 3 -> 0"]  # 50 GB/s, as 4 would be
    assert naive_actions("IN: A @ 7, 6, 2\nOUT: A @ 0", "dgx-v100") == ["A @ 2 -> 0"]  # 25 GB/s, the others the bridge
    assert naive_actions("IN: A @ 7, 6\nOUT: A @ 0", "dgx-v100") == ["A @ 6 -> 0"]
    assert naive_actions("IN: A @ 2; B @ 0\nOUT: A+B @ 0; A @ 0, 1, 2", "dgx-h100") == ["A @ 2 -> 0, 1", "A+B @ 0"]


def line(*gbs):
    """A machine whose sites stand in a line, with links of these bandwidths in both directions."""
    pairs = [pair for k in range(len(gbs)) for pair in ((k, k + 1), (k + 1, k))]
    links = tuple(Resource(f"{a}-{b}", gbs[min(a, b)], ((a, b),)) for a, b in pairs)
    return Machine("line", load_machine("dgx-h100").sites[:1] * (len(gbs) + 1), links)


def test_where_no_link_joins_two_sites_others_pass_parts_on():
    def actions(text, machine):
        program = build_naive_body(read_program(text), machine)
        assert not check(program, machine).faults
        return " / ".join(map(format_action, program.actions))

    assert actions("IN: A @ 0\nOUT: A @ 3", line(1, 1, 1)) == "A @ 0 -> 1 / A @ 1 -> 2 / A @ 2 -> 3"
    assert actions("IN: A @ 0, 4\nOUT: A @ 2", line(1, 1, 5, 5)) == "A @ 4 -> 3 / A @ 3 -> 2"  # the quicker way
    assert actions("IN: A @ 0, 3\nOUT: A @ 2", line(9, 9, 1)) == "A @ 3 -> 2"  # a link before any relay
    assert actions("IN: A @ 0\nOUT: A @ 3, 1, 2", line(1, 1, 1)) == "A @ 0 -> 1 / A @ 1 -> 2 / A @ 2 -> 3"
    both = "B @ 2 -> 1 / B @ 1 -> 0 / A @ 0 -> 1 / A @ 1 -> 2 / A+B @ 0 / A+B @ 1 / A+B @ 2"
    assert actions("IN: A @ 0; B @ 2\nOUT: A+B @ 0, 1, 2", line(1, 1)) == both
    with pytest.raises(ProgramError, match="cannot be gathered"):
        actions("GPUS: 0, 2\nIN: A @ 0\nOUT: A @ 2", line(1, 1))


def test_equally_wide_holders_send_equally_much():
    text = "IN: A @ 0, 1; B @ 0, 1 (size: 3 GB); C @ 0, 1; D @ 1, 0\nOUT: A @ 2; B @ 2; C @ 2, 3; D @ 2; C @ 2"
    assert naive_actions(text, "dgx-h100") == ["A @ 0 -> 2", "B @ 1 -> 2", "C @ 0 -> 2, 3", "D @ 0 -> 2"]
    shared = "IN: A @ 0, 1; A+B @ 1; B @ 0\nOUT: A @ 2, 3; A+B @ 3"
    assert naive_actions(shared, "dgx-h100") == ["A @ 0 -> 2", "A @ 1 -> 3", "A+B @ 1 -> 3"]


def test_aggregates_of_in_are_parts():
    # A+B waits at the target, so only C moves; D comes inside C+D where that saves a part
    assert naive_actions("IN: A @ 1; B @ 1; C @ 1; A+B @ 0\nOUT: A+B+C @ 0", "dgx-h100") == ["C @ 1 -> 0", "A+B+C @ 0"]
    assert naive_actions("IN: A @ 0; C+D @ 1; C @ 2; D @ 2\nOUT: A+C+D @ 0", "dgx-h100") == [
        "C+D @ 1 -> 0", "A+C+D @ 0",
    ]  # fmt: skip
    assert naive_actions("IN: A+B @ 1\nOUT: A+B @ 1, 0", "dgx-h100") == ["A+B @ 1 -> 0"]


def test_a_requirement_that_cannot_be_gathered():
    with pytest.raises(ProgramError, match=r"A\+B\+C cannot be gathered at site 0.*count B twice"):
        naive_actions("IN: A+B @ 1; B+C @ 2\nOUT: A+B+C @ 0", "dgx-h100")
    with pytest.raises(ProgramError, match="IN holds no Z"):
        naive_actions("IN: A @ 1\nOUT: A+Z @ 0", "dgx-h100")


@examples(80)
@given(machines_and_programs())
def test_the_naive_body_is_valid_wherever_a_body_is(case):
    machine, program = case
    naive = build_naive_body(program, machine)
    assert check(naive, machine).valid
    assert simulate(naive, machine).completion_ms >= 0
    assert read_program(print_program(naive), machine=machine) == naive


def first_valid(tree, machine, names, sizes, free):
    """Definition by enumeration: the first of all memberships in lexicographic order that is valid."""

    def extend(k, left):
        if k == len(names):
            yield {}
            return
        for members in itertools.combinations(left, sizes[k]):
            for extension in extend(k + 1, [site for site in left if site not in members]):
                yield {names[k]: members, **extension}

    return next((m for m in extend(0, free) if check(ground(tree, m), machine).valid), None)  # fmt: skip


def test_the_cube_meshs_membership_is_the_papers():
    program = read_program(CUBE_MESH)
    assert [partition.members for partition in program.partitions] == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_a_preamble_alone_takes_the_first_membership_and_says_what_is_missing():
    program = read_program(PREAMBLE)
    assert [partition.members for partition in program.partitions] == [(0,), (1,), (2,), (3,)]
    assert len(check(program).faults) == 4
    naive = build_naive_body(program, load_machine("dgx-a100"))
    assert check(naive).valid
    assert list(map(format_action, naive.actions))[:2] == ["Y1 @ 1 -> 0", "X2 @ 0 -> 1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PARTITIONS: G {size 1}\nIN: A @ 2\nOUT: A @ G\n", {"G": (2,)}),
        ("PARTITIONS: G {size 1} H {0} K {size 2}\nIN: A @ 0; B @ 2\nOUT: B @ G; A @ H, K\nA @ 0 -> 1, 3", {
            "G": (2,), "H": (0,), "K": (1, 3)}),
        ("PARTITIONS: G {size 2}\nIN: A @ 3\nOUT: A @ G\nA @ 3 -> G", {"G": (0, 1)}),
        ("PARTITIONS: G {size 1} H {size 1}\nIN: A @ 3\nOUT: A @ H\nA @ G -> H", {"G": (3,), "H": (0,)}),
        # the first G alone would be 0, but then H could not be
        ("PARTITIONS: G {size 1} H {size 1}\nIN: A @ 0, 1; B @ 0\nOUT: A @ G; B @ H", {"G": (1,), "H": (0,)}),
    ],
)  # fmt: skip
def test_the_first_membership_that_is_valid(text, expected):
    program = resolve(parse("GPUS: 0, 1, 2, 3\n" + text))
    assert check(program).valid
    assert {partition.name: partition.members for partition in program.partitions} == expected


def test_a_wait_or_a_path_can_decide_the_membership():
    v100 = load_machine("dgx-v100")
    text = "PARTITIONS: G {size 1}\nIN: A @ 0; B @ 0\nOUT: A @ G\nA @ 0 -> G; B @ 0 -> 1 after (A @ 0 -> 2)"
    assert resolve(parse(text), v100).partitions[0].members == (2,)


@examples(60)
@given(st.data())
def test_memberships_equal_the_enumeration(data):
    sizes = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 4))
    names = [f"G{k}" for k in range(len(sizes))]
    targets = st.lists(st.sampled_from([0, 1, 2, 3, *names]), min_size=1, max_size=2, unique=True)
    lines = [f"{'+'.join(sorted(data.draw(st.sets(st.sampled_from('AB'), min_size=1))))} @ "
             + " -> ".join(", ".join(map(str, data.draw(targets))) for _ in range(data.draw(st.integers(1, 3))))
             for _ in range(data.draw(st.integers(0, 4)))]  # fmt: skip
    out = "; ".join(f"{x} @ {', '.join(map(str, data.draw(targets)))}" for x in data.draw(
        st.lists(st.sampled_from(["A", "B", "A+B"]), min_size=1, max_size=2, unique=True)))  # fmt: skip
    tree = parse(
        f"GPUS: 0, 1, 2, 3\nPARTITIONS: {' '.join(f'{n} {{size {s}}}' for n, s in zip(names, sizes, strict=True))}\n"
        f"IN: A @ 0, 1; B @ 2\nOUT: {out}\n" + "\n".join(lines)
    )
    expected = first_valid(tree, None, names, sizes, [0, 1, 2, 3])
    program = resolve(tree)
    assert check(program).valid == (expected is not None)
    if expected is not None:
        assert {partition.name: partition.members for partition in program.partitions} == expected


def test_a_search_for_a_membership_is_bounded(monkeypatch):
    monkeypatch.setattr(resolving, "MAX_WORK", 30_000)  # a fifth
    sizes = " ".join(f"G{k} {{size 1}}" for k in range(8))
    ring = "\n".join(f"A @ G{k} -> G{(k + 1) % 8}" for k in range(8))
    text = f"PARTITIONS: {sizes}\nIN: A @ 0\nOUT: A+B @ 0; A @ G7\n{ring}\n"
    assert not check(read_program(text, machine=load_machine("dgx-v100"))).valid
    stuck = "\n".join([*(f"A @ G{k} -> 0 after (A @ 6)" for k in range(8)), "A @ 6", "A @ 7 -> 1 after (A @ 7 -> 1)"])
    text = f"PARTITIONS: {sizes}\nIN: A @ 0, 1, 2, 3, 4, 5, 6, 7\nOUT: A @ G0\n{stuck}"
    with pytest.raises(ProgramError, match="too many memberships"):
        read_program(text, machine=load_machine("dgx-v100"))
