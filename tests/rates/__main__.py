"""Fits the rates of kernels on GPUs to measured times, and says how well they predict shapes that were held out.

    python -m tests.rates [--gpu NAME] [--kind KIND] [--check] [--write]

The times are those of the installed package aiconfigurator-core (make .venv/truth). Without `--check`, rates are
fitted, from those that come with einc on. With it, these are looked at as they are. `--write` writes rates that were
fitted to einc/machines/gpus, and, for all GPUs and kinds, docs/truth/kernels.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from importlib import metadata
from pathlib import Path

import msgspec

from einc.machines.datasheets import find_datasheet
from einc.machines.gpu import GpuRates
from einc.machines.load import list_gpus, load_gpu
from tests.rates.fit import as_committed, check_rates, fit_rates
from tests.rates.kinds import KINDS
from tests.rates.left_out import describe, leave_out
from tests.rates.measurements import Measured, find_tables, read_shapes
from tests.rates.page import Result, describe_result, write_page

ROOT = Path(__file__).parents[2]
GPUS = ROOT / "einc" / "machines" / "gpus"
PAGE = ROOT / "docs" / "truth" / "kernels.md"

SOURCE = "fitted to 80% of the measurements of aiconfigurator-core {} (Apache-2.0): the least time over frameworks"


def format_rates(gpu: GpuRates) -> str:
    """The text of a GPU's file: compact, as the tables are long, and the same for the same rates."""
    return msgspec.json.encode(gpu).decode() + "\n"


def run(gpu: GpuRates, name: str, kind: str, measured: Measured, *, check: bool) -> tuple[GpuRates, Result]:
    """One kind of kernels of one GPU: its rates as they are, or fitted, and how good they are."""
    (start,), sheet = getattr(gpu, kind), find_datasheet(name)
    if check:
        return gpu, Result(name, kind, measured.counts, check_rates(kind, sheet, start, measured))
    rates, accuracy = fit_rates(kind, sheet, start, measured)
    return msgspec.structs.replace(gpu, **{kind: (as_committed(rates),)}), Result(name, kind, measured.counts, accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=list_gpus(), help="this GPU only")
    parser.add_argument("--kind", choices=list(KINDS), help="this kind of kernels only")
    parser.add_argument("--check", action="store_true", help="look at the rates that come with einc, without a fit")
    parser.add_argument("--write", action="store_true", help="write the rates and the page")
    asked = parser.parse_args()
    names = [asked.gpu] if asked.gpu else list_gpus()
    tables, version = find_tables(), metadata.version("aiconfigurator-core")
    results: list[Result] = []
    products: dict[str, Measured] = {}
    for name in names:
        gpu = load_gpu(name)
        for kind in [asked.kind] if asked.kind else KINDS:
            began = time.monotonic()
            measured = read_shapes(kind, name, tables)
            if kind == "products":
                products[name] = measured
            gpu, result = run(gpu, name, kind, measured, check=asked.check)
            results.append(result)
            print(f"{describe_result(result)}, {time.monotonic() - began:.0f} s", flush=True)
        if asked.write and not asked.check:
            gpu = msgspec.structs.replace(gpu, source=SOURCE.format(version))
            (GPUS / f"{name}.json").write_text(format_rates(gpu), "utf-8")
    if not (asked.gpu or asked.kind):
        left_out, relative = leave_out(products)
        for row in left_out:
            print(row.gpu, "without", *row.without, dataclasses.astuple(row.accuracy))
        print("relative to data sheets, fitted to all six:", describe(relative))
        if asked.write:
            PAGE.parent.mkdir(exist_ok=True)
            PAGE.write_text(write_page(results, left_out, version), "utf-8")


if __name__ == "__main__":
    main()
