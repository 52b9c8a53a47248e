"""The executor over sockets, on the loopback device and without any limits: it runs programs by the rules.

What it measures means something only on a network with rates (`make testbed`). Here, what it computes and in which
order it acts are held against the definitions.
"""

import dataclasses

import pytest
from hypothesis import given

from einc.exchange.language.closure import strip_waits
from einc.exchange.language.program import Action
from einc.exchange.language.resolve import read_program
from einc.machines.load import load_machine
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP, machines_and_programs
from tests.support.property_examples import examples
from tests.testbed.executor import ExecutionError, threads
from tests.testbed.site_process import contents


@pytest.fixture(scope="module")
def executor():
    with threads(8) as running:
        yield running


def small(program, size=1001):
    return dataclasses.replace(program, holdings=tuple(dataclasses.replace(h, size=size) for h in program.holdings))


@pytest.mark.parametrize("text", [SWAP, DOUBLING, CUBE_MESH])
def test_the_papers_programs(executor, text):
    program = small(read_program(text, machine=load_machine("dgx-v100")))
    measured = executor.execute(program)
    assert len(measured.runs) == len(program.actions)
    for action, run in zip(program.actions, measured.runs, strict=True):
        assert 0 <= run.start <= run.formed <= run.end <= measured.completion_ms
        assert tuple(sorted(run.arrivals)) == action.destinations


@examples(20)
@given(case=machines_and_programs())
def test_random_programs_run_to_their_end_in_an_order_that_respects_waits(executor, case):
    _, program = case
    measured = executor.execute(program)
    ends = {strip_waits(action): run.end for action, run in zip(program.actions, measured.runs, strict=True)}
    for action, run in zip(program.actions, measured.runs, strict=True):
        assert all(ends[strip_waits(awaited)] <= run.start for awaited in action.after)
        assert run.parts >= 1


def test_an_aggregate_is_made_of_the_fewest_parts(executor):
    text = "IN: A+B @ 0; A @ 0; B @ 0; C @ 0\nOUT: A+B+C @ 1\nA+B+C @ 0 -> 1\n"
    assert executor.execute(small(read_program(text))).runs[0].parts == 2


def test_programs_that_are_not_valid_are_not_run(executor):
    with pytest.raises(ExecutionError, match="never"):
        executor.execute(read_program("IN: A @ 0\nOUT: A @ 1\n"))


def test_wrong_contents_are_seen(executor, monkeypatch):
    program = small(read_program("IN: A @ 0; B @ 0\nOUT: A+B @ 1\nA+B @ 0 -> 1\n"))
    monkeypatch.setattr("tests.testbed.site_process.Site._combine", lambda self, position, arrays: self.inbox.put(
        ("formed", position, arrays[0] + 2 * arrays[1], 0.0)))  # counts B twice  # fmt: skip
    with pytest.raises(ExecutionError, match=r"site 1 has a wrong A\+B"):
        executor.execute(program)


def test_a_program_that_does_not_end_in_time_is_given_up(monkeypatch):
    monkeypatch.setattr("tests.testbed.site_process.Site._give", lambda *_: None)  # what site 0 sends never leaves it
    program = small(read_program("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n"))
    with threads(2) as executor, pytest.raises(ExecutionError, match="1 actions have not ended in time"):
        executor.execute(program, seconds=0.1)


def test_contents_are_sums():
    assert (contents(("A",), 99) + contents(("B",), 99) == contents(("A", "B"), 99)).all()
    assert not (contents(("A",), 99) == contents(("B",), 99)).all()


def test_waits_pass_from_site_to_site(executor):
    first = Action(("A",), 0, (1,))
    text = "IN: A @ 0; B @ 2; C @ 3\nOUT: A @ 1; B @ 3; C @ 0\nA @ 0 -> 1\nB @ 2 -> 3 after (A @ 0 -> 1)\n"
    program = small(read_program(text + "C @ 3 -> 0 after (A @ 0 -> 1; B @ 2 -> 3)\n"), 100_000)
    assert program.actions[1].after == (first,)
    runs = executor.execute(program).runs
    assert runs[0].end <= runs[1].start
    assert runs[1].end <= runs[2].start
