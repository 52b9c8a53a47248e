"""The paper's Experiments 1 to 5, predicted: tables, plots and pages in docs/experiments.

    python -m tests.bench.experiments [--experiment N]... [--processes 2] [--draws 20]
        [--schedule synthesized|naive]

What is known already is not compiled again, so an interrupted run goes on where it was. `--render` compiles nothing and
takes the plans from the JSON files. `--draws` other than 20 and `--schedule naive` write nothing into docs: they say
what they would find.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec

from tests.bench.experiments.descriptions import DRAWS, describe_experiments
from tests.bench.experiments.pages import FOLDER, OVERVIEW, fill_overview, read_json, write_files
from tests.bench.experiments.runner import run
from tests.bench.experiments.summaries import summarize


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.experiments", description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", type=int, action="append", choices=range(1, 6), help="all by default")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--draws", type=int, default=DRAWS, help="random plans for each workload")
    parser.add_argument("--render", action="store_true", help="compile nothing: tables, plots and pages of the plans")
    parser.add_argument("--schedule", default="synthesized", choices=("synthesized", "naive"))
    options = parser.parse_args(arguments)
    writes = options.draws == DRAWS and options.schedule == "synthesized"
    if options.render and not writes:
        parser.error("there are JSON files for 20 draws and synthesized exchanges alone")
    if options.draws < 2:
        parser.error("a correlation takes two draws or more")
    if find_spec("matplotlib") is None:  # asked before planning, which takes long
        parser.error("plots need matplotlib: `make experiments` installs it, and runs this command")
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {text}", flush=True)

    chosen = [each for each in describe_experiments(options.draws) if each.number in (options.experiment or range(6))]
    try:
        if options.render:
            found = {}
            for each in chosen:
                found |= read_json((FOLDER / f"{each.name}.json").read_text(encoding="utf-8"))
        else:
            wanted = {
                one: one if options.schedule == "synthesized" else replace(one, schedule="naive")
                for each in chosen
                for one in each.configurations
            }
            order = sorted(wanted.values(), key=lambda one: one.selector == "random")
            outcomes = run(order, options.processes, say)
            found = {one: outcomes[own] for one, own in wanted.items()}
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 130
    for each in chosen:
        print(f"\nExperiment {each.number}: {each.title}")
        own = {one: found[one] for one in each.configurations if one in found}
        summary = summarize(each.number, own)
        print("\n\n".join(table.markdown() for table in summary.tables))
        print("\n" + "\n".join(f"- {finding}" for finding in summary.findings))
        if writes:
            from tests.bench.experiments.plots import draw

            write_files(each, own)
            draw(each.number, own, FOLDER / f"{each.name}.svg")
    if writes:
        if len(chosen) == 5:
            OVERVIEW.write_text(fill_overview(OVERVIEW.read_text(encoding="utf-8"), found), encoding="utf-8")
        say(f"written to {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
