"""Programs that are not valid, and the reasons that the checker gives."""

import pytest

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.closure import compute_closure, order_firings
from einc.exchange.language.parser import parse
from einc.exchange.language.program import Action, Holding, Partition, Program, Requirement
from einc.exchange.language.resolve import locate_fault, read_program, resolve_located
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine, parse_machine
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP

INVALID = {
    # a requirement that is missed
    "IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1\nA @ 0 -> 1; A+B @ 1": [
        "A+B is required at site 0 and never gets there: site 0 never holds B"
    ],
    "IN: A @ 0; B @ 0\nOUT: A+B @ 0": [
        "A+B is required at site 0 and never gets there: its parts are there (A and B), but no action combines them"
    ],
    "IN: A @ 0\nOUT: A+Z @ 0": ["A+Z is required at site 0 and never gets there: IN holds no Z"],
    # an action that cannot start
    "IN: A @ 0; B @ 1\nOUT: A @ 0\nA+B @ 0 -> 1": ["the action A+B @ 0 -> 1 is never enabled: site 0 never holds B"],
    "IN: A @ 0\nOUT: A @ 0\nA @ 1 -> 0": ["the action A @ 1 -> 0 is never enabled: site 1 never holds A"],
    "IN: A @ 0; B @ 1\nOUT: A @ 0\nA @ 1 -> 2; A @ 2 -> 1": [
        "A @ 1 -> 2 is never enabled",
        "A @ 2 -> 1 is never enabled",
    ],
    # an atom that would count twice
    "IN: A @ 0; B @ 0; C @ 1\nOUT: A+B+C @ 1\nA+B @ 0 -> 1; A+C @ 0 -> 1; C @ 1 -> 0; A+B+C @ 1": None,
    "IN: A+B @ 0; B+C @ 0\nOUT: A+B+C @ 0\nA+B+C @ 0": [
        "the action A+B+C @ 0 is never enabled: only overlapping aggregates are at site 0 (A+B and B+C), and combining "
        "them would count B twice",
        "A+B+C is required at site 0",
    ],
    "IN: A+B @ 0; B @ 0\nOUT: A @ 0\nA @ 0": [
        "the action A @ 0 is never enabled: site 0 never holds A apart from what is mixed into A+B",
        "A is required at site 0",
    ],
    # waits
    "IN: A @ 0; B @ 0\nOUT: A @ 1\nA @ 0 -> 1 after (B @ 0 -> 1)": [
        "the action A @ 0 -> 1 after (B @ 0 -> 1) waits for B @ 0 -> 1, which is not in the program"
    ],
    "IN: A @ 0; B @ 0\nOUT: A @ 1\nA @ 0 -> 1 after (B @ 0 -> 1); B @ 0 -> 1 after (A @ 0 -> 1)": [
        "the action A @ 0 -> 1 after (B @ 0 -> 1) never starts",
        "the action B @ 0 -> 1 after (A @ 0 -> 1) never starts",
    ],
    "IN: A @ 0\nOUT: A @ 2\nA @ 0 -> 1 after (A @ 1 -> 2); A @ 1 -> 2": [
        "the action A @ 0 -> 1 after (A @ 1 -> 2) never starts",
        "the action A @ 1 -> 2 never starts",
    ],
    "IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1 after (A @ 0 -> 1)": ["the action A @ 0 -> 1 after (A @ 0 -> 1) never starts"],
    # sizes
    "IN: A @ 0 (size: 1 KB); B @ 0\nOUT: A+B @ 0\nA+B @ 0": [
        "A+B combines atoms of different sizes: A has 1 KB, B has 1 GB"
    ],
    "IN: A @ 0 (size: 1 KB); A @ 1 (size: 2 KB)\nOUT: A @ 0": ["IN gives atom A the size 2 KB here and 1 KB elsewhere"],
}


@pytest.mark.parametrize("text", INVALID)
def test_verdicts_and_their_reasons(text):
    program = read_program(text)
    machine = load_machine("dgx-h100")
    expected = INVALID[text]
    verdict = check(program, machine)
    if expected is None:
        assert verdict.valid
        return
    assert not verdict.valid
    assert len(verdict.faults) == len(expected), verdict
    for fault, words in zip(verdict.faults, expected, strict=True):
        assert words in str(fault)
    with pytest.raises(ProgramError) as caught:
        simulate(program, machine)
    assert caught.value.message == str(verdict.faults[0])


