"""The rules of ranks over MPI, with which the testbed compares measured times beside those of plans."""

from __future__ import annotations

import pytest

from einc.compiler import compile_model
from einc.machines.load import format_machine
from einc.machines.model import Machine, Resource, Site
from einc.options import CompileOptions
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.timeline import predict, time_tasks
from einc_runtime.plan.schema import TransferTask
from tests.testbed.plans import ROOT
from tests.testbed.ranks import _RanksSimulation, _sort, predict_ranks_ms


def make_star(sites, gbs=1.0):
    """One resource for each direction of each port."""
    out = [Resource(f"{a} out", gbs, tuple((a, b) for b in range(sites) if a != b)) for a in range(sites)]
    into = [Resource(f"{a} in", gbs, tuple((b, a) for b in range(sites) if a != b)) for a in range(sites)]
    return Machine("star", (Site(1.0, 1 << 30, (("f32", 1e9),)),) * sites, (*out, *into))


def test_messages_of_a_pair_go_one_after_the_other():
    costs = [TaskCost(TaskKind.TRANSFER, 0, (), 10**6, target=target) for target in (1, 1, 2)]
    machine = make_star(3)
    assert time_tasks(costs, machine).ends == pytest.approx((3.0, 3.0, 3.0))
    run = _RanksSimulation(costs, machine)
    run.run(float("inf"))
    assert run.ends == pytest.approx([2.0, 3.0, 2.0])


def test_the_most_urgent_kernel_runs_first():
    costs = [TaskCost(TaskKind.KERNEL, 0, after, flops=10**6) for after in ((), (), (1,))]
    assert [cost.after for cost in _sort(costs, [1.0, 5.0, 2.0])] == [(), (0,), ()]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    machine = make_star(8, 1e-3)
    file = tmp_path_factory.mktemp("star") / "star.json"
    file.write_text(format_machine(machine))
    text = (ROOT / "models/chain_a.ein").read_text()
    options = CompileOptions(str(file), 8, (("scale", "32"),), None, "f32", "eindecomp", "naive")
    return compile_model(text, "chain_a.ein", options).bundle, machine


def test_messages_leave_before_their_places_are_free(chain):
    """In this plan, transfers wait for memory that is used again, and ports rest meanwhile."""
    bundle, machine = chain
    moved = {}
    for task in bundle.tasks:
        if isinstance(task, TransferTask):
            source, target = (bundle.buffers[region.buffer].site for region in (task.read, task.write))
            for port in (("out", source), ("in", target)):
                moved[port] = moved.get(port, 0) + 4 * task.read.block.size
    busiest = max(moved.values()) / 1e3
    assert busiest < predict_ranks_ms(bundle, machine) < 0.75 * predict(bundle, machine).timeline.predicted_ms
