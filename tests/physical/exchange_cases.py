"""The exchanges of compiled models, as the physical optimizer hands them to synthesis.

    python -m tests.physical.exchange_cases MACHINE MODEL.ein[:PRESET] ... [--latencies] [--text]

lists them, with sizes and what the naive body takes. From Python:

    for case in exchange_cases("models/llama_block.ein", "dgx-v100", preset="b8x1k"):
        synthesize(case.preamble, case.machine)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from einc.compiler import compile_model
from einc.exprog.naive import naive_body
from einc.exprog.printer import print_program
from einc.exprog.program import Program
from einc.exprog.simulator import simulate
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.preamble import open_preamble
from einc.physical.schedule import Naive

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """One exchange: `preamble` with partitions declared by size, `closed` as the least bytes place it.

    `closed` is None where that placement moves nothing. Earlier operators are where the naive schedule puts them.
    """

    name: str
    preamble: Program
    closed: Program | None
    machine: Machine


def exchange_cases(
    model: str | Path,
    machine: str,
    preset: str | None = None,
    *,
    ideal: bool = True,
    devices: int | None = None,
    definitions: tuple[tuple[str, str], ...] = (),
    distinct: bool = True,
) -> Iterator[Case]:
    """The exchanges of a model of `models/` (or a path), those that look alike once if `distinct`."""
    path = ROOT / "models" / model if not Path(model).exists() else Path(model)
    options = CompileOptions(
        machine=machine, devices=devices, preset=preset, ideal=ideal, definitions=definitions, schedule="naive"
    )
    compiled = compile_model(path.read_text(), str(path), options)
    plan, target = compiled.plan, compiled.target.machine
    seen: list[tuple[str, Program, Program | None]] = []

    class Recorder(Naive):
        def schedule(self, node, inflows, functions):
            scheduled = super().schedule(node, inflows, functions)
            opened = open_preamble(inflows, functions, plan.sites)
            if opened is not None:
                placed = scheduled.preamble
                seen.append((node, opened.program, placed and placed.program))
            return scheduled

    build(plan, target, Recorder(target, plan.sites))
    known = set()
    for name, opened, closed in seen:
        if not distinct or (opened, closed) not in known:
            known.add((opened, closed))
            yield Case(name, opened, closed, target)


def main() -> None:
    parser = argparse.ArgumentParser(description="The exchanges of compiled models.")
    parser.add_argument("machine")
    parser.add_argument("models", nargs="+", metavar="MODEL.ein[:PRESET]")
    parser.add_argument("--latencies", action="store_true")
    parser.add_argument("--text", action="store_true", help="print the preambles")
    options = parser.parse_args()
    for model in options.models:
        name, _, preset = model.partition(":")
        for case in exchange_cases(name, options.machine, preset or None, ideal=not options.latencies):
            naive = "nothing moves"
            if case.closed is not None:
                naive = f"{simulate(naive_body(case.closed, case.machine), case.machine).completion_ms:.4g} ms"
            open_ = case.preamble
            size = sum(h.size * len(h.sites) for h in open_.holdings) / 1e6
            parts = ",".join(str(p.size) for p in open_.partitions)
            print(
                f"{model:24}{case.name:10} atoms {len(open_.requirements):5} IN {size:9.4g} MB  groups {parts}: {naive}"
            )
            if options.text:
                print(print_program(open_))


if __name__ == "__main__":
    main()
