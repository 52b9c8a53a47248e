"""Plans with stages, micro-batches and replicas on limited links: are they as fast, one beside the other, as predicted?

    python -m tests.testbed.throughput [--mbits R] [--repeat N]

Eight ranks over MPI in namespaces at one switch (`star.py`) compute a batch of prompts of a small Llama by plans that
people make by hand (`tests.bench.throughput`): as many replicas as there are ranks, a pipeline, tensor parallelism, and
shapes between them. Exits 1 where two of them are not in the predicted order, unless their predicted times differ by
less than CLOSE. Without root or MPI, it says so in one line and ends with 0.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from einc.compiler import Compiled, read_model
from einc.graph.fuse import fuse
from einc.logical.division import DivisionShape
from einc.machines.load import format_machine
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.physical.records import emit, require_valid
from einc.stages.choice import ShapeSearch
from einc_runtime.plan.repetition import unfold
from einc_runtime.plan.schema import Bundle
from tests.bench.throughput import HandPlanner, describe

from .plans import LLAMA, ROOT, SITES, make_parser, run_in_testbed, run_plan
from .ranks import predict_ranks_ms
from .star import Star

BATCH = 16
PROMPTS = {**LLAMA, "n_layers": 8, "batch": BATCH, "length": 16}
SHAPES = (
    DivisionShape(1, 1, 8),
    DivisionShape(2, 4, 4),
    DivisionShape(4, 4, 2),
    DivisionShape(8, 16, 1),
    DivisionShape(8, 8, 1),
    DivisionShape(4, 8, 1),
    DivisionShape(1, 1, 1),
)
"""Stages, micro-batches and replicas; the other ranks of a stage share its operators as tensor parallelism does."""

CLOSE = 0.05
"""Predicted times that differ by less may be measured in either order."""


def list_plans(machine: Machine) -> Iterator[tuple[str, Bundle]]:
    """The plans by hand with naive exchanges, by their shapes."""
    text = (ROOT / "models" / "llama.ein").read_text(encoding="utf-8")
    definitions = tuple((key, str(value)) for key, value in PROMPTS.items())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "star.json")
        file.write_text(format_machine(machine), encoding="utf-8")
        options = CompileOptions(str(file), SITES, definitions, None, "f32")
        compiled = Compiled(read_model(text, "llama.ein", options), options)
        read = compiled.target.machine
    graph = fuse(compiled.source)
    search = ShapeSearch(graph, read, SITES, naive=True, budget=compiled.budget)
    planner = HandPlanner(compiled, search)
    for shape in SHAPES:
        program = search.build(planner.divide(shape).plan)
        yield describe(shape), unfold(require_valid(emit(program, read, tuple(range(SITES)), "naive")))


def compare(built: Star, launcher: str, machine: Machine, repeat: int) -> int:
    """Runs every plan, and prints whether their order is the predicted one."""
    print("| stages x micro-batches x replicas | messages | predicted ms | of ranks ms | measured ms | prompts / s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    rows: list[tuple[str, float, float]] = []
    for name, bundle in list_plans(machine):
        times, messages = run_plan(built, launcher, bundle, repeat)
        measured, ranks_ms = statistics.median(times), predict_ranks_ms(bundle, machine)
        rows.append((name, bundle.predicted_ms, measured))
        numbers = f"{bundle.predicted_ms:.0f} | {ranks_ms:.0f} | {measured:.0f} | {BATCH / measured * 1e3:.3g}"
        print(f"| {name} | {messages} | {numbers} |", flush=True)
    reversed_pairs = list(list_reversed(rows))
    pairs = len(rows) * (len(rows) - 1) // 2
    print(f"\n{pairs - len(reversed_pairs)} of {pairs} pairs of plans are in the predicted order", end="")
    print("".join(f"; not {first} and {second}" for first, second in reversed_pairs))
    return int(bool(reversed_pairs))


def list_reversed(rows: Sequence[tuple[str, float, float]]) -> Iterator[tuple[str, str]]:
    """The pairs of names whose measured times are not in the order of their predicted ones, unless these are close."""
    for first, second in itertools.combinations(sorted(rows, key=lambda row: row[1]), 2):
        if first[1] < (1 - CLOSE) * second[1] and first[2] >= second[2]:
            yield first[0], second[0]


def main() -> int:
    options = make_parser("throughput", __doc__.splitlines()[0]).parse_args()

    def run(built: Star, launcher: str, machine: Machine) -> int:
        return compare(built, launcher, machine, options.repeat)

    return run_in_testbed(options.mbits, run)


if __name__ == "__main__":
    sys.exit(main())
