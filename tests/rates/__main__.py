"""Fits the rates of kernels on GPUs to measured times, and says how well they predict shapes that were held out.

    python -m tests.rates [--gpu NAME] [--kind KIND] [--write]

The times are those of the installed package aiconfigurator-core (make .venv/truth). What is fitted
depends on them and on data sheets alone. `--write` writes it to einc/machines/gpus, and, for all GPUs and kinds, the
unit GPU (einc/machines/unit_gpu.json) and docs/truth/kernels.md.
"""

from __future__ import annotations

import argparse
import time
from importlib import metadata
from pathlib import Path

import msgspec
from threadpoolctl import threadpool_limits

from einc.machines.catalogue import load_catalogue, load_unit_gpu
from einc.machines.gpu import GpuRates
from einc.machines.load import list_gpus, load_gpu
from tests.rates.fit import as_committed, fit_rates
from tests.rates.kinds import KINDS
from tests.rates.left_out import SIX, LeftOut, fit_unit_rates, leave_out
from tests.rates.measurements import Measured, find_tables, read_shapes
from tests.rates.page import Result, describe_left_out, describe_result, write_page

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "einc" / "machines"
PAGE = ROOT / "docs" / "truth" / "kernels.md"

SOURCE = "fitted to 80% of the measurements of aiconfigurator-core {} (Apache-2.0): the least time over frameworks"
UNIT_SOURCE = "fitted to the measurements of aiconfigurator-core {} (Apache-2.0) on {}, relative to their data sheets"


def format_rates(gpu: GpuRates) -> str:
    """The text of a GPU's file: compact, as the tables are long, and the same for the same rates."""
    return msgspec.json.encode(gpu).decode() + "\n"


def fit_gpu(name: str, measured: dict[str, Measured]) -> tuple[GpuRates, list[Result]]:
    """The rates of a GPU, fitted for these kinds of kernels, and how good they are."""
    gpu, results = load_gpu(name), []
    for kind, shapes in measured.items():
        began = time.monotonic()
        sheet, field = KINDS[kind].find_sheet(load_catalogue()[name]), KINDS[kind].field
        assert sheet is not None, "what was measured has a peak"
        rates, accuracy = fit_rates(kind, sheet, shapes)
        listed = [before for before in getattr(gpu, field) if before.dtype != sheet.dtype]
        listed.insert(len(listed) * KINDS[kind].has_8_bits, as_committed(rates))  # those of 16 bits come first
        gpu = msgspec.structs.replace(gpu, **{field: tuple(listed)})
        results.append(Result(name, kind, shapes.counts, accuracy))
        print(f"{describe_result(results[-1])}, {time.monotonic() - began:.0f} s", flush=True)
    return gpu, results


def fit_left_out(measured: dict[str, dict[str, Measured]]) -> tuple[GpuRates, list[LeftOut]]:
    """The unit GPU, and how well others predict each GPU."""
    unit, left_out = load_unit_gpu(), []
    for kind in (kind for kind in KINDS if not KINDS[kind].has_8_bits):
        shapes = {name: kinds[kind] for name, kinds in measured.items()}
        rows = []
        for row in leave_out(kind, shapes):
            print(describe_left_out(row), flush=True)
            rows.append(row)
        unit = msgspec.structs.replace(unit, **{kind: (fit_unit_rates(kind, shapes, rows),)})
        left_out += rows
    return unit, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=list_gpus(), help="this GPU only")
    parser.add_argument("--kind", choices=list(KINDS), help="this kind of kernels only")
    parser.add_argument("--write", action="store_true", help="write the rates and the page")
    options = parser.parse_args()
    tables, version = find_tables(), metadata.version("aiconfigurator-core")
    measured: dict[str, dict[str, Measured]] = {}
    results: list[Result] = []
    for name in [options.gpu] if options.gpu else list_gpus():
        kinds = [options.kind] if options.kind else list(KINDS)
        known = [kind for kind in kinds if KINDS[kind].find_sheet(load_catalogue()[name]) is not None]
        measured[name] = {kind: read_shapes(kind, name, tables) for kind in known}
        gpu, fits = fit_gpu(name, measured[name])
        results += fits
        if options.write:
            gpu = msgspec.structs.replace(gpu, source=SOURCE.format(version), peers=load_gpu(name).peers)
            (MACHINES / "gpus" / f"{name}.json").write_text(format_rates(gpu), "utf-8")
    if options.gpu or options.kind:
        return
    unit, left_out = fit_left_out(measured)
    if options.write:
        unit = msgspec.structs.replace(unit, source=UNIT_SOURCE.format(version, ", ".join(SIX)), measured=False)
        (MACHINES / "unit_gpu.json").write_text(format_rates(unit), "utf-8")
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(write_page(results, left_out, version), "utf-8")


if __name__ == "__main__":
    with threadpool_limits(1):  # the same sums wherever this runs, and products so small are fastest so
        main()
