"""What sums take that GPUs make out of each other's memory, and where they are not timed so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.machines.load import load_machine
from einc.predict.cores import list_run_tasks
from einc.predict.costs import TaskKind
from einc.predict.timeline import predict
from einc.report.launches import describe_launches, format_launches
from einc.report.told_layers import ToldLayers
from tests.support.launch_cases import compile_cut_step, compile_gathering_step


@pytest.fixture(scope="module")
def step():
    return compile_cut_step(3)


def make_machine(name="dgx-h100"):
    return load_machine(name).restrict((0, 1, 2))


def test_what_others_have_is_read_after_a_wait_and_not_again(step):
    machine = make_machine()
    run = list_run_tasks(step, machine)
    plain = list_run_tasks(step, replace(machine, sites=tuple(replace(site, gpu=None) for site in machine.sites)))
    assert [len(s.tasks) for s in run.peer_sums] == [3, 3]
    assert not plain.peer_sums
    read = 3 * 48 * 4  # bytes of a partial result: rows, columns, f32
    for peer_sum in run.peer_sums:
        wait_ms = (2.3 + 2 * 0.083) / 1e3
        slower_ms = 2 * read / 1e6 * (1 / 264.6 - 1 / 356.4)
        for move in peer_sum.moves:
            assert run.costs[move].latency_ms == pytest.approx(wait_ms + slower_ms)
            assert run.costs[move].size == plain.costs[move].size == read
        for number in peer_sum.tasks:
            assert plain.costs[number].size - run.costs[number].size == 2 * read
    assert predict(step, machine).timeline.predicted_ms > 0


def test_what_is_gathered_comes_after_another_wait():
    """Each of three GPUs writes a row of 48 floats to two others."""
    step, machine = compile_gathering_step(3), make_machine()
    run = list_run_tasks(step, machine)
    assert [len(s.gathers) for s in run.peer_sums] == [6, 6]
    row = 48 * 4
    for gather in (gather for s in run.peer_sums for gather in s.gathers):
        waited_ms = (2.3 + 2 * 0.083) / 1e3
        assert run.costs[gather].latency_ms == pytest.approx(waited_ms + 2 * row / 1e6 * (1 / 264.6 - 1 / 356.4))
    slow = replace(machine, transfer_latency_us=2.4)
    assert not any(s.gathers for s in list_run_tasks(step, slow).peer_sums)
    launches = describe_launches(step, machine, run, ToldLayers(step))
    text = format_launches({"launches": launches})
    assert launches["gathered"] == ["layer.0.n", "last_x"]
    assert any("2 of their launches write what all gather" in line for line in text)


def test_what_overwrites_a_copy_waits_for_the_sum_that_reads_it(step):
    run = list_run_tasks(step, make_machine())
    sums = {move: s for s in run.peer_sums for move in s.moves}
    for number, cost in enumerate(run.costs):
        for before in cost.after:
            assert before < number
            assert before not in sums or number in sums[before].tasks or max(sums[before].tasks) > number


def test_links_without_atomics_and_gpus_without_figures_send_copies(step):
    machine = make_machine()
    renamed = replace(machine, resources=tuple(replace(r, name=f"pcie {r.name}") for r in machine.resources))
    for without_switch in (renamed, make_machine("hgx-b200")):
        run = list_run_tasks(step, without_switch)
        assert not run.peer_sums
        assert all(cost.latency_ms is None for cost in run.costs if cost.kind is TaskKind.TRANSFER)
