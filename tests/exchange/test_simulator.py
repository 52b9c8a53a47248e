"""The simulator: the paper's numbers, cases worked out by hand, and what it refuses."""

import dataclasses

import pytest

from einc.errors import ProgramError
from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine, parse_machine
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP

# 10 GB/s per site and direction, HBM of 100 GB/s: 1 GB takes 100 ms on the wire, 10 ms to read or write.
SWITCH = parse_machine(
    '{"name": "s", "sites": {"count": 4, "hbm_gbs": 100, "memory_bytes": 1},'
    '"rules": [{"kind": "switch", "name": "x", "gbs": 10}]}'
)


def ends(text, machine=SWITCH):
    timeline = simulate(read_program(text, machine=machine), machine)
    return [event.end for event in timeline.events]


@pytest.mark.parametrize(
    ("text", "machine", "milliseconds"),
    [
        (SWAP, "dgx-h100", 3.118),
        (DOUBLING, "dgx-h100", 6.235),
        (CUBE_MESH, "dgx-v100-paper", 66.667),
        (CUBE_MESH, "dgx-v100", 66.667),
    ],
)
def test_the_papers_numbers(text, machine, milliseconds):
    model = load_machine(machine).ideal()
    completion = simulate(read_program(text, machine=model), model).completion_ms
    assert completion == pytest.approx(milliseconds, abs=0.0005)


def test_the_cube_mesh_needs_its_exchange_of_gpus_3_and_6_only_for_the_printed_links():
    program = read_program(CUBE_MESH, machine=load_machine("dgx-v100-paper"))
    timeline = simulate(program, load_machine("dgx-v100-paper").ideal())
    arrivals = sorted({round(time, 3) for event in timeline.events for _, time in event.arrivals})
    assert arrivals == [40.0, 63.333]  # single links first, then the doubled pillars, no bridge


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a multicast to k destinations gets the k-th part of the egress each
        ("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1, 2, 3", [300]),
        # two actions share it alike
        ("IN: A @ 0; B @ 0\nOUT: A @ 1\nA @ 0 -> 1; B @ 0 -> 2", [200, 200]),
        # two sources into one ingress
        ("IN: A @ 0; B @ 1\nOUT: A @ 2\nA @ 0 -> 2; B @ 1 -> 2", [200, 200]),
        # max-min: ingress 2 gives three flows 10/3 each, so that 0 -> 1 gets the 20/3 that egress 0 has left
        ("IN: A @ 0; B @ 0; C @ 3; D @ 3\nOUT: A @ 1\nA @ 0 -> 1; B @ 0 -> 2; C @ 3 -> 2; D @ 3 -> 2", [
            150, 300, 300, 300]),
        # one flow ends early and the other speeds up: 50 ms shared, then 0.75 GB alone
        ("IN: A @ 0 (size: 250 MB); B @ 0\nOUT: A @ 1\nA @ 0 -> 1; B @ 0 -> 2", [50, 125]),
        # an aggregation of two parts moves three times the bytes, then transfers
        ("IN: A @ 0; B @ 0\nOUT: A+B @ 1\nA+B @ 0 -> 1", [130]),
        # two aggregations share HBM, and each action aggregates for itself
        ("IN: A @ 0; B @ 0\nOUT: A+B @ 1\nA+B @ 0; A+B @ 0 -> 1", [60, 160]),
        # what is held whole is not formed again
        ("IN: A @ 0; B @ 0; A+B @ 0\nOUT: A+B @ 1\nA+B @ 0; A+B @ 0 -> 1", [0, 100]),
        # the fewest parts: C+D arrives at 100; A+B+C+D then combines 3 parts, not 4
        ("IN: A @ 0; B @ 0; C+D @ 1; C @ 1; D @ 1\nOUT: A @ 0\nA+B+C+D @ 0; C+D @ 1 -> 0", [140, 100]),
        # it starts at once with what is there, although fewer parts come later
        ("IN: A @ 0; B @ 0; C @ 0; B+C @ 1\nOUT: A @ 0\nA+B+C @ 0; B+C @ 1 -> 0", [40, 100]),
        # store and forward along a chain
        ("IN: A @ 0\nOUT: A @ 2\nA @ 0 -> 1 -> 2", [100, 200]),
        # a destination that holds it already still receives
        ("IN: A @ 0, 1\nOUT: A @ 1\nA @ 0 -> 1", [100]),
        # waits order what would share
        ("IN: A @ 0; B @ 0\nOUT: A @ 1\nA @ 0 -> 1; B @ 0 -> 1 after (A @ 0 -> 1)", [100, 200]),
        # a wait on all destinations of a multicast
        ("IN: A @ 0; B @ 3\nOUT: A @ 1\nA @ 0 -> 1, 2; B @ 3 -> 1 after (A @ 0 -> 1, 2)", [200, 300]),
        # an action that has nothing to do ends at its start, and frees what waits for it
        ("IN: A @ 0; B @ 0\nOUT: A @ 0\nB @ 0 after (A @ 0); A @ 0", [0, 0]),
        # no action at all
        ("IN: A @ 0\nOUT: A @ 0", []),
    ],
)  # fmt: skip
def test_cases_worked_out_by_hand(text, expected):
    assert ends(text) == pytest.approx(expected, rel=1e-12)


