"""Runs seeded worlds: `python -m tests.worlds --seeds 1000000`, or `make worlds SEEDS=1000000 TIME=3600`.

`--seeds 123-123` runs the world of seed 123 alone. A finding is printed with the command that replays it, and ends the
run with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.worlds.simulation import Finding
from tests.worlds.worlds import Worlds

MAX_FINDINGS = 10
PROGRESS_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--seeds", default="10000", metavar="COUNT | FIRST-LAST")
    parser.add_argument("--time", type=float, default=3600.0, help="seconds after which no world begins any more")
    options = parser.parse_args()
    first, _, last = options.seeds.rpartition("-")
    seeds = range(int(first), int(last) + 1) if first else range(int(last))
    begin = shown = time.monotonic()
    worlds, met, findings = Worlds(), Counter[str](), 0
    for seed in seeds:
        now = time.monotonic()
        if now - begin > options.time or findings >= MAX_FINDINGS:
            break
        if now - shown > PROGRESS_SECONDS:
            shown = now
            print(f"{sum(met.values()):,} worlds in {now - begin:.0f} s", flush=True)
        try:
            met[worlds.run(seed)] += 1
        except Finding as finding:
            met["a finding"] += 1
            findings += 1
            traceback.print_exc()
            print(f"seed {seed}: {finding}\n    {_find_replay(seed, seeds[0])}", flush=True)
            worlds = Worlds()
    print(", ".join(f"{event} {count:,}" for event, count in sorted(met.items())))
    print(f"{sum(met.values()):,} worlds in {time.monotonic() - begin:.0f} s, {findings} findings")
    return 1 if findings else 0


def _find_replay(seed: int, first: int) -> str:
    """The command that replays a finding, by trying it."""
    try:
        Worlds().run(seed)
    except Finding:
        return f"make worlds SEEDS={seed}-{seed}"
    return f"it takes the worlds before it, too: make worlds SEEDS={first}-{seed}"


if __name__ == "__main__":
    sys.exit(main())
