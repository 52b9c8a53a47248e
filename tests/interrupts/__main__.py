"""Interrupts at random moments of every command: exit code 130, no traceback, no file and no process left.

python -m tests.interrupts                                    500 of each command: a line for each, and one for a fault
python -m tests.interrupts --count 50 --seed 7 --commands compile run
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.interrupts.harness import COMMANDS, interrupt, prepare


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="COMMAND")
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for command in options.commands:
            tally = interrupt(folder, command, options.count, options.seed)
            total += tally.outcomes
            faults += len(tally.faults)
            print(f"{command:26} {_format(tally.outcomes)}", *tally.faults, sep="\n    ", flush=True)
    print(f"{'together':26} {_format(total)}; {faults} faults")
    return int(faults > 0)


def _format(outcomes: Counter[str]) -> str:
    return ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))


if __name__ == "__main__":
    sys.exit(main())