def test_latencies():
    # A transfer's latency (4 ms) precedes its flow and occupies nothing; a kernel's (2 ms) occupies its site.
    machine = dataclasses.replace(SWITCH, transfer_latency_us=4000, kernel_latency_us=2000)
    assert ends("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1", machine) == pytest.approx([104])
    assert ends("IN: A @ 0; B @ 0 (size: 400 KB)\nOUT: A @ 1\nA @ 0 -> 1; B @ 0 -> 2", machine) == pytest.approx(
        [104.04, 4.08]
    )
    assert ends("IN: A @ 0; B @ 0\nOUT: A @ 0\nA+B @ 0", machine) == pytest.approx([32])
    assert ends("IN: A @ 0; B @ 0; C @ 0\nOUT: A @ 0\nA+B @ 0; A+C @ 0", machine) == pytest.approx([64, 64])
    assert ends("IN: A @ 0; B @ 0; C @ 1\nOUT: A @ 0\nA+B @ 0; C @ 1 -> 0", machine) == pytest.approx([32, 104])


def test_events_say_what_was_combined_and_when():
    program = read_program("IN: A @ 0; B @ 0; C @ 0\nOUT: A @ 0\nA+B+C @ 0 -> 1, 2; A+B @ 0")
    first, second = simulate(program, SWITCH).events
    assert first.parts == (("A",), ("B",), ("C",))
    assert (first.start, first.formed, first.arrivals) == (0, 70, ((1, 270), (2, 270)))
    assert (second.parts, second.formed, second.end, second.arrivals) == ((("A",), ("B",)), 60, 60, ())


def test_nearly_simultaneous_ends_are_one_instant():
    # Three thirds of an egress do not add up exactly in binary; all ends still come together and all starts after.
    text = "IN: A @ 0; B @ 0; C @ 0\nOUT: A @ 1\n" + "\n".join(f"{x} @ 0 -> 1, 2, 3" for x in "ABC")
    timeline = simulate(read_program(text + "\nA+B+C @ 1; A+B @ 1; A+B+C @ 2"), SWITCH)
    assert [event.start for event in timeline.events[3:]] == [timeline.events[0].end] * 3
    assert [len(event.parts) for event in timeline.events[3:]] == [3, 2, 3]


def test_sizes_of_all_magnitudes_come_to_an_end():
    small = [f"S{k} @ 0 (size: {k + 1} B)" for k in range(300)]
    text = f"IN: {'; '.join(small)}; L @ 0 (size: 4000000000 GB); M @ 0 (size: 3999999999 GB)\nOUT: L @ 1\n"
    text += "L @ 0 -> 1; M @ 0 -> 1 after (L @ 0 -> 1)\n"
    text += "\n".join(f"S{k} @ 0 -> 1 after ({'L' if k % 2 else 'M'} @ 0 -> 1)" for k in range(299))
    text += "\nS299 @ 0 -> 1"
    timeline = simulate(read_program(text), SWITCH)
    assert timeline.completion_ms == pytest.approx(7999999999 * 100.0)


def test_bridges_are_shared_by_both_directions():
    v100 = load_machine("dgx-v100").ideal()
    assert ends("IN: A @ 0; B @ 7\nOUT: A @ 7\nA @ 0 -> 7; B @ 7 -> 0", v100) == pytest.approx([2000 / 15.75] * 2)
    assert ends("IN: A @ 0; B @ 4\nOUT: A @ 4\nA @ 0 -> 4; B @ 4 -> 0", v100) == pytest.approx([20, 20])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("IN: A @ 0\nOUT: A @ 1\n", "never gets there"),
        ("IN: A @ 0; B @ 1\nOUT: A @ 0\nA+B @ 0", "never enabled"),
        ("IN: A @ 0; B @ 0 (size: 2 GB)\nOUT: A @ 0\nA+B @ 0", "different sizes"),
        ("IN: A @ 0\nOUT: A @ 0\nA @ 0 -> 9", "no site 9"),
    ],
)
def test_programs_that_are_errors(text, words):
    program = read_program(text)
    with pytest.raises(ProgramError, match=words):
        simulate(program, SWITCH)
