"""How near collectives on machines of many sites come to their bounds, and how long finding them takes.

    python -m tests.bench.collectives [MACHINE[:COLLECTIVE,...] ...] [--write]

For every machine and collective of 1 GB (the result of a reduction per site has 1 GB): time found over the bound, and
seconds of processor time for bound and search. With --write the table goes into docs/exchange-programs.md. Exits 1
where the geometric mean or the seconds miss their targets.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exchange-programs.md"
MACHINES = ("dgx-h100x2", "dgx-h100x4", "gb200-nvl72")
COLLECTIVES = ("allgather", "reduce-scatter", "all-reduce", "all-to-all")
MEAN = 1.10
SECONDS = {"dgx-h100x2": 10.0, "dgx-h100x4": 30.0, "gb200-nvl72": 30.0}
GB = 10**9


def build_collective(name: str, count: int):
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


def measure(machine_name: str, name: str) -> tuple[float, float, float, str, int]:
    """Time found and bound in ms, seconds of processor time, the kind of the bound, and the number of actions."""
    from einc.exchange.bounds import verify
    from einc.exchange.language.checker import check
    from einc.exchange.synthesis import synthesize
    from einc.machines.load import load_machine

    machine = load_machine(machine_name).ideal()
    program = build_collective(name, len(machine.sites))
    start = time.process_time()
    found = synthesize(program, machine)
    seconds = time.process_time() - start
    assert check(found.program, machine).valid
    assert verify(found.bound, program, machine)
    kind = re.split(r"[ :]", found.bound.bound_by)[0]
    return found.completion_ms, found.bound.bound_ms, seconds, kind, len(found.program.actions)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machines", nargs="*", default=MACHINES)
    parser.add_argument("--write", action="store_true", help="put the table into docs/exchange-programs.md")
    options = parser.parse_args(arguments)
    lines = ["| machine | collective | found, ms | bound, ms | ratio | actions | seconds |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    print("\n".join(lines), flush=True)
    ratios = []
    failed = False
    for entry in options.machines:
        machine, _, listed = entry.partition(":")
        for name in listed.split(",") if listed else COLLECTIVES:
            took, bound, seconds, kind, actions = measure(machine, name)
            ratios.append(took / bound)
            failed |= seconds > SECONDS.get(machine, math.inf)
            lines.append(f"| `{machine}` | {name} | {took:.1f} | {bound:.1f} {kind} | {took / bound:.3f} "
                         f"| {actions} | {seconds:.1f} |")  # fmt: skip
            print(lines[-1], flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.3f} (target {MEAN}), worst {max(ratios):.3f}")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        table = "\n".join([*lines, "", f"Geometric mean: {mean:.3f}.", ""])
        begin, end = "<!-- collectives -->\n", "<!-- end of collectives -->\n"
        before, _, rest = text.partition(begin)
        PAGE.write_text(before + begin + table + end + rest.partition(end)[2], encoding="utf-8")
    return int(failed or mean > MEAN)


if __name__ == "__main__":
    raise SystemExit(main())
