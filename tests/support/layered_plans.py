"""Plans of models with many layers, built with a few of them and as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from einc.compiler import compile_model
from einc.graph.decode_step import StepRequest
from einc.graph.fuse import fuse
from einc.logical.optimize import build_choices, optimize
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
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
from einc.search.baselines import build_baselines
from einc.training.recomputation import recompute
from einc_runtime.plan.schema import Bundle
from tests.training.large_steps import write_text

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


def plan_step(layers: int, sites: int, baseline: str, level: str, clip: float | None) -> tuple[LogicalPlan, Machine]:
    """A well-known plan of a training step of a tiny Llama, in which a level of values is computed again; pairs of
    sites count as near."""
    sizes = {"n_layers": layers, "batch": 8, "length": 5, "d_model": 48, "heads_q": 8, "heads_kv": 4, "d_head": 8,
             "d_ff": 40, "vocab": 97}  # fmt: skip
    options = CompileOptions(
        machine="dgx-h100",
        devices=sites,
        definitions=tuple((name, str(size)) for name, size in sizes.items()),
        train="loss",
        optimizer="adamw",
        clip=clip,
        precision="bf16",
    )
    source = compile_model(write_text(), "llama.ein", options).source
    graph = fuse(recompute(source, "loss", level))
    problem = build_problem(graph, sites, flexible=True)
    names = {known.name: known for known in build_baselines(graph, problem, sites, ["fsdp"], near=2)}
    chosen = names[baseline].chosen
    assert chosen is not None
    plan = LogicalPlan(graph, sites, baseline, build_choices(graph, problem, chosen), False, 0)
    return plan, load_machine("dgx-h100").restrict(range(sites))


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