@pytest.mark.parametrize("text", [SWAP, DOUBLING, CUBE_MESH])
def test_the_papers_programs_are_valid_and_need_all_their_actions(text):
    machine = load_machine("dgx-v100")
    program = read_program(text, machine=machine)
    assert check(program, machine).valid
    for k in range(len(program.actions)):
        shortened = program.actions[:k] + program.actions[k + 1 :]
        less = Program(program.gpus, program.partitions, program.holdings, program.requirements, shortened)
        assert not check(less, machine).valid


def test_the_closure_of_the_swap():
    assert compute_closure(read_program(SWAP)) == {
        (("A",), 0), (("A",), 1), (("B",), 0), (("B",), 1), (("A", "B"), 0), (("A", "B"), 1),
    }  # fmt: skip


def test_firing_order_takes_the_fewest_parts():
    program = read_program(
        "IN: A @ 0; B @ 0; C @ 0; D @ 0; A+B @ 1; B+C @ 0; C+D @ 1\nOUT: A+B+C+D @ 0\n"
        "A+B+C+D @ 0 after (A+B @ 1 -> 0; C+D @ 1 -> 0); A+B @ 1 -> 0; C+D @ 1 -> 0; A+B+C+D @ 0 -> 2"
    )
    parts = {(f.action.destinations, f.action.source): f.parts for f in order_firings(program)}
    assert parts[(2,), 0] == (("A",), ("B", "C"), ("D",))  # it starts at once
    assert parts[(), 0] == (("A", "B", "C", "D"),)  # by then the other has formed it


def test_paths_and_sites_of_the_machine():
    lonely = parse_machine(
        '{"name": "line", "sites": {"count": 3, "hbm_gbs": 1, "memory_bytes": 1}, "rules": '
        '[{"kind": "links", "name": "a", "gbs": 1, "between": [[0, 1], [1, 2]]}]}'
    )
    program = read_program("IN: A @ 0\nOUT: A @ 2\nA @ 0 -> 1, 2")
    assert check(program).valid
    (fault,) = check(program, lonely).faults
    assert str(fault) == "the action A @ 0 -> 1, 2: line has no path from site 0 to site 2"
    far = Program(None, (), (Holding(("A",), (0,)),), (Requirement(("A",), (3,)),), (Action(("A",), 0, (3,)),))
    assert "there is no site 3 on line (3 sites)" in str(check(far, lonely).faults[0])
    inside = Program((0, 1), (Partition("G", 1, (2,)),), far.holdings, far.requirements, ())
    assert [str(fault) for fault in check(inside).faults][:2] == [
        "partition G: site 2 is not among GPUS",
        "OUT requires A: site 3 is not among GPUS",
    ]


def test_faults_are_bounded():
    body = "\n".join(f"A @ {k} -> {k + 1}" for k in range(1, 500))
    assert len(check(read_program(f"IN: A @ 0\nOUT: A @ 0\n{body}")).faults) == 20


def test_findings_point_at_statements():
    tree = parse("PARTITIONS: G {size 1}\nIN: A @ 0\nOUT: A @ G; B @ 1\nA @ 0 -> 1 -> 2; A @ 3 -> 1\n", "p.exprog")
    resolved = resolve_located(tree, load_machine("dgx-a100"))
    locations = [locate_fault(resolved, fault.message, fault.subject) for fault in check(resolved.program).faults]
    assert [str(finding.where) for finding in locations] == ["p.exprog:4:18", "p.exprog:3:13"]
    assert locations[0].render().splitlines()[1:] == [
        "    A @ 0 -> 1 -> 2; A @ 3 -> 1",
        "                     ^^^^^^^^^^",
        "    hint: no choice of memberships makes the program valid; this is said of the first: G {0}",
    ]


def test_a_fault_without_a_statement_names_the_file():
    resolved = resolve_located(parse("IN: A @ 0\nOUT: A @ 1\n", "p.exprog"))
    assert locate_fault(resolved, "words", None).render() == "p.exprog: words"
