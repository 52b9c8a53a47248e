"""What is chosen for throughput, against what people plan by hand: data, tensor and pipeline parallelism.

    python -m tests.bench.throughput [--case NAME]... [--write]

A case is a batch of prompts of a Llama on a machine. By hand, every stage has as many layers as any other (the first
also the embedding, the last the logits), and each operator is cut as tensor parallelism does it, by columns and then by
rows, over the sites of its stage; micro-batches follow each other as in 1F1B without its backward half. Of all numbers
of stages, micro-batches and replicas that divide, the ones that are estimated to be fastest are built, with exchanges
that are synthesized as those of the chosen plan are, and simulated. Exits 1 if a plan by hand is faster than what is
chosen. `--write` puts the rows into docs/throughput.md; rows of cases that were not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from einc.compiler import Compiled, read_model
from einc.errors import CapacityError, MachineError, UsageError
from einc.graph.fuse import fuse
from einc.logical.division import DivisionShape
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.options import FASTEST, CompileOptions
from einc.physical.build import build
from einc.search.baselines import build_baselines
from einc.stages.batch import BatchCut, cut_batch
from einc.stages.choice import ShapeRequest, ShapeSearch
from einc.stages.planning import DividedPlan, describe_part, divide_plan, make_part_graph

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "throughput.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
HEADER = ["model, prompts", "machine, sites", "chosen", "prompts / s", "tensor", "data", "pipeline", "mixed", "CPU s"]
LARGE = ("n_layers=80", "d_model=8192", "heads_q=64", "d_ff=28672")
WORTH = 1.1
"""Shapes are estimated if their bound is at most so many times the least estimate, in case that one does not fit."""

ROUNDING = 1e-9
"""Times that differ by this part are the same."""


@dataclass(frozen=True, slots=True)
class Case:
    """`batch` prompts of 1024 tokens of a Llama, on all sites of a machine."""

    title: str
    machine: str
    batch: int
    definitions: tuple[str, ...] = ()


CASES = {
    f"{size}-{machine}": Case(f"Llama {size.upper()}, {batch}", machine, batch, definitions)
    for size, definitions in (("8b", ()), ("70b", LARGE))
    for machine, batch in (("dgx-h100", 32), ("l40s-pcie8", 32), ("dgx-h100x2", 64), ("hosts-25g", 64))
}


@dataclass(frozen=True, slots=True)
class HandPlan:
    """A plan by hand: its shape, and what it is predicted to take; None where it does not fit."""

    shape: DivisionShape
    ms: float | None


class HandPlanner:
    """Plans one case by hand; a part of the batch on a number of sites is planned once."""

    def __init__(self, compiled: Compiled, search: ShapeSearch) -> None:
        self.graph = fuse(compiled.source)
        self.machine, self.sites = compiled.target.machine, len(compiled.target.devices)
        self.search = search
        self.cuts: dict[int, BatchCut] = {}
        self.layers = max(map(find_layer, (node.name for node in self.graph.nodes))) + 1

    def plan(self, shapes: Sequence[DivisionShape]) -> HandPlan | None:
        """The fastest of these shapes: of those that are estimated to be faster than others, the first that fits."""
        promised: list[tuple[float, DivisionShape, DividedPlan]] = []
        bounded = []
        for shape in shapes:
            with suppress(UsageError):
                bounded.append((self.search.bound_ms(shape), shape))
        for bound_ms, shape in sorted(bounded, key=lambda entry: entry[0]):
            if promised and bound_ms > WORTH * min(ms for ms, _, _ in promised):
                break  # as it is not built if it is estimated to take longer
            with suppress(UsageError, StopIteration):
                divided = self.divide(shape)
                promised.append((divided.ms, shape, divided))
        for _, shape, divided in sorted(promised, key=lambda entry: entry[0]):
            try:
                return HandPlan(shape, self.search.build(divided.plan).predicted_ms)
            except (CapacityError, MachineError):
                continue
        return HandPlan(shapes[0], None) if promised else None

    def divide(self, shape: DivisionShape) -> DividedPlan:
        """The plan of a shape: equal stages, and tensor parallelism in each."""
        if shape.parts not in self.cuts:
            self.cuts[shape.parts] = cut_batch(self.graph, shape.parts)
        cut, sites = self.cuts[shape.parts], self.sites // shape.groups
        graph, machine = make_part_graph(cut), self.machine.restrict(range(sites))
        problem = build_problem(graph, sites, flexible=True)
        name = "single" if sites == 1 else "megatron"
        chosen = next(b.chosen for b in build_baselines(graph, problem, sites, [name]) if b.chosen is not None)
        choices = build_choices(graph, problem, chosen)
        plan = LogicalPlan(graph, sites, FASTEST, choices, exact=False, cut_cost=0)
        roomy = [replace(site, memory_bytes=site.memory_bytes * self.sites) for site in machine.sites]
        part = describe_part(cut, build(plan, replace(machine, sites=tuple(roomy))), machine)
        divided = divide_plan(part, shape, self.machine, self.sites, self.list_stages(cut, shape.stages))
        assert divided is not None
        return divided

    def list_stages(self, cut: BatchCut, stages: int) -> list[int]:
        """The stage of every node that is not late: equally many layers in each."""
        listed, layer = [], 0
        for number, node in enumerate(self.graph.nodes):
            layer = max(layer, find_layer(node.name))
            if number not in cut.late:
                listed.append(layer * stages // self.layers)
        return listed


def find_layer(name: str) -> int:
    """The layer that a node belongs to: 3 for `layer.3.q`, `keys.3` and `x.3`; 0 for others."""
    numbers = re.findall(r"\.(\d+)", name)
    return int(numbers[0]) if numbers else 0


def list_shapes(sites: int) -> Iterator[tuple[str, list[DivisionShape]]]:
    """The columns of the table, with the shapes that each stands for."""
    shapes = list(ShapeRequest().list_shapes(sites))
    yield "tensor", [DivisionShape()]
    yield "data", [DivisionShape(1, 1, sites)]
    yield "pipeline", [shape for shape in shapes if shape.stages == sites]
    yield "mixed", [shape for shape in shapes if sites > shape.groups > 1 or 1 < shape.stages < sites]


def measure(case: Case, progress: Callable[[str], None]) -> tuple[list[str], bool]:
    """The row of a case, and whether no plan by hand is faster than what is chosen."""
    started = time.process_time()
    text = (ROOT / "models" / "llama.ein").read_text(encoding="utf-8")
    named = (entry.partition("=") for entry in (*case.definitions, f"batch={case.batch}"))
    options = CompileOptions(
        machine=case.machine, definitions=tuple((name, value) for name, _, value in named), objective="throughput"
    )
    compiled = Compiled(read_model(text, "llama.ein", options), options, progress)
    program = compiled.program
    took = time.process_time() - started
    division = program.plan.division
    shape = DivisionShape() if division is None else division.shape
    sites = len(compiled.target.devices)
    search = ShapeSearch(fuse(compiled.source), compiled.target.machine, sites, naive=False, budget=compiled.budget)
    planner = HandPlanner(compiled, search)
    row = [case.title, f"{case.machine}, {sites}", f"{describe(shape)}: {program.predicted_ms:,.4g} ms"]
    row.append(f"{case.batch / program.predicted_ms * 1e3:.3g}")
    fastest = True
    for name, shapes in list_shapes(sites):
        progress(f"{name} by hand")
        by_hand = planner.plan(shapes)
        if by_hand is None or by_hand.ms is None:
            row.append("does not fit" if by_hand is not None else "-")
            continue
        ratio = by_hand.ms / program.predicted_ms
        fastest = fastest and ratio >= 1 - ROUNDING
        row.append(f"{ratio:.2f}" if name in ("tensor", "data") else f"{ratio:.2f} ({describe(by_hand.shape)})")
    return [*row, f"{took:.0f}"], fastest


def describe(shape: DivisionShape) -> str:
    """Stages x micro-batches x replicas: `2 x 8 x 1`."""
    return f"{shape.stages} x {shape.microbatches} x {shape.replicas}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What is chosen for throughput, against plans by hand.")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    before, _, remaining = page.partition(MARKS[0])
    table, _, after = remaining.partition(MARKS[1])
    kept = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in table.splitlines()[3:]}
    rows: list[str] = []
    slower = []
    for name, case in CASES.items():
        if options.case and name not in options.case:
            rows += [
                line for key, line in kept.items() if key[0] == case.title and key[1].split(",")[0] == case.machine
            ]
            continue
        row, fastest = measure(case, lambda step, name=name: print(f"{name}: {step}", file=sys.stderr))  # type: ignore[misc]
        rows.append(f"| {' | '.join(row)} |")
        print(rows[-1], flush=True)
        slower += [] if fastest else [name]
    if options.write:
        lines = [f"| {' | '.join(HEADER)} |", "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", *rows]
        text = "\n".join([MARKS[0], *lines, MARKS[1]])
        PAGE.write_text(f"{before}{text}{after}", encoding="utf-8")
    if slower:
        sys.exit(f"a plan by hand is faster than what is chosen: {', '.join(slower)}")


if __name__ == "__main__":
    main()
