"""Plans of models with many layers, built with a few of them and as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from einc.compiler import compile_model
from einc.graph.decode_step import StepRequest
from einc.logical.optimize import optimize
from einc.logical.plan import LogicalPlan
from einc.machines.load import load_machine
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.physical.few_layers import FewLayers
from einc.physical.passes import finish
from einc.physical.placer import Placer, PlanRecords
from einc.physical.program import DeviceProgram
from einc.physical.records import emit
from einc.physical.schedule import NaiveScheduler, Scheduler
from einc.physical.synthesis import SynthesizingScheduler
from einc_runtime.plan.schema import Bundle

MODELS = Path(__file__).parents[2] / "models"
SCHEDULERS: dict[str, Callable[[Machine, int], Scheduler]] = {
    "naive": NaiveScheduler,
    "synthesized": SynthesizingScheduler,
}


@functools.cache
def plan_layers(model: str, sites: int, layers: int) -> tuple[LogicalPlan, Machine]:
    """A plan of a tiny language model of `models/`, by the paper's cost, and the machine of its sites. `llama step` is
    the decode step that is derived from `llama`."""
    file, _, step = model.partition(" ")
    text = (MODELS / f"{file}.ein").read_text(encoding="utf-8")
    options = CompileOptions(
        machine="dgx-h100",
        preset="tiny",
        definitions=(("n_layers", str(layers)),),
        step=StepRequest("tokens", 1) if step else None,
    )
    graph = compile_model(text, f"{model}.ein", options).graph
    return optimize(graph, sites), load_machine("dgx-h100").restrict(range(sites))


def place(plan: LogicalPlan, machine: Machine, schedule: str, few: FewLayers | None = None) -> DeviceProgram:
    """The program of all nodes of a plan, which stand for more with `few`."""
    placer = Placer(plan, machine, SCHEDULERS[schedule](machine, plan.sites), PlanRecords.of(plan))
    for node in range(len(plan.graph.nodes)):
        placer.place(node)
    return finish(placer.collect(few))


@functools.cache
def fold_layers(model: str, sites: int, layers: int, schedule: str = "naive") -> Bundle:
    """The plan file's bundle, which says a layer once."""
    plan, machine = plan_layers(model, sites, layers)
    few = FewLayers.of(plan, machine)
    assert few is not None
    program = replace(place(few.plan, machine, schedule, few), plan=plan)
    return emit(program, machine, tuple(range(sites)), schedule)
