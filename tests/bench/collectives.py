"""How near exchanges on machines of many sites come to their bounds, and how long finding them takes.

    python -m tests.bench.collectives [MACHINE[:COLLECTIVE,...] ...] [--write]
    python -m tests.bench.collectives --blocks [MACHINE[:PRESET,...] ...] [--write]

For every machine and collective of 1 GB (the result of a reduction per site has 1 GB): time found over the bound, and
seconds of processor time for bound and search. With `--blocks`, the exchanges of LLaMA blocks take the place of
collectives: those that the plan chosen with naive exchanges needs, each by itself. Latencies are left out of both. With
--write the table goes into docs/exchange-programs.md. Exits 1 where the geometric mean or the seconds miss their
targets.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einc.exchange.language.program import Program
    from einc.machines.model import Machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exchange-programs.md"
MACHINES = ("dgx-h100x2", "dgx-h100x4", "gb200-nvl72")
BLOCK = Path(__file__).resolve().parents[2] / "models" / "llama_block.ein"
PRESETS = ("b1x1k", "b8x1k", "b1x8k")
COLLECTIVES = ("allgather", "reduce-scatter", "all-reduce", "all-to-all")
MEAN = 1.10
SECONDS = {"dgx-h100x2": 10.0, "dgx-h100x4": 30.0, "gb200-nvl72": 30.0}
GB = 10**9
HEADER = "| machine | collective | found, ms | bound, ms | ratio | actions | seconds |"
BLOCK_HEADER = "| machine | block | exchanges | mean ratio | worst | most seconds |"


def build_collective(name: str, count: int) -> Program:
    """The preamble of a collective among `count` sites."""
    from einc.exchange.language.program import Holding, Program, Requirement

    sites = tuple(range(count))
    if name == "allgather":
        held = [Holding((f"A{s}",), (s,), GB) for s in sites]
        needed = [Requirement((f"A{s}",), sites) for s in sites]
    elif name == "all-reduce":
        held = [Holding((f"A{s}",), (s,), count * GB) for s in sites]
        needed = [Requirement(tuple(sorted(f"A{s}" for s in sites)), sites)]
    elif name == "reduce-scatter":
        held = [Holding((f"A{s}_{d}",), (s,), GB) for s in sites for d in sites]
        needed = [Requirement(tuple(sorted(f"A{s}_{d}" for s in sites)), (d,)) for d in sites]
    else:
        held = [Holding((f"A{s}_{d}",), (s,), GB) for s, d in itertools.permutations(sites, 2)]
        needed = [Requirement((f"A{s}_{d}",), (d,)) for s, d in itertools.permutations(sites, 2)]
    return Program(None, (), tuple(held), tuple(needed), ())


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times found and bound in ms, seconds of processor time, the kind of the bound, and the number of actions."""

    found_ms: float
    bound_ms: float
    seconds: float
    kind: str
    actions: int

    @property
    def ratio(self) -> float:
        return self.found_ms / self.bound_ms


def measure(program: Program, machine: Machine) -> Measurement | None:
    """Synthesizes an exchange, and checks it and the witness of its bound. None where nothing has to be sent."""
    from einc.exchange.bounds import verify
    from einc.exchange.language.checker import check
    from einc.exchange.synthesis import synthesize

    start = time.process_time()
    found = synthesize(program, machine)
    seconds = time.process_time() - start
    assert check(found.program, machine).valid
    assert verify(found.bound, program, machine)
    if not found.bound.bound_ms:
        return None
    kind = re.split(r"[ :]", found.bound.bound_by)[0]
    return Measurement(found.completion_ms, found.bound.bound_ms, seconds, kind, len(found.program.actions))


def list_block_exchanges(machine_name: str, preset: str) -> list[Program]:
    """The preambles of the exchanges of a LLaMA block's plan, each once."""
    from einc.compiler import compile_model
    from einc.exchange.language.resolve import read_program
    from einc.machines.load import load_machine
    from einc.options import CompileOptions

    options = CompileOptions(machine=machine_name, preset=preset, schedule="naive")
    program = compile_model(BLOCK.read_text(encoding="utf-8"), BLOCK.name, options).program
    exchanges = [one.exchange for one in (*program.operations, *program.outputs)]
    texts = dict.fromkeys(exchange.program for exchange in exchanges if exchange is not None)
    machine = load_machine(machine_name)
    return [replace(read_program(text, "exchange", machine), actions=()) for text in texts]


def tabulate_collectives(machine_name: str, names: Sequence[str]) -> Iterator[tuple[str, list[Measurement]]]:
    """A row for each collective, with what was measured."""
    from einc.machines.load import load_machine

    machine = load_machine(machine_name).ideal()
    for name in names or COLLECTIVES:
        one = measure(build_collective(name, len(machine.sites)), machine)
        assert one is not None
        times = f"{one.found_ms:.1f} | {one.bound_ms:.1f} {one.kind} | {one.ratio:.3f}"
        yield f"| `{machine_name}` | {name} | {times} | {one.actions} | {one.seconds:.1f} |", [one]


def tabulate_blocks(machine_name: str, presets: Sequence[str]) -> Iterator[tuple[str, list[Measurement]]]:
    """A row for each preset, with what was measured of all its exchanges."""
    from einc.machines.load import load_machine

    machine = load_machine(machine_name).ideal()
    for preset in presets or PRESETS:
        programs = list_block_exchanges(machine_name, preset)
        own = [one for program in programs if (one := measure(program, machine)) is not None]
        if not own:
            yield f"| `{machine_name}` | `{preset}` | 0 | | | |", own
            continue
        ratios = [one.ratio for one in own]
        figures = f"{average(ratios):.3f} | {max(ratios):.3f} | {max(one.seconds for one in own):.1f}"
        yield f"| `{machine_name}` | `{preset}` | {len(own)} | {figures} |", own


def average(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machines", nargs="*", default=MACHINES)
    parser.add_argument("--blocks", action="store_true", help="the exchanges of LLaMA blocks")
    parser.add_argument("--write", action="store_true", help="put the table into docs/exchange-programs.md")
    options = parser.parse_args(arguments)
    section, header, tabulate = "collectives", HEADER, tabulate_collectives
    if options.blocks:
        section, header, tabulate = "blocks", BLOCK_HEADER, tabulate_blocks
    lines = [header, "| --- | --- " + "| ---: " * (header.count("|") - 3) + "|"]
    print("\n".join(lines), flush=True)
    ratios: list[float] = []
    failed = False
    for entry in options.machines:
        machine, _, listed = entry.partition(":")
        for line, own in tabulate(machine, listed.split(",") if listed else ()):
            ratios += [one.ratio for one in own]
            failed |= any(one.seconds > SECONDS.get(machine, math.inf) for one in own)
            lines.append(line)
            print(line, flush=True)
    mean = average(ratios)
    print(f"geometric mean {mean:.3f} (target {MEAN}), worst {max(ratios):.3f}")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        table = "\n".join([*lines, "", f"Geometric mean: {mean:.3f}.", ""])
        begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
        before, _, rest = text.partition(begin)
        PAGE.write_text(before + begin + table + end + rest.partition(end)[2], encoding="utf-8")
    return int(failed or mean > MEAN)


if __name__ == "__main__":
    raise SystemExit(main())
