"""How long the simulator takes for programs of some 500 actions on eight sites.

    python -m tests.bench.simulator

Milliseconds of processor time, the least of several runs. Exits 1 where a program takes more than MAX_MS.
"""

from __future__ import annotations

import sys
import time

from einc.exchange.simulation.simulator import BodyEvaluator
from einc.machines.load import load_machine
from tests.support.exchange_bodies import long_random_body, pipelined_rings

MAX_MS = 20.0
RUNS = 15


def main() -> int:
    missed = False
    print(f"{'machine':<10}{'program':<18}{'actions':>8}{'ms':>8}")
    for preset in ("dgx-v100", "dgx-a100", "dgx-h100"):
        machine = load_machine(preset).ideal()
        for make in (pipelined_rings, long_random_body):
            program = make(machine)
            evaluator = BodyEvaluator(program, machine)
            taken = []
            for _ in range(RUNS):
                before = time.process_time()
                evaluator.completion(program.actions)
                taken.append((time.process_time() - before) * 1e3)
            missed |= min(taken) > MAX_MS
            print(f"{preset:<10}{make.__name__:<18}{len(program.actions):>8}{min(taken):>8.1f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
