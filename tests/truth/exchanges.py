"""Exchanges against measured collectives: docs/truth/exchanges.md.

    python -m tests.truth.exchanges [--fit] [--render]

plays NCCL's rings in the simulator with fitted parameters, synthesizes exchanges for the same collectives, and writes
both beside the measured times. `--fit` first reads the measured times from the installed package (`make .venv/truth`)
and fits the parameters to them; `--render` computes nothing and writes the page of what is known.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.experiments.pages import put
from tests.truth.fitting import fit_all, read_parameters
from tests.truth.forms import ALL_REDUCE, COLLECTIVES
from tests.truth.nccl import INT8, LARGEST, Measured, pair_repeated, read_file, write_file
from tests.truth.planning import MACHINE_OF
from tests.truth.programs import cut_preamble, write_collective, write_one_shot
from tests.truth.ratios import SPREAD_HEAD, format_table, is_within, name_size, spread
from tests.truth.reasons import explain
from tests.truth.replaying import replay, replay_kernel

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "truth"
PAGE, DATA = FOLDER / "exchanges.md", FOLDER / "exchanges.json"
SYSTEMS = {"a100_sxm": "A100", "h100_sxm": "H100", "b200_sxm": "B200", "l40s": "L40S"}
FAR = 1.5
SIZES = tuple(kib << 10 for kib in (16, 256, 1024, 4096, 16384, 65536, 524288))
RANKS = 8
ITERATIONS = 50


@dataclass(frozen=True, slots=True)
class Replayed:
    """A measured time, and what the simulator says with fitted parameters."""

    table: str
    row: Measured
    us: float

    @property
    def system(self) -> str:
        return self.table.split()[0]

    @property
    def ratio(self) -> float:
        return self.row.us / self.us


@dataclass(frozen=True, slots=True)
class Synthesized:
    """An exchange of eight GPUs that einc makes, and its bound, in microseconds."""

    system: str
    collective: str
    size: int
    us: float
    bound_us: float


def replay_all() -> list[Replayed]:
    """Everything that was measured in 16-bit floats."""
    collectives, kernels = read_parameters()
    found = []
    for table, rows in read_file().items():
        system = table.split()[0]
        for row in (row for row in rows if row.dtype != INT8):
            if table in kernels:
                us = replay_kernel(kernels[table], row.size, row.gpus)
            else:
                us = replay(collectives[system], row.collective, row.size, row.gpus)
            found.append(Replayed(table, row, round(us, 2)))
    return found


def synthesize_all() -> list[Synthesized]:
    """What einc makes of the collectives, on machines with the rates that its machine files say."""
    return [
        synthesize_exchange(system, collective, size)
        for system in SYSTEMS
        for collective in COLLECTIVES
        for size in SIZES
    ]


def synthesize_exchange(system: str, collective: str, size: int) -> Synthesized:
    """An all-reduce may also be that of whole buffers: the faster of the two."""
    from einc.exchange.synthesis import SynthesisOptions, synthesize
    from einc.machines.load import load_machine
    from tests.support.preambles import read_preamble

    machine = load_machine(MACHINE_OF[system]).restrict(range(RANKS))
    texts = [write_collective(collective, RANKS, size)]
    if collective == ALL_REDUCE:
        texts.append(write_one_shot(RANKS, size))
    found = []
    for text in texts:
        preamble = read_preamble(cut_preamble(text), f"{collective}.exprog", machine)
        found.append(synthesize(preamble, machine, SynthesisOptions(iterations=ITERATIONS)))
    best = min(found, key=lambda each: each.completion_ms)
    bound_ms = min(each.bound.bound_ms or 0.0 for each in found)
    return Synthesized(system, collective, size, round(best.completion_ms * 1e3, 2), round(bound_ms * 1e3, 2))


def write_data(replayed: Sequence[Replayed], synthesized: Sequence[Synthesized]) -> None:
    played = [[r.table, r.row.collective, r.row.gpus, r.row.size, r.row.us, r.us] for r in replayed]
    made = [[s.system, s.collective, s.size, s.us, s.bound_us] for s in synthesized]
    parts = {"replayed": played, "synthesized": made}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in parts.items())
    DATA.write_text("{" + text + "}\n", encoding="utf-8")


def read_data() -> tuple[list[Replayed], list[Synthesized]]:
    document: dict[str, list[list[Any]]] = json.loads(DATA.read_text(encoding="utf-8"))
    replayed = [
        Replayed(table, Measured(collective, "half", gpus, size, us), played)
        for table, collective, gpus, size, us, played in document["replayed"]
    ]
    return replayed, [Synthesized(*row) for row in document["synthesized"]]


def tabulate_replayed(replayed: Sequence[Replayed]) -> str:
    """NCCL's collectives by system, collective and number of GPUs."""
    rows = []
    for system, title in SYSTEMS.items():
        mine = [r for r in replayed if r.table.startswith(f"{system} nccl")]
        for collective in COLLECTIVES:
            for gpus in (2, 4, 8):
                some = [r.ratio for r in mine if (r.row.collective, r.row.gpus) == (collective, gpus)]
                rows.append([title, f"{collective}, {gpus}", *spread(some).cells()])
        rows.append([f"**{title}**", "all", *spread(r.ratio for r in mine).cells()])
        held_out = [r.ratio for r in mine if r.row.is_held_out]
        rows.append([f"**{title}**", "held out of the fit", *spread(held_out).cells()])
    return format_table(("GPU", "collective, GPUs", *SPREAD_HEAD), rows, 2)


