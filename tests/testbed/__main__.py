"""Exchange programs on real links: build the testbed, measure it, run programs, and compare them with the simulator.

    python -m tests.testbed [--seconds S] [--search S] [--only WORD] [--no-peers] [-o MACHINE.json]

With `--no-peers` the machine is one whose transfers all go through the memory of the host. Exits 1 where a program
took more than 15% longer or shorter than simulated. Without root, or without the features of the kernel that it needs,
it says so in one line and ends with 0.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace

import numpy as np

from einc.exchange.simulation.simulator import simulate
from einc.machines.importers.topology import PCIE_GBS
from einc.machines.load import format_machine, load_machine
from einc.machines.model import Machine, Resource

from .executor import ExecutionError, Executor, processes
from .measure import measured_machine
from .network import PORT, Unsupported, network
from .programs import cases

MACHINE = "dgx-v100"
MBITS = 1.0
"""Mbit/s of the testbed for each GB/s of the machine."""

TOLERANCE = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description="Exchange programs on real links.")
    parser.add_argument("--seconds", type=float, default=1.2, help="what every program takes at least (1.2)")
    parser.add_argument("--search", type=float, default=4.0, help="seconds for each synthesis (4)")
    parser.add_argument("--only", default="", help="only programs whose name has this in it")
    parser.add_argument("--no-peers", action="store_true", help="all transfers go through one shared path")
    parser.add_argument("-o", "--output", help="write the measured machine file")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))  # so that everything is removed in this case too
    nominal = make_machine_without_peers() if options.no_peers else load_machine(MACHINE)
    try:
        with network(nominal, MBITS) as net, processes(net.prefixes(), net.address) as executor:
            executor.listen(PORT)
            machine = measured_machine(executor, nominal, MBITS)
            if options.output:
                with open(options.output, "w") as file:
                    file.write(format_machine(machine))
            _describe(machine, nominal)
            return _compare(executor, machine, options.seconds, options.search, options.only)
    except Unsupported as reason:
        print(f"testbed skipped: {reason}")
        return 0
    except ExecutionError as error:
        print(f"testbed failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed interrupted and removed", file=sys.stderr)
        return 130


def make_machine_without_peers() -> Machine:
    """Eight sites that have nothing between them but the memory of the host, at the rate of a slot of PCIe 3."""
    preset = load_machine("geforce-3090x4")
    sites = range(8)
    pairs = tuple((a, b) for a in sites for b in sites if a != b)
    memory = Resource("host memory", PCIE_GBS, pairs)
    return replace(preset, name="no peers", sites=preset.sites[:1] * 8, resources=(memory,))


def _describe(machine: Machine, nominal: Machine) -> None:
    reached = [
        measured.gbs * 8e3 / (one.gbs * MBITS)
        for measured, one in zip(machine.resources, nominal.resources, strict=True)
    ]
    print(
        f"{len(machine.resources)} resources at {min(reached):.3f} to {max(reached):.3f} of their nominal rate,",
        end=" ",
    )
    print(f"transfers start after {machine.transfer_latency_us / 1e3:.2f} ms,", end=" ")
    print(
        f"additions after {machine.kernel_latency_us / 1e3:.2f} ms and move {machine.sites[0].hbm_gbs:.2f} GB/s\n",
        flush=True,
    )


def _compare(executor: Executor, machine: Machine, seconds: float, search: float, only: str) -> int:
    totals, ends, most = [], [], 0.0
    began = time.monotonic()
    print("| program | actions | pieces | simulated ms | measured ms | measured / simulated |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in cases(machine, seconds, search):
        if only not in case.name:
            continue
        measured = executor.execute(case.program)
        ratio = measured.completion_ms / case.simulated_ms
        most = max(most, abs(ratio - 1))
        totals.append((case.simulated_ms, measured.completion_ms))
        events = simulate(case.program, machine).events
        ends += [(event.end, run.end) for event, run in zip(events, measured.runs, strict=True)]
        row = f"| {case.name} | {len(case.program.actions)} | {case.splits} | {case.simulated_ms:.0f}"
        print(f"{row} | {measured.completion_ms:.0f} | {ratio:.3f} |", flush=True)
    if not totals:
        print(f"no program has {only!r} in its name", file=sys.stderr)
        return 2
    print(f"\n{len(totals)} programs, all within {most:.1%} of the simulated time;", end=" ")
    if len(totals) > 2:
        print(f"correlation of their times {_correlation(totals):.4f},", end=" ")
    print(f"of the ends of their {len(ends)} actions {_correlation(ends):.4f}; {time.monotonic() - began:.0f} s")
    return int(most > TOLERANCE)


def _correlation(pairs: list[tuple[float, float]]) -> float:
    """Pearson's."""
    return float(np.corrcoef(np.array(pairs).T)[0, 1]) if len(pairs) > 1 else float("nan")


if __name__ == "__main__":
    sys.exit(main())
