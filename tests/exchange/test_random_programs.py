"""Random programs: checker, simulator and printer against a second, independent form of their definitions."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.closure import compute_closure, order_firings, strip_waits
from einc.exchange.language.printer import print_program
from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import simulate
from tests.support.exchange_oracle import brute_closure, brute_simulate, fewest, machines_and_programs
from tests.support.property_examples import examples

few = examples(80)


def as_sets(copies):
    return {(frozenset(aggregate), site) for aggregate, site in copies}


@few
@given(machines_and_programs())
def test_print_then_parse_is_the_identity(case):
    machine, program = case
    assert read_program(print_program(program), "p", machine) == program


@few
@given(machines_and_programs(waits=False), st.data())
def test_closure_is_the_least_fixed_point_and_grows_with_the_program(case, data):
    machine, program = case
    kept = data.draw(st.lists(st.sampled_from(program.actions), unique=True)) if program.actions else []
    smaller = dataclasses.replace(program, actions=tuple(kept))
    assert as_sets(compute_closure(program)) == brute_closure(program)
    assert as_sets(compute_closure(smaller)) == brute_closure(smaller)
    assert compute_closure(smaller) <= compute_closure(program)
    reached = brute_closure(smaller)
    enabled = all(fewest(reached, action.aggregate, action.source) is not None for action in kept)
    met = all((frozenset(r.aggregate), s) in reached for r in smaller.requirements for s in r.targets)
    assert check(smaller, machine).valid == (enabled and met)
    if not (enabled and met):
        with pytest.raises(ProgramError):
            simulate(smaller, machine)


@few
@given(machines_and_programs())
def test_firing_order_fires_every_action_from_parts_that_are_there(case):
    _, program = case
    state = {(holding.aggregate, site) for holding in program.holdings for site in holding.sites}
    fired = []
    for firing in order_firings(program):
        action = firing.action
        assert all((part, action.source) in state for part in firing.parts)
        assert sorted(atom for part in firing.parts for atom in part) == list(action.aggregate)
        assert set(map(strip_waits, action.after)) <= set(map(strip_waits, fired))
        fired.append(action)
        state |= {(action.aggregate, site) for site in (action.source, *action.destinations)}
    assert sorted(fired) == sorted(program.actions)


@few
@given(machines_and_programs())
def test_a_valid_program_runs_to_its_end_and_to_its_closure(case):
    machine, program = case
    assert check(program, machine).valid
    timeline = simulate(program, machine)
    assert [event.action for event in timeline.events] == list(program.actions)
    assert timeline.copies == compute_closure(program)
    ends = {strip_waits(event.action): event.end for event in timeline.events}
    for event in timeline.events:
        assert event.start <= event.formed <= event.end <= timeline.completion_ms
        assert [site for site, _ in event.arrivals] == list(event.action.destinations)
        assert all(ends[strip_waits(awaited)] <= event.start for awaited in event.action.after)


@few
@given(machines_and_programs(most_actions=8))
def test_the_simulator_equals_an_exact_one(case):
    machine, program = case
    start, parts, end = brute_simulate(program, machine)
    timeline = simulate(program, machine)
    for k, event in enumerate(timeline.events):
        assert event.start == pytest.approx(float(start[k]), rel=1e-9)
        assert event.end == pytest.approx(float(end[k]), rel=1e-9)
        assert len(event.parts) == parts[k]
    assert timeline.completion_ms == pytest.approx(float(max(end.values(), default=0)), rel=1e-9)


@few
@given(machines_and_programs(), st.randoms())
def test_a_program_is_a_set(case, random):
    machine, program = case
    shuffled = list(program.actions)
    random.shuffle(shuffled)
    changed = dataclasses.replace(program, actions=tuple(shuffled))
    first, second = simulate(program, machine), simulate(changed, machine)
    assert {e.action: e.end for e in second.events} == pytest.approx({e.action: e.end for e in first.events}, rel=1e-9)