def tabulate_sizes(replayed: Sequence[Replayed]) -> str:
    """The same by the size of the buffer."""
    steps = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20, LARGEST + 1]
    rows = []
    for low, high in itertools.pairwise(steps):
        end = "512 MiB" if high > LARGEST else f"below {name_size(high)}"
        cells = []
        for system in SYSTEMS:
            some = [r.ratio for r in replayed if r.table.startswith(f"{system} nccl") and low <= r.row.size < high]
            found = spread(some)
            cells.append(f"{found.middle:.2f} ({found.low:.2f} to {found.high:.2f})")
        rows.append([f"{name_size(low)} to {end}", *cells])
    return format_table(("size", *(f"{title}: median (10% to 90%)" for title in SYSTEMS.values())), rows)


def tabulate_kernels(replayed: Sequence[Replayed]) -> str:
    """All-reduces of frameworks in one kernel."""
    tables = list(dict.fromkeys(r.table for r in replayed if " nccl " not in r.table))
    rows = [[_title(table), *spread(r.ratio for r in replayed if r.table == table).cells()] for table in tables]
    return format_table(("GPU, framework", *SPREAD_HEAD), rows)


def tabulate_repeated() -> str:
    """How far two measurements of one shape are apart, which no model can beat."""
    rows = []
    for system, title in SYSTEMS.items():
        measured = next(rows for table, rows in read_file().items() if table.startswith(f"{system} nccl"))
        pairs = pair_repeated(measured)
        for name, chosen in (("2 and 4", (2, 4)), ("8", (8,))):
            ratios = [row.us / again.us for row, again in pairs if row.gpus in chosen]
            rows.append([title, name, *spread(ratios).cells()])
    head = ("GPU", "GPUs", "shapes", "halves / bytes: median", "10% to 90%", "extremes")
    return format_table(head, rows, 2)


def tabulate_far(replayed: Sequence[Replayed]) -> str:
    """Every time that is far away, with the reason."""
    rows = [
        [_title(r.table), f"{r.row.collective}, {r.row.gpus}", name_size(r.row.size), f"{r.row.us:g}", f"{r.us:g}",
         f"{r.ratio:.2f}", explain(r.table, r.row) or "**not known**"]
        for r in list_far(replayed)
    ]  # fmt: skip
    head = ("GPU, software", "collective, GPUs", "size", "measured us", "simulated us", "ratio", "why")
    return format_table(head, rows, 2)


def list_far(replayed: Sequence[Replayed]) -> list[Replayed]:
    return [r for r in replayed if not is_within(r.ratio, FAR)]


def tabulate_parameters() -> str:
    """The fitted parameters of the protocols."""
    collectives, _ = read_parameters()
    rows = []
    for system, title in SYSTEMS.items():
        model = collectives[system]
        rows += [
            [title, name, f"{p.start_us:.1f}", f"{p.hop_us:.2f}", f"{p.gbs:.1f}", f"{p.copy_gbs:.0f}"]
            for name, p in model.protocols.items()
        ]
        if model.switch:
            rows.append([title, "NVLS", f"{model.switch.start_us:.1f}", "", f"{model.switch.gbs:.1f}", ""])
    return format_table(("GPU", "protocol", "start us", "hop us", "GB/s", "copy GB/s"), rows, 2)


def tabulate_synthesized(synthesized: Sequence[Synthesized], system: str) -> str:
    """What einc makes beside what NCCL, and the fastest kernel of a framework in a graph, were measured to take."""
    tables = read_file()
    nccl = _times_of_eight(next(rows for table, rows in tables.items() if table.startswith(f"{system} nccl")))
    in_graphs = (f"{system} vllm", f"{system} sglang")
    kernels = [_times_of_eight(rows) for table, rows in tables.items() if table.startswith(in_graphs)]
    rows = []
    for made in (each for each in synthesized if each.system == system):
        measured = nccl[made.collective, made.size]
        others = [times[key] for times in kernels if (key := (made.collective, made.size)) in times]
        rows.append(
            [made.collective, name_size(made.size), f"{measured:.1f}", f"{made.us:.1f}", f"{made.bound_us:.1f}",
             f"{measured / made.us:.2f}", f"{min(others):.1f}" if others else ""]
        )  # fmt: skip
    head = ("collective", "size", "NCCL, measured", "einc, predicted", "its bound", "NCCL / einc", "one kernel")
    return format_table(head, rows, 1)


def fill_page(page: str) -> str:
    """The page with the tables of what is known between its marks."""
    replayed, synthesized = read_data()
    page = put(page, "replayed", tabulate_replayed(replayed))
    page = put(page, "sizes", tabulate_sizes(replayed))
    page = put(page, "kernels", tabulate_kernels(replayed))
    page = put(page, "repeated", tabulate_repeated())
    page = put(page, "far", tabulate_far(replayed))
    page = put(page, "parameters", tabulate_parameters())
    for system in SYSTEMS:
        page = put(page, f"synthesized {system}", tabulate_synthesized(synthesized, system))
    return page


def _times_of_eight(rows: Sequence[Measured]) -> dict[tuple[str, int], float]:
    return {(row.collective, row.size): row.us for row in rows if row.gpus == RANKS and row.dtype != INT8}


def _title(table: str) -> str:
    system, framework, version = table.split()
    names = {"nccl": "NCCL", "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    return f"{SYSTEMS[system]}, {names[framework]} {version}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth.exchanges")
    parser.add_argument("--fit", action="store_true", help="fit the parameters to the tables of the installed package")
    parser.add_argument("--render", action="store_true", help="compute nothing, write the page of what is known")
    options = parser.parse_args(arguments)
    if options.fit:
        write_file()
        fit_all()
    if not options.render:
        write_data(replay_all(), synthesize_all())
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
