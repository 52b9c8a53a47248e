"""Exchanges against NCCL's measured times: NCCL's own rings in the simulator, and what einc synthesizes instead.

    python -m tests.truth.exchanges [--write]

`nccl.json` has the times in microseconds that `aiconfigurator-core` 0.12.0 (Apache-2.0) reports of nccl-tests, halves,
out of place, from 1 KiB to 512 MiB in powers of two, by GPU, collective and number of GPUs. `--write` puts the tables
into docs/truth/exchanges.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from einc.exchange.language.resolve import read_preamble, read_program
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.machines.importers.gpus import GPUS
from einc.machines.load import load_machine
from einc.machines.model import Machine
from einc.machines.rules import build_switch
from tests.truth.programs import WRITERS
from tests.truth.protocols import FOLDER, US_PER_BYTE, Fabric, count_ring_steps, load_fabrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "truth" / "exchanges.md"
MARKS = ("<!-- tables -->", "<!-- end of tables -->")
SIZES = tuple(1024 << n for n in range(20))
SHOWN = (16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 512 << 20)
FREE_GBS = 1e9
"""Memory so fast that sums take no time: NCCL adds while it receives."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured collective: bytes as nccl-tests counts them, and microseconds."""

    gpu: str
    collective: str
    gpus: int
    size: int
    us: float


def load_rows() -> list[Row]:
    """All measured times."""
    document = json.loads((FOLDER / "nccl.json").read_text("utf-8"))
    return [
        Row(gpu, collective, int(gpus), size, us)
        for gpu, collectives in document.items()
        for collective, numbers in collectives.items()
        for gpus, times in numbers.items()
        for size, us in zip(SIZES, times, strict=True)
    ]


def replay(row: Row, fabric: Fabric) -> float:
    """Microseconds: the least over NCCL's protocols, played in the simulator.

    The start of a collective and the copy within a GPU are added, which exchange programs do not have. NVLS and small
    sends are taken from their formulas: no exchange program has sums by switches, and no resource the rate of a peer.
    """
    text, chunk = WRITERS[row.collective](row.gpus, row.size), row.size / row.gpus
    if row.collective == "alltoall":
        sends, share = fabric.sends, fabric.send_shares.get(row.gpus, 1.0)
        moving = play(text, make_machine(row.gpus, sends.gbs * share, 0.0)) + chunk / sends.copy_gbs * US_PER_BYTE
        large = sends.start_us + moving + (row.gpus - 2) * sends.peer_us
        return min(large, sends.time_small(row.size, row.gpus, share))
    share = fabric.shares.get(row.gpus, 1.0)
    times = [
        protocol.start_us
        + play(text, make_machine(row.gpus, protocol.gbs * share, protocol.hop_us))
        + chunk / protocol.copy_gbs * US_PER_BYTE
        for protocol in fabric.protocols.values()
    ]
    if fabric.switch is not None and row.collective == "all_reduce" and row.gpus >= fabric.switch_min_gpus:
        times.append(fabric.switch.time_all_reduce(row.size, row.gpus))
    return min(times)


def time_ring(row: Row, protocol: str, fabric: Fabric) -> float:
    """Microseconds of a ring by its formula."""
    steps = count_ring_steps(row.collective, row.gpus)
    return fabric.protocols[protocol].time_ring(steps, row.size / row.gpus, fabric.shares.get(row.gpus, 1.0))


def make_machine(gpus: int, gbs: float, transfer_us: float) -> Machine:
    """GPUs on a switch with ports of this rate, whose sums take no time."""
    site = replace(load_machine("dgx-h100").sites[0], hbm_gbs=FREE_GBS, gpu=None)
    return Machine(
        "fabric", (site,) * gpus, tuple(build_switch("nv", dict.fromkeys(range(gpus), gbs))), transfer_us, 0.0
    )


def play(text: str, machine: Machine) -> float:
    """Microseconds of a program in the simulator."""
    return simulate(read_program(text, "played.exprog", machine), machine).completion_ms * 1e3


def find_synthesized(collective: str, size: int, machine: Machine) -> tuple[float, float]:
    """Microseconds of what einc synthesizes, and its bound."""
    preamble = read_preamble(WRITERS[collective](len(machine.sites), size).split("\n\n", 1)[0] + "\n", "p", machine)
    result = synthesize(preamble, machine, SynthesisOptions(iterations=50))
    return result.completion_ms * 1e3, (result.bound.bound_ms or 0.0) * 1e3


def tabulate_replayed(rows: Sequence[Row]) -> str:
    """Measured over predicted of NCCL's own programs."""
    fabrics = load_fabrics()
    lines = [
        "| GPU | collective | rows | median | 10% to 90% | extremes | beyond 1.5 |",
        "| --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    far = []
    for gpu, fabric in fabrics.items():
        ratios = {row: row.us / replay(row, fabric) for row in rows if row.gpu == gpu}
        far += [(row, ratio) for row, ratio in ratios.items() if abs(math.log(ratio)) > math.log(1.5)]
        for collective in (*WRITERS, "all"):
            part = [ratio for row, ratio in ratios.items() if collective in (row.collective, "all")]
            tenths = quantiles(part, n=10)
            beyond = sum(abs(math.log(ratio)) > math.log(1.5) for ratio in part)
            lines.append(
                f"| {gpu} | {collective} | {len(part)} | {median(part):.2f} | {tenths[0]:.2f} to {tenths[-1]:.2f} "
                f"| {min(part):.2f} to {max(part):.2f} | {beyond} |"
            )
    lines += ["", "Beyond 1.5 (measured over predicted):", ""]
    lines += [
        f"- {row.gpu}, {row.collective} of {row.gpus}, {name_size(row.size)}: {row.us:.1f} us, {ratio:.2f}"
        for row, ratio in far
    ]
    return "\n".join(lines)


def tabulate_synthesized(rows: Sequence[Row]) -> str:
    """What einc synthesizes, beside what NCCL takes, on eight GPUs."""
    b200 = GPUS["b200"]
    ports = dict.fromkeys(range(8), b200.links * b200.link_gbs)
    machines = {
        "A100": load_machine("dgx-a100"),
        "H100": load_machine("dgx-h100"),
        "B200": Machine("b200", (b200.site,) * 8, tuple(build_switch("nvswitch", ports)), 4.0, 2.0),
    }
    measured = {(row.gpu, row.collective, row.size): row.us for row in rows if row.gpus == 8}
    lines = [
        "| 8 GPUs | collective | size | NCCL, us | einc, us | bound, us | NCCL over einc |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpu, machine in machines.items():
        for collective in WRITERS:
            for size in SHOWN:
                us, bound_us = find_synthesized(collective, size, machine)
                nccl_us = measured[gpu, collective, size]
                lines.append(
                    f"| {gpu} | {collective} | {name_size(size)} | {nccl_us:.1f} | {us:.1f} | {bound_us:.1f} "
                    f"| {nccl_us / us:.2f} |"
                )
    return "\n".join(lines)


def name_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description="Exchanges against NCCL's measured times.")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = load_rows()
    tables = f"## NCCL's rings in the simulator\n\n{tabulate_replayed(rows)}\n\n"
    tables += f"## What einc synthesizes\n\n{tabulate_synthesized(rows)}"
    print(tables)
    if options.write:
        text = PAGE.read_text("utf-8")
        before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n{tables}\n{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
