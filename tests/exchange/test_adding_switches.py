"""Switches that copy and add: what programs with them mean, what they take, and bounds that they cannot go below."""

import dataclasses
import itertools
import math
import random
import re

import pytest

from einc.errors import ProgramError
from einc.exchange.bounds import bound, verify
from einc.exchange.language.checker import check
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Action, list_targets
from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import BodyEvaluator, simulate
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.machines.load import load_machine
from einc.machines.model import find_adding_switches
from tests.support.plain_simulator import simulate_plainly
from tests.support.preambles import read_preamble

H100 = load_machine("dgx-h100").ideal()
SUM = """IN: A @ 0; B @ 1; C+D @ 2
OUT: A+B+C+D @ 0, 1, 3

A+B+C+D @ 3 <= {C+D @ 2, A @ 0, B @ 1}
A+B+C+D @ 3 => 0, 1 after (A+B+C+D @ 3 <= {A @ 0, B @ 1, C+D @ 2})
"""


def read(text, machine=H100):
    return read_program(text, "x.exprog", machine, switches=True)


def test_the_text_gives_the_program_back():
    program = read(SUM)
    assert read(print_program(program)) == program
    assert print_program(program).splitlines()[-2:] == [
        "A+B+C+D @ 3 <= {A @ 0, B @ 1, C+D @ 2}",
        "A+B+C+D @ 3 => 0, 1 after (A+B+C+D @ 3 <= {A @ 0, B @ 1, C+D @ 2})",
    ]
    assert check(program, H100).valid
    assert check(program).valid


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("A+B @ 2 <= {A @ 0, B @ 0}", "a site stands twice here"),
        ("A+B @ 2 <= {A @ 0, A+B @ 1}", "each atom once"),
        ("A+B @ 2 <= {A @ 0}", "each atom once"),
        ("A+B @ 2 <= {A @ 0, B @ 9}", "there is no site 9"),
        ("A @ 0 => 9", "there is no site 9"),
        ("A @ 0 => 1 => 2", "unexpected '=>'"),
    ],
)
def test_statements_that_mean_nothing(body, words):
    with pytest.raises(ProgramError, match=re.escape(words)):
        read(f"IN: A @ 0; B @ 1\nOUT: A @ 2\n\n{body}\n")


def test_faults_are_named():
    program = read("IN: A @ 0; B @ 1\nOUT: A+B @ 2\n\nA+B @ 2 <= {A @ 0, B @ 3}\n")
    assert "B is not at site 3, where the switch reads it" in str(check(program).faults[0])
    for name in ("dgx-a100", "dgx-2", "h100-nvl-4", "hgx-h100-4"):
        faults = check(read(SUM, None), load_machine(name)).faults
        assert f"no switch of {name} that copies and adds joins these sites" in str(faults[0])
    two = load_machine("dgx-h100x2")
    assert [len(switch.egress) for switch in find_adding_switches(two)] == [8, 8]
    assert check(read(SUM, two), two).valid
    across = read("IN: A @ 7\nOUT: A @ 6, 8\n\nA @ 7 => 6, 8\n", two)
    assert not check(across, two).valid


def test_actions_that_count_twice_are_faults():
    """Those that no text can say."""
    program = read("IN: A @ 0; B @ 1\nOUT: A+B @ 2\n")
    twice = Action(("A", "B"), 2, reads=((("A",), 0), (("A", "B"), 1)))
    assert "each atom once" in str(check(dataclasses.replace(program, actions=(twice,)), H100).faults[0])


def test_what_is_sent_once_crosses_a_port_once():
    """1 GB at 450 GB/s: the egress of one site carries a copy for each destination, or one."""
    text = "IN: A @ 0\nOUT: A @ 1, 2, 3\n\nA @ 0 {} 1, 2, 3\n"
    assert simulate(read(text.format("->")), H100).completion_ms == pytest.approx(3 / 0.45)
    assert simulate(read(text.format("=>")), H100).completion_ms == pytest.approx(1 / 0.45)
    assert simulate(read(SUM), H100).completion_ms == pytest.approx(2 / 0.45)
    shared = "IN: A @ 0; B @ 1\nOUT: A+B @ 2; A @ 3\n\nA+B @ 2 <= {A @ 0, B @ 1}; A @ 0 -> 3\n"
    assert simulate(read(shared), H100).completion_ms == pytest.approx(2 / 0.45)


def list_actions(sites, names):
    """Everything that a body for atoms A at site 0, B at 1 may consist of."""
    for name, source in itertools.product(names, sites):
        receivers = [site for site in sites if site != source]
        for count in range(len(receivers) + 1):
            for chosen in itertools.combinations(receivers, count):
                yield Action(name, source, chosen)
                if count > 1:
                    yield Action(name, source, chosen, multicast=True)
    for reader, a, b in itertools.product(sites, sites, sites):
        if a != b:
            yield Action(("A", "B"), reader, reads=tuple(sorted(((("A",), a), (("B",), b)), key=lambda read: read[1])))


