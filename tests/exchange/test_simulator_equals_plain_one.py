"""The simulator against the plain one, which follows the rules of the documentation step by step."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Holding, Program
from einc.exchange.language.resolve import read_program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import BodyEvaluator, simulate
from einc.machines.load import load_machine
from tests.support.exchange_bodies import long_random_body, pipelined_rings, random_body
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP, machines_and_programs
from tests.support.plain_simulator import simulate_plainly
from tests.support.property_examples import examples

PRESETS = ["dgx-a100", "dgx-h100", "dgx-v100", "dgx-v100-paper", "host", "gb200-nvl72"]


def assert_equal(program, machine):
    slow, fast = simulate_plainly(program, machine), simulate(program, machine)
    assert fast == slow  # to the last bit: plans keep these times
    taken = BodyEvaluator(program, machine).completion(program.actions)
    assert taken == pytest.approx(slow.completion_ms, rel=1e-9)


@examples(120)
@given(machines_and_programs())
def test_equals_the_definition(case):
    machine, program = case
    assert_equal(program, machine)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ideal", [True, False])
@pytest.mark.parametrize("preset", PRESETS)
def test_equals_the_definition_on_every_preset(preset, ideal):
    machine = load_machine(preset, 8 if preset == "host" else None)
    machine = machine.ideal() if ideal else machine
    for seed in range(2 * ideal, 2 * ideal + 2):
        program = random_body(seed, machine)
        assert check(program, machine).valid
        assert_equal(program, machine)
        assert_equal(build_naive_body(program, machine), machine)


@pytest.mark.parametrize(("text", "preset"), [(SWAP, "dgx-h100"), (DOUBLING, "dgx-h100"), (CUBE_MESH, "dgx-v100")])
def test_equals_the_definition_on_the_papers_programs(text, preset):
    machine = load_machine(preset)
    assert_equal(read_program(text, machine=machine), machine)


def test_overlapping_aggregates_are_partitioned_alike():
    machine = load_machine("dgx-h100")
    text = "IN: A @ 0; B @ 0; C @ 0; A+B @ 1; B+C @ 1; A+C @ 2; B @ 3\nOUT: A+B+C @ 0\n"
    text += "A+B @ 1 -> 0; B+C @ 1 -> 0; A+C @ 2 -> 0\nA+B+C @ 0 after (A+B @ 1 -> 0); A+B+C @ 0 -> 4"
    assert_equal(read_program(text, machine=machine), machine)


@examples(60)
@given(machines_and_programs(), st.data())
def test_one_evaluator_times_many_bodies(case, data):
    machine, program = case
    evaluator = BodyEvaluator(program, machine)
    for _ in range(3):
        kept = tuple(data.draw(st.lists(st.sampled_from(program.actions), unique=True))) if program.actions else ()
        body = dataclasses.replace(program, actions=kept)
        if check(body, machine).valid:
            expected = simulate_plainly(body, machine).completion_ms
            assert evaluator.completion(kept) == pytest.approx(expected, rel=1e-9)
            assert evaluator.completion(kept, limit=expected * 1.001) == pytest.approx(expected, rel=1e-9)
            if expected:
                assert evaluator.completion(kept, limit=expected * 0.999) == math.inf
        else:
            assert evaluator.completion(kept) == math.inf
            with pytest.raises(ProgramError):
                evaluator.compute_timeline(kept)
            with pytest.raises(ProgramError) as slow:
                simulate_plainly(body, machine)
            with pytest.raises(ProgramError) as fast:
                simulate(body, machine)
            assert (fast.value.message, fast.value.hint) == (slow.value.message, slow.value.hint)


@pytest.mark.parametrize(
    "actions",
    [
        (),
        (Action(("A",), 0, (1,)),),  # the requirement is not met
        (Action(("A", "B"), 0, (1,)),),  # B is not at 0
        (Action(("A",), 0, (9,)), Action(("A",), 0, (2,))),  # no site 9
        (Action(("A",), 0, (3,)), Action(("A",), 0, (2,))),  # site 3 is not among GPUS
        (Action(("Z",), 0, (2,)), Action(("A",), 0, (2,))),  # unknown atom
        (Action(("A", "C"), 0, (2,)), Action(("A",), 0, (2,))),  # sizes differ
        (Action(("A",), 0, (2,), (Action(("A",), 0, (1,)),)),),  # waits for what is not there
        (Action(("A",), 0, (2,), (Action(("A",), 0, (2,)),)),),  # waits for itself
    ],
)
def test_invalid_bodies_take_for_ever(actions):
    machine = load_machine("dgx-a100")
    preamble = read_program("GPUS: 0, 1, 2\nIN: A @ 0; B @ 1; C @ 0 (size: 2 GB)\nOUT: A @ 2\nA @ 0 -> 2")
    evaluator = BodyEvaluator(preamble, machine)
    assert evaluator.completion(actions) == math.inf
    with pytest.raises(ProgramError):
        evaluator.compute_timeline(actions)
    assert evaluator.completion(preamble.actions) < math.inf


def test_bad_preambles_are_refused():
    machine = load_machine("dgx-a100")
    with pytest.raises(ProgramError, match="elsewhere"):
        BodyEvaluator(read_program("IN: A @ 0; A @ 1 (size: 1 B)\nOUT: A @ 2\n"), machine)
    with pytest.raises(ProgramError, match="no site 8"):
        BodyEvaluator(Program(None, (), (Holding(("A",), (8,)),), (), ()), machine)
    impossible = BodyEvaluator(read_program("IN: A @ 0\nOUT: Z @ 2\n"), machine)
    assert impossible.completion(()) == math.inf


@pytest.mark.parametrize("preset", ["dgx-v100", "dgx-h100"])
@pytest.mark.parametrize("program", [pipelined_rings, long_random_body], ids=["rings", "random"])
def test_programs_of_500_actions_are_timed_as_the_plain_simulator_does(preset, program):
    machine = load_machine(preset).ideal()
    body = program(machine)
    assert len(body.actions) >= 500
    assert_equal(body, machine)
