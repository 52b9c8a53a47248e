"""Plans training steps of Llama on H100s, and what well-known plans of them take: the table of docs/training.md.

    python -m tests.training.large_steps [CASE ...]

Nothing is run: times are predicted, with naive exchanges. The search chooses what is computed again; well-known plans
compute the same things again. `large_steps.json` keeps the rows of each case, so that the table can be made by parts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from einc.compiler import Compiled, compile_model
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.search.baselines import build_baselines
from einc.training.recomputation import count_again
from tests.bench.report import write

ROOT = Path(__file__).parents[2]
LLAMA, PAGE, ROWS = ROOT / "models" / "llama.ein", ROOT / "docs" / "training.md", Path(__file__).with_suffix(".json")
HEAD = (
    "| sequences x tokens | plan | predicted, ms | GiB per site | planned in, s of one core |",
    "| --- | --- | ---: | ---: | ---: |",
)
GIB = 1 << 30
BASELINES = ("fsdp", "megatron", "data")


@dataclass(frozen=True)
class Case:
    """`sites` of a machine, and how many sequences of 1,024 tokens a step has; `params` are of the model."""

    machine: str
    sites: int
    batch: int
    params: Mapping[str, int] = field(default_factory=dict)


CASES = {f"8b-{batch}": Case("dgx-h100", 8, batch) for batch in (16, 64, 96, 192)}


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


def compile_step(case: Case) -> Compiled:
    definitions = tuple((key, str(value)) for key, value in {"batch": case.batch, **case.params}.items())
    options = CompileOptions(
        case.machine, case.sites, definitions, train="loss", optimizer="adamw", clip=1.0, precision="bf16",
        schedule="naive",
    )  # fmt: skip
    return compile_model(write_text(), "llama.ein", options)


def make_rows(case: Case) -> Iterator[str]:
    started = time.process_time()
    compiled = compile_step(case)
    program, plan, machine = compiled.program, compiled.plan, compiled.target.machine
    seconds, again = time.process_time() - started, count_again(plan.graph)
    limit = machine.sites[0].memory_bytes
    label = f"einc, {again:,} operators again" if again else "einc"
    yield f"| {case.batch} x 1,024 | {label} | {describe(program, limit)} | {seconds:.0f} |"
    problem = build_problem(plan.graph, case.sites, flexible=True)
    for baseline in build_baselines(plan.graph, problem, case.sites, BASELINES):
        if baseline.chosen is not None and baseline.same_as is None:
            choices = build_choices(plan.graph, problem, baseline.chosen)
            known = LogicalPlan(plan.graph, case.sites, baseline.name, choices, False, 0)
            yield f"| | {baseline.name} | {describe(build(known, machine, check_memory=False), limit)} | |"


def describe(program: DeviceProgram, limit: int) -> str:
    memory = max(program.memory)
    time_ms = f"{program.predicted_ms:,.0f}" if memory <= limit else "does not fit"
    return f"{time_ms} | {memory / GIB:.1f}"


def main() -> int:
    kept: dict[str, list[str]] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    for name in sys.argv[1:] or CASES:
        kept[name] = []
        for row in make_rows(CASES[name]):
            print(row, flush=True)
            kept[name].append(row)
        ROWS.write_text(json.dumps({name: kept[name] for name in CASES if name in kept}, indent=1) + "\n")
    write("training steps", "\n".join((*HEAD, *(row for name in CASES for row in kept.get(name, ())))), PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
