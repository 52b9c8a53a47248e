"""Plans training steps of Llama on H100s, and what well-known plans of them take: the table of docs/training.md.

    python -m tests.training.large_steps [CASE ...]

Nothing is run: times are predicted, with naive exchanges. All plans of a case compute the same things again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from einc.compiler import compile_model
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.physical.build import build
from einc.search.baselines import build_baselines

LLAMA = Path(__file__).parents[2] / "models" / "llama.ein"
GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """`sites` of a machine, and how many sequences of 1,024 tokens a step has; `params` are of the model."""

    machine: str
    sites: int
    batch: int
    recompute: str
    params: Mapping[str, int] = field(default_factory=dict)


CASES = {
    "8b": Case("dgx-h100", 8, 64, "none"),
    "8b-cheap": Case("dgx-h100", 8, 96, "cheap"),
    "8b-blocks": Case("dgx-h100", 8, 192, "blocks"),
}


def write_text() -> str:
    """The model with the logits of all tokens, and their loss."""
    text = LLAMA.read_text()
    text = text.replace("input last : i64[sequences]  # rows of `ids`", "input targets : i64[tokens]")
    text = text.replace("    output keys, values\n", "").replace("x, keys, values = layer", "x = layer")
    text = text.replace("return r + down, rk, v", "return r + down")
    return (
        text[: text.index("rows = embedding(last")]
        + "logits[tokens, vocab] = last_x[tokens, d_model] * head[vocab, d_model]\n"
        + 'output loss = cross_entropy(cast(logits, "f32"), targets)\n'
    )


def show(name: str, case: Case) -> None:
    """Prints the rows of a case."""
    definitions = tuple((key, str(value)) for key, value in {"batch": case.batch, **case.params}.items())
    options = CompileOptions(
        case.machine, case.sites, definitions, train="loss", optimizer="adamw", clip=1.0, precision="bf16",
        schedule="naive", recompute=case.recompute,
    )  # fmt: skip
    started = time.perf_counter()
    compiled = compile_model(write_text(), "llama.ein", options)
    program, plan = compiled.program, compiled.plan
    seconds = time.perf_counter() - started
    again = sum(node.name.endswith(".again") for node in plan.graph.nodes)
    print(
        f"| {name}: {case.batch} x 1,024 on {case.sites} | einc, {again} computed again | {program.predicted_ms:,.0f} "
        f"| {max(program.memory) / GIB:.1f} | {seconds:.0f} |",
        flush=True,
    )
    problem = build_problem(plan.graph, case.sites, flexible=True)
    for baseline in build_baselines(plan.graph, problem, case.sites, ["fsdp", "megatron", "data"]):
        if baseline.chosen is not None:
            choices = build_choices(plan.graph, problem, baseline.chosen)
            show_baseline(
                baseline.name,
                LogicalPlan(plan.graph, case.sites, baseline.name, choices, False, 0),
                compiled.target.machine,
            )


def show_baseline(name: str, plan: LogicalPlan, machine: Machine) -> None:
    program = build(plan, machine, check_memory=False)
    memory, limit = max(program.memory), machine.sites[0].memory_bytes
    print(f"| | {name} | {program.predicted_ms:,.0f}{'' if memory <= limit else ' (does not fit)'} "
          f"| {memory / GIB:.1f} | |", flush=True)  # fmt: skip


def main() -> int:
    print("| step | plan | predicted, ms | GiB per site | planned in, s |\n| --- | --- | ---: | ---: | ---: |")
    for name in sys.argv[1:] or CASES:
        show(name, CASES[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
