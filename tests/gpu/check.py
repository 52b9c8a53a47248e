"""`make gpu-check`: primitives, correctness and speed on this machine's GPU, in nine minutes, without a network.

python tests/gpu                   everything, and docs/gpu-results.md (or: python -m tests.gpu.check)
python tests/gpu --only correctness --no-write
python tests/gpu --rehearse --output page.md      all of the script on a machine without a GPU (`places`)

Needs PyTorch, Triton, cupy, numpy, click; what else is missing may lie in `wheels/` (docs/cuda.md).
Ends with 0 if all that was computed is right, 1 if not or if something is broken that plans need, and 69 where there is
no GPU or a package is missing. The page is written after every result, so that it tells what was reached however the
check ends.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from tests.gpu.facts import facts, missing
from tests.gpu.findings import Findings
from tests.gpu.output import choose_file, read, write
from tests.gpu.places import CPU, GPU, REHEARSE, Place
from tests.gpu.probing import broken, count_gpus, probe_all, without_libraries
from tests.gpu.processes import ROOT, Worker
from tests.gpu.report import page, summary
from tests.gpu.sanitizer import sanitize
from tests.gpu.stages import benchmark_all, check_all, compile_kernels, measure_ceilings, measure_links

RESULTS = ROOT / "docs" / "gpu-results.md"
UNAVAILABLE = 69
LIMIT = 530.0
"""Seconds in all."""
FOR_PROBES, FOR_REHEARSED_PROBES = 20.0, 120.0
FOR_KERNELS, FOR_BENCHMARKS, FOR_LINKS, FOR_SANITIZER = 100.0, 285.0, 20.0, 40.0
"""Of these: at most for the probes and for compiling kernels, kept for benchmarks, at most for links, and kept for the
sanitizer."""
PROBES, CORRECTNESS, BENCHMARKS = "probes", "correctness", "benchmarks"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.check", description="Check einc on the GPU of this machine."
    )
    parser.add_argument("--only", choices=[PROBES, CORRECTNESS, BENCHMARKS], help="beside the probes, which come first")
    parser.add_argument("--no-write", action="store_true", help="write no page")
    parser.add_argument("--output", type=Path, help="the page, instead of docs/gpu-results.md")
    parser.add_argument("--seconds", type=float, default=LIMIT, help=f"that it may take in all ({LIMIT:.0f})")
    parser.add_argument("--devices", help="the GPUs to use, as CUDA_VISIBLE_DEVICES names them; the first is measured")
    parser.add_argument(REHEARSE, action="store_true", help="without a GPU, at small sizes: says nothing of any GPU")
    parser.add_argument("--anew", action="store_true", help="do again what a check that was ended has done")
    chosen = parser.parse_args(arguments)
    if chosen.rehearse and not (chosen.output or chosen.no_write):
        parser.error("a rehearsal needs --output or --no-write")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi numbers them
    if chosen.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen.devices
    place = CPU if chosen.rehearse else GPU
    if place.rehearsal:  # the models are small
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT))
    from einc_runtime.execution.backends import count_visible_gpus

    if not place.rehearsal and not count_visible_gpus():
        print("no GPU is visible here: nothing is checked (the suite, `make test`, covers what needs none)")
        return UNAVAILABLE
    with tempfile.TemporaryDirectory() as folder:
        from tests.gpu.wheels import FOLDER, unpack

        packages = Path(folder) / "packages"
        taken = unpack(FOLDER.glob("*.whl"), packages) if missing(place) else []
        sys.path.append(str(packages))
        invalidate_caches()
        paths = [str(ROOT), os.environ.get("PYTHONPATH"), str(packages)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["EINC_KERNEL_CACHE"] = str(Path(folder) / "kernels")
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        if absent := missing(place):
            print(f"missing here, and in {FOLDER.name}/: {', '.join(absent)}; docs/cuda.md says how to bring them")
            return UNAVAILABLE
        if taken:
            print(f"from {FOLDER.name}/: {', '.join(taken)}")
        output = None if chosen.no_write else choose_file(chosen.output or RESULTS)
        return run(place, chosen.only, output, chosen.seconds, anew=chosen.anew)


def run(place: Place, only: str | None, output: Path | None, limit: float, *, anew: bool = False) -> int:
    """All stages, or the probes and `only` one, within `limit` seconds; the exit code. Unless it begins `anew`, it goes
    on where the check ended that wrote to `output` before."""
    begin, where = perf_counter(), facts()
    earlier = None if anew or output is None else read(output, where)
    if earlier is not None and earlier.rehearsal == place.rehearsal:
        print(
            f"an earlier check ended after {earlier.checked} cases and {earlier.measured} benchmarks: it goes on there"
        )
        findings = earlier
    else:
        findings = Findings(rehearsal=place.rehearsal)

    def save() -> None:
        if output is not None:
            write(output, findings, where, perf_counter() - begin)

    def start(*arguments: str) -> Worker:
        return Worker(*arguments, *place.arguments)

    probe_all(findings, save, start, FOR_REHEARSED_PROBES if place.rehearsal else FOR_PROBES)
    place = replace(place, gpus=count_gpus(findings.probes), broken=frozenset(broken(findings.probes)))
    avoid_libraries(findings)
    for record in findings.probes:
        print(f"{record['probe']}: {record['status']}, {record['detail']}", flush=True)
    if only != PROBES and find_spec("triton") is not None:
        compile_kernels(findings, min(FOR_KERNELS, limit / 5), start)
        print(f"kernels: {findings.kernels}", flush=True)
    if only in (None, CORRECTNESS):
        kept = (FOR_BENCHMARKS + FOR_SANITIZER) * limit / LIMIT if only is None else 0
        check_all(findings, place, begin + limit - kept, save, start)
        print(summary(findings), flush=True)
        if not findings.links:
            measure_links(findings, place, FOR_LINKS, start)
    if only in (None, BENCHMARKS):
        if "bytes" not in findings.ceilings:
            measure_ceilings(findings, start)
        kept = FOR_SANITIZER * limit / LIMIT if only is None else 0
        benchmark_all(findings, begin + limit - kept, save, start)
    if only in (None, CORRECTNESS):
        sanitize(findings, place, begin + limit - perf_counter())
    findings.finished = True
    save()
    raw = output.with_suffix(".json").name if output is not None else ""
    print(page(findings, where, perf_counter() - begin, raw))
    if output is not None:
        print(f"written: {output}, and {raw} beside it")
    return 0 if findings.passed or (only == PROBES and not place.broken) else 1


def avoid_libraries(findings: Findings) -> None:
    """Lets our own kernel compute all attention where the probes say that no library can, or an earlier check did."""
    from einc_runtime.environment import ATTENTION
    from einc_runtime.kernels.cuda.attention_libraries import EINC_KERNEL

    reason = without_libraries(findings.probes)
    if (reason or findings.own_attention) and ATTENTION not in os.environ:
        os.environ[ATTENTION] = EINC_KERNEL
        findings.own_attention = findings.own_attention or f"the beginning ({reason})"


if __name__ == "__main__":
    sys.exit(main())
