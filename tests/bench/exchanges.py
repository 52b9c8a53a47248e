"""How near the exchanges of compiled models come to their bounds, and how long planning them takes.

    python -m tests.bench.exchanges [MACHINE[:WORKLOAD ...] ...] [--latencies]

For every machine and workload: completion over bound (for the placement chosen) as geometric mean and worst, naive over
synthesized, predicted whole plans, and seconds of processor time for the whole compilation. Exchanges whose bound is
zero are left out. Exits 1 where the targets below are missed.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
PRESETS = ("b1x1k", "b1x8k", "b1x128k", "b8x1k", "b128x1k")
CHAINS = ("chain_a", "chain_b", "chain_c", "chain_d", "chain_e")
MACHINES = ("dgx-a100", "dgx-h100", "dgx-v100")
MEAN, WORST = 1.2, 1.6
SECONDS = {"dgx-a100": 5.0, "dgx-h100": 5.0, "dgx-v100": 60.0}
"""Of a LLaMA block."""


def compiled(workload: str, machine: str, schedule: str, ideal: bool):
    """The bundle of a workload, and the seconds that it took."""
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    model = f"{workload}.ein" if (MODELS / f"{workload}.ein").exists() else "llama_block.ein"
    preset = None if model != "llama_block.ein" else workload
    start = time.process_time()
    options = CompileOptions(machine=machine, preset=preset, schedule=schedule, ideal=ideal)
    bundle = compile_model((MODELS / model).read_text(), model, options).bundle
    return bundle, time.process_time() - start


def exchanges_of(bundle) -> list:
    """The exchanges of a bundle that have to move something, with the names of what they serve."""
    named = [(operation.name, operation.exchange) for operation in bundle.operations]
    named += [(f"output {bundle.tensors[output.tensor].name}", output.exchange) for output in bundle.outputs]
    return [(name, exchange) for name, exchange in named if exchange is not None and exchange.bound_ms]


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machines", nargs="*", default=MACHINES)
    parser.add_argument("--latencies", action="store_true", help="with the machines' latencies; bounds leave them out")
    options = parser.parse_args(arguments)
    print(f"{'machine':<13}{'workload':<9}{'exchanges':>10}{'gap mean':>10}{'worst':>7}{'naive/ai':>9}"
          f"{'plan naive':>12}{'plan ai':>10}{'ratio':>7}{'seconds':>9}   worst exchange")  # fmt: skip
    gaps: list[float] = []
    failed = False
    for entry in options.machines:
        machine, _, listed = entry.partition(":")
        for workload in listed.split(",") if listed else (*PRESETS, *CHAINS):
            naive, _ = compiled(workload, machine, "naive", not options.latencies)
            bundle, seconds = compiled(workload, machine, "synthesized", not options.latencies)
            found = exchanges_of(bundle)
            own = {name: exchange.completion_ms / exchange.bound_ms for name, exchange in found}
            gaps += own.values()
            worst = max(own, key=own.get, default="-")
            faster = mean([exchange.naive_ms / exchange.completion_ms for _, exchange in found])
            print(f"{machine:<13}{workload:<9}{len(found):>10}{mean([*own.values()]):>10.3f}{own.get(worst, 1):>7.2f}"
                  f"{faster:>9.2f}{naive.predicted_ms:>12.3f}{bundle.predicted_ms:>10.3f}"
                  f"{naive.predicted_ms / bundle.predicted_ms:>7.2f}{seconds:>9.1f}   {worst}", flush=True)  # fmt: skip
            failed |= any(exchange.completion_ms > exchange.naive_ms * (1 + 1e-9) for _, exchange in found)
            failed |= bundle.predicted_ms > naive.predicted_ms * (1 + 1e-9)
            failed |= workload in PRESETS and seconds > SECONDS.get(machine, math.inf)
    print(f"{len(gaps)} exchanges: geometric mean {mean(gaps):.3f} (target {MEAN}), worst {max(gaps, default=1):.3f} "
          f"(target {WORST})")  # fmt: skip
    if not options.latencies:
        failed |= mean(gaps) > MEAN or max(gaps, default=1) > WORST
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