def draw_programs(seed, count, machine):
    """Random bodies for sums of two atoms on four sites; most are not valid, or deliver more than is needed."""
    draw = random.Random(seed)
    preamble = read("GPUS: 0, 1, 2, 3\nIN: A @ 0 (size: 3 MB); B @ 1 (size: 3 MB)\nOUT: A+B @ 2, 3\n", machine)
    actions = list(list_actions(range(4), [("A",), ("B",), ("A", "B")]))
    for _ in range(count):
        body = draw.sample(actions, draw.randint(1, 7))
        waiting = [
            Action(a.aggregate, a.source, a.destinations, (draw.choice(body),), a.multicast, a.reads)
            if draw.random() < 0.2
            else a
            for a in body
        ]
        yield preamble, tuple(dict.fromkeys(waiting))


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-b200"])
def test_the_simulator_equals_the_plain_one(name):
    machine = load_machine(name)
    compared, evaluator = 0, None
    for preamble, body in draw_programs(7, 4000, machine):
        program = type(preamble)(preamble.gpus, (), preamble.holdings, preamble.requirements, body)
        evaluator = evaluator or BodyEvaluator(preamble, machine)
        taken = evaluator.completion(body) if any(action.uses_switch for action in body) else math.inf
        if math.isinf(taken):
            continue
        fast, plain = simulate(program, machine), simulate_plainly(program, machine)
        assert fast == plain
        assert taken == pytest.approx(plain.completion_ms, rel=1e-9)
        assert check(program, machine).valid
        assert fast.completion_ms >= bound(preamble, machine, switches=True).bound_ms * (1 - 1e-9)
        compared += 1
    assert compared >= 30


def test_no_body_is_faster_than_the_bound():
    """All bodies of up to two actions on three sites, by brute force: the best takes exactly the bound."""
    preamble = read("GPUS: 0, 1, 2\nIN: A @ 0; B @ 1\nOUT: A+B @ 2\n")
    actions = list(list_actions(range(3), [("A",), ("B",), ("A", "B")]))
    evaluator = BodyEvaluator(preamble, H100)
    best = min(
        evaluator.completion(body) for count in (1, 2) for body in itertools.combinations(actions, count)
    )  # fmt: skip
    certificate = bound(preamble, H100, switches=True)
    assert best == pytest.approx(certificate.bound_ms)
    assert verify(certificate, preamble, H100)


def run_with_numbers(program, machine):
    """The value of every copy at the end of a run, where each atom is a number."""
    draw = random.Random(3)
    values, copies = {}, {}
    for holding in program.holdings:
        for atom in holding.aggregate:
            values.setdefault(atom, draw.randint(1, 10**9))
        for site in holding.sites:
            copies[holding.aggregate, site] = sum(values[atom] for atom in holding.aggregate)
    for event in sorted(simulate(program, machine).events, key=lambda event: (event.start, event.end)):
        action = event.action
        places = action.reads or tuple((part, action.source) for part in event.parts)
        total = sum(copies[location] for location in places)
        for site in (action.source, *action.destinations):
            copies[action.aggregate, site] = total
    return values, copies


S8 = "+".join("ABCDEFGH")
IN8 = "; ".join(f"{atom} @ {site}" for site, atom in enumerate("ABCDEFGH"))
SCATTERED = "; ".join(f"{atom}{k} @ {site}" for site, atom in enumerate("ABC") for k in range(3))
SCATTER = "; ".join("+".join(f"{atom}{k}" for atom in "ABC") + f" @ {k}" for k in range(3))


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        pytest.param(f"IN: {IN8}\nOUT: {S8} @ 0, 1, 2, 3, 4, 5, 6, 7\n", 1.051, id="all-reduce"),
        pytest.param("IN: A @ 2\nOUT: A @ 0, 1, 3, 4, 5, 6, 7\n", 1.0001, id="broadcast"),
        pytest.param("IN: A @ 0, 4; B @ 1; C @ 2\nOUT: A+B+C @ 1, 5, 6\n", 1.2, id="groups", marks=pytest.mark.slow),
        pytest.param(f"IN: {SCATTERED}\nOUT: {SCATTER}\n", 1.05, id="reduce-scatter", marks=pytest.mark.slow),
    ],
)
def test_synthesis_lets_switches_work(text, ratio):
    preamble = read_preamble(text, "x.exprog", H100)
    result = synthesize(preamble, H100, SynthesisOptions(iterations=0, switches=True))
    assert check(result.program, H100).valid
    assert result.completion_ms <= result.bound.bound_ms * ratio
    if S8 in text:  # no program without such switches is as fast
        assert result.completion_ms < 0.6 * bound(preamble, H100).bound_ms
    values, copies = run_with_numbers(result.program, H100)
    for requirement in result.program.requirements:
        for site in list_targets(result.program, requirement):
            assert copies[requirement.aggregate, site] == sum(values[atom] for atom in requirement.aggregate)


def test_nothing_uses_them_by_itself():
    with pytest.raises(ProgramError, match="for which plans have no task") as caught:
        read_program(SUM, "x.exprog", H100)
    assert "x.exprog:4:" in caught.value.render()
    program = read(SUM)
    assert synthesize(program, H100, SynthesisOptions(time_limit=0)).bound.bound_by.startswith("cut")
