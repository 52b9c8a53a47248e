"""Plans with blocks that several sites compute, and with idle sites, from the cut to the commands that read them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from einc.compiler import Compiled, compile_model
from einc.logical.candidates import build_candidates, enumerate_flexible_candidates
from einc.logical.plan import Candidate, Choice, LogicalPlan, dump_plan
from einc.ops.base import Operator
from einc.options import CompileOptions
from einc.physical.build import build, build_fast
from einc.physical.records import emit
from einc.physical.verify import verify
from einc.plan_reading.restore import restore_plan
from einc.predict.costs import compute_task_costs
from einc.predict.timeline import time_tasks
from einc_runtime.plan.codec import encode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Bundle, KernelTask

MODELS = Path(__file__).parents[2] / "models"


def compiled(model: str, machine: str, sites: int, preset: str | None = None, **definitions: str) -> Compiled:
    text = (MODELS / f"{model}.ein").read_text()
    options = CompileOptions(
        machine=machine,
        devices=sites,
        preset=preset,
        definitions=tuple(definitions.items()),
        selector="eindecomp",
        schedule="naive",
    )
    return compile_model(text, f"{model}.ein", options)


def with_cuts(compilation: Compiled, choose: Callable[[Operator, Candidate], Candidate]) -> LogicalPlan:
    """The compiled plan with other candidates; the costs of repartitions stay, and play no part here."""
    nodes = zip(compilation.plan.graph.nodes, compilation.plan.choices, strict=True)
    choices = (Choice(node.name, choose(node.operator, old.candidate), old.repartition) for node, old in nodes)
    return replace(compilation.plan, choices=tuple(choices))


def bundle_of(compilation: Compiled, plan: LogicalPlan, schedule: str) -> Bundle:
    machine = compilation.target.machine
    program = build(plan, machine) if schedule == "naive" else build_fast(plan, machine)
    verify(program)
    return emit(program, machine, compilation.target.devices, schedule)


def compute_everywhere(operator: Operator, old: Candidate) -> Candidate:
    """Norms and additions in full on all sites."""
    cheap = operator.kernel.name in ("rmsnorm", "layernorm") or operator.title == "add"
    return build_candidates(operator, (1,) * len(operator.indices), 4)[0] if cheap else old


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("model", "seed"), [("llama_decode", None), ("llama_decode", 1), ("moe", 2), ("bert", 3)])
def test_commands_read_plans_with_replicas(
    model: str, seed: int | None, einc: Callable[..., Any], tmp_path: Path
) -> None:
    """The commands prove the plan, and compute what the operators' definitions say on whole arrays."""
    compilation = compiled(model, "host", 4, "tiny")
    rng = random.Random(seed)

    def draw(operator: Operator, old: Candidate) -> Candidate:
        return rng.choice(enumerate_flexible_candidates(operator, 4))

    plan = with_cuts(compilation, compute_everywhere if seed is None else draw)
    bundle = bundle_of(compilation, plan, "naive" if seed is None else "synthesized")
    assert restore_plan(bundle).choices == plan.choices
    path = tmp_path / "plan.bin"
    path.write_bytes(encode(bundle))
    prove(bundle)
    assert "cost.repartition" in einc("verify", path).err  # false in these plans, see `with_cuts`
    run = einc("run", path, "--inputs", "rand:0", "--weights", "rand:1", "--backend", "cpu", "--check")
    assert run.code == 0, run.err
    told = einc("explain", path, "--json").json()["ops"]
    assert [op["replicas"] for op in told] == [choice.candidate.replicas for choice in plan.choices]
    assert [len(op["specs"]) for op in told] == [len(choice.candidate.functions) for choice in plan.choices]
    text = einc("explain", path)
    assert text.code == 0, text.err
    repeated = {choice.candidate.replicas for choice in plan.choices} - {1}
    assert repeated
    for replicas in repeated:
        assert f"\n  computed on {replicas} sites each\n" in text.out
        assert f"\n  computed on {replicas} sites each\n" in dump_plan(plan)
    if seed is None:
        assert "whole (4 sites each)" in text.out


def test_decoding_is_faster_where_norms_and_additions_are_computed_everywhere() -> None:
    compilation = compiled("llama_decode", "dgx-h100", 4, n_layers="2")
    machine = compilation.target.machine
    faster = build(with_cuts(compilation, compute_everywhere), machine)
    assert faster.predicted_ms < 0.97 * compilation.program.predicted_ms


def test_independent_products_run_side_by_side() -> None:
    """M5 M6 and M7 M8 need nothing from each other; cut into four, each product takes four of eight sites."""
    compilation = compiled("chain_a", "dgx-a100", 8)

    def halve(operator: Operator, old: Candidate) -> Candidate:
        return build_candidates(operator, (2, 1, 2))[0]

    program = build(with_cuts(compilation, halve), compilation.target.machine)
    times = time_tasks(compute_task_costs(program), compilation.target.machine)
    spans: dict[str, list[tuple[float, float, int]]] = {}
    for task, start, end in zip(program.tasks, times.starts, times.ends, strict=True):
        if isinstance(task, KernelTask):
            spans.setdefault(program.operations[task.operation].name, []).append((start, end, task.site))
    for first, second in (("p12", "p34"), ("p5678.1", "p5678.2")):
        assert {site for *_, site in spans[first]}.isdisjoint(site for *_, site in spans[second])
        assert max(start for start, *_ in (*spans[first], *spans[second])) < min(
            end for _, end, _ in (*spans[first], *spans[second])
        )
