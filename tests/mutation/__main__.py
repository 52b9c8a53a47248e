"""The mutation campaign: changed plans must be refused, or compute what the model says.

python -m tests.mutation                                          100,000 mutants: counts, and a recipe for every fault
python -m tests.mutation --mutants 2000 --seed 7 --cases chain llama
python -m tests.mutation --case chain --mutant 'tasks.3.site:one more'      one mutant again
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.mutation.campaign import Counts, judge_one, run_campaign
from tests.mutation.judging import FAULTS
from tests.mutation.plans import CASES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--case", choices=CASES, metavar="CASE", help=f"one of {', '.join(CASES)}")
    parser.add_argument("--mutant", metavar="NAME", help="judge this mutant of --case alone")
    options = parser.parse_args(arguments)
    if options.mutant is not None:
        verdict = judge_one(options.case, options.mutant)
        print(f"{verdict.outcome}: {verdict.reason}")
        return int(verdict.outcome in FAULTS)
    start, counts, told = time.monotonic(), Counts(), 0

    def report(now: Counts) -> None:
        nonlocal counts, told
        counts = now
        for case, name, verdict in counts.faults[told:]:
            reason = verdict.reason.splitlines()[0] if verdict.reason else ""
            print(f"{verdict.outcome}: --case {case} --mutant {name!r}  ({reason[:160]})", flush=True)
        told = len(counts.faults)
        if counts.mutants % 5000 == 0:
            print(f"{counts.mutants:,} mutants after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start what is in the background without it
    try:
        run_campaign(options.mutants, options.seed, options.cases, report)
    except KeyboardInterrupt:
        print("interrupted: the counts are of a part of the mutants", file=sys.stderr)
    print(counts.format())
    print(f"{counts.mutants:,} mutants, {len(counts.faults)} faults, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return int(bool(counts.faults))


if __name__ == "__main__":
    sys.exit(main())
