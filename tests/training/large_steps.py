"""Plans training steps of Llama on H100s, and what well-known plans of them take: the table of docs/training.md.

    python -m tests.training.large_steps [CASE ...]

Nothing is run: times are predicted, with naive exchanges. The search chooses what is computed again; well-known plans
compute the same things again. `large_steps.json` keeps the rows of each case, so that the table can be made by parts.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from einc.compiler import Compiled, compile_model
from einc.graph.graph import Graph
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.search.baselines import build_baselines, count_near_sites
from einc.training.recomputation import count_again
from einc_runtime.cli.main import GARBAGE_THRESHOLD
from tests.bench.report import write

DEFAULT_SITES = 8
"""Of the cases that are planned if none is named: others take minutes."""
ROOT = Path(__file__).parents[2]
LLAMA, PAGE, ROWS = ROOT / "models" / "llama.ein", ROOT / "docs" / "training.md", Path(__file__).with_suffix(".json")
HEAD = (
    "| step | plan | predicted, ms | GiB per site | planned in, s of one core |",
    "| --- | --- | ---: | ---: | ---: |",
)
STAGES = (2, 4, 8)
"""Of pipelines: more leave a stage of Llama 8B less than four layers."""
GIB = 1 << 30
BASELINES = ("fsdp", "megatron", "data")
OF_MANY_SITES = ("fsdp-megatron", "fsdp")
"""Known plans for more sites than DEFAULT_SITES: others take minutes to build there, and so do pipelines."""
WITHIN_STAGES = ("fsdp", "megatron-sequence")
"""Plans of the stages of a pipeline: others are slower or keep whole weights everywhere."""


@dataclass(frozen=True)
class Case:
    """`sites` of a machine, and how many sequences of 1,024 tokens a step of a model has; `params` are the model's."""

    machine: str
    sites: int
    batch: int
    model: str = "8B"
    params: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.model}, {self.batch} sequences, {self.sites} GPUs"


LLAMA_70B = {"n_layers": 80, "d_model": 8192, "heads_q": 64, "d_ff": 28672}
CASES = {
    **{f"8b-{batch}": Case("dgx-h100", 8, batch) for batch in (16, 64, 96, 192)},
    "8b-128-of-64": Case("dgx-h100x8", 64, 128),
    "70b-64-of-64": Case("dgx-h100x8", 64, 64, "70B", LLAMA_70B),
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
    program, graph, machine = compiled.program, compiled.plan.graph, compiled.target.machine
    seconds, again = time.process_time() - started, count_again(graph)
    limit = machine.sites[0].memory_bytes
    label = f"einc, {again:,} operators again" if again else "einc"
    yield f"| {case.title} | {label} | {describe(program, limit)} | {seconds:.0f} |"
    many = case.sites > DEFAULT_SITES
    for known in build_known(graph, machine, case.sites, OF_MANY_SITES if many else None):
        yield f"| | {known.plan.selector} | {describe(known, limit)} | |"
    if many:
        return
    stages, known, ms = min(list_pipelines(graph, machine, case), key=lambda found: found[2])
    within = known.plan.selector if known.plan.sites > 1 else "one GPU each"
    yield f"| | pipeline: {stages} stages of {within}, at least | {ms:,.0f} | | |"


def build_known(
    graph: Graph, machine: Machine, sites: int, names: Collection[str] | None = None
) -> Iterator[DeviceProgram]:
    """The well-known plans of a step, or those of `names`, also those that do not fit."""
    problem = build_problem(graph, sites, flexible=True)
    for baseline in build_baselines(graph, problem, sites, BASELINES, count_near_sites(machine, sites)):
        wanted = names is None or baseline.name in names
        if wanted and baseline.chosen is not None and baseline.same_as is None:
            choices = build_choices(graph, problem, baseline.chosen)
            plan = LogicalPlan(graph, sites, baseline.name, choices, False, 0)
            yield build(plan, machine.restrict(range(sites)), check_memory=False)


def list_pipelines(graph: Graph, machine: Machine, case: Case) -> Iterator[tuple[int, DeviceProgram, float]]:
    """The stages of pipelines, the plan of each stage, and the least time of a step, in ms.

    Of S stages on S-ths of the sites, none takes less than an S-th of the time in which these sites make the whole
    step. With M parts of the batch, each stage waits for S - 1 parts of others before its first or after its last. What
    stages send, and what smaller parts are slower by, is left out. A part has at least a sequence: of each site, or of
    all sites of a stage where they share the work of each sequence.
    """
    for stages in STAGES:
        sites = case.sites // stages
        for program in build_known(graph, machine, sites, WITHIN_STAGES):
            parts = case.batch if program.plan.selector.startswith("megatron") else case.batch // sites
            if parts:
                yield stages, program, program.predicted_ms / stages * (parts + stages - 1) / parts


def describe(program: DeviceProgram, limit: int) -> str:
    memory = max(program.memory)
    time_ms = f"{program.predicted_ms:,.0f}" if memory <= limit else "does not fit"
    return f"{time_ms} | {memory / GIB:.1f}"


def main() -> int:
    gc.set_threshold(GARBAGE_THRESHOLD)  # as in `einc compile`
    kept: dict[str, list[str]] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    for name in sys.argv[1:] or [name for name, case in CASES.items() if case.sites == DEFAULT_SITES]:
        kept[name] = []
        for row in make_rows(CASES[name]):
            print(row, flush=True)
            kept[name].append(row)
        ROWS.write_text(json.dumps({name: kept[name] for name in CASES if name in kept}, indent=1) + "\n")
    write("training steps", "\n".join((*HEAD, *(row for name in CASES for row in kept.get(name, ())))), PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
