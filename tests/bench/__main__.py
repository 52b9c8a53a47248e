"""Benchmarks: plans on this machine's cores against JAX, PyTorch, llama.cpp and others, paired and interleaved.

python -m tests.bench                                  everything
python -m tests.bench block2048 chain_a --pairs 15     some cases, more pairs
python -m tests.bench block512 --write                 keeps the results in docs/benchmarks, and makes its pages
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.bench import pages, report, results
from tests.bench.cases import CASES, EINC, EXTRAS, PEER_CASES, SITES, Case
from tests.bench.measure import measure


def main(arguments: list[str] | None = None) -> int:
    every = {case.name: case for case in (*CASES, *PEER_CASES, *SITES, *EXTRAS)}
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(every)}; all by default")
    parser.add_argument("--pairs", type=int, default=9, help="rounds, in each of which every competitor runs once")
    parser.add_argument("--threads", type=int, default=2, help="cores that every competitor is kept on")
    parser.add_argument("--only", metavar="WORD", action="append", help="only competitors whose names begin so")
    parser.add_argument("--all", action="store_true", help="no variant drops out")
    parser.add_argument("--write", action="store_true", help="keep the results in docs/benchmarks, and make its pages")
    parser.add_argument("--lock", type=Path, help="a file that is locked during timed runs, for several at once")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.cases if not any(case.startswith(name) for case in every)]
    if options.write and options.only:
        parser.error("--write keeps results of all competitors, and --only leaves some out")
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(every)}")
    for case in _selected(every, options.cases, options.only):
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(case, options.pairs, options.threads, Path(folder), options.lock, options.all)
        record = results.describe_run(rows, options.pairs)
        print(report.terminal(case, record), flush=True)
        if options.write and len(rows) > 1:
            results.store(case.name, record)
    if options.write:
        pages.main()
    return 0


def _selected(every: dict[str, Case], names: list[str], only: list[str] | None) -> list[Case]:
    """Cases by name, or by how their names begin where no case has the name; einc takes part in any."""
    wanted = {c for name in names for c in every if c == name or (name not in every and c.startswith(name))}
    found = [case for name, case in every.items() if not names or name in wanted]
    if not only:
        return found
    kept = (EINC, *only)
    return [replace(case, competitors=tuple(c for c in case.competitors if c.startswith(kept))) for case in found]


if __name__ == "__main__":
    sys.exit(main())
