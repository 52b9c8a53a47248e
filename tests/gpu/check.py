"""`make gpu-check`: correctness and speed on whatever GPU is here, in under nine minutes, without a network.

python tests/gpu                   everything, and docs/gpu-results.md (or: python -m tests.gpu.check)
python tests/gpu --only correctness --no-write
python tests/gpu --rehearse --output page.md      all of the script on a machine without a GPU (`places`)

Needs PyTorch, Triton, cupy, numpy, click; what else is missing may lie in `wheels/` (docs/cuda.md).
Ends with 0 if all that was computed is right, 1 if not, and 69 where there is no GPU or a package is missing. The page
is written after every result, so that it tells what was reached however the check ends.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from tests.gpu.places import CPU, GPU, REHEARSE, Place
from tests.gpu.report import Findings, page, summary

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "gpu-results.md"
UNAVAILABLE = 69
LIMIT = 530.0
"""Seconds in all."""
FOR_KERNELS, FOR_BENCHMARKS = 100.0, 290.0
"""Of these: at most for compiling kernels, and kept for benchmarks."""
CASE_LIMIT, BENCHMARK_LIMIT = 90.0, 150.0
ENOUGH = 20.0
"""Seconds without which no benchmark is begun."""
PATIENCE = 5.0
"""Seconds in which a worker ends that has nothing left to do."""
LONGEST = 6000
"""Characters of what a lost worker complained of."""

NEEDED = (
    "click", "cupy", "lap", "lark", "ml_dtypes", "msgspec", "numpy", "threadpoolctl", "torch", "triton",
)  # fmt: skip
FOR_GPUS = ("cupy", "triton")
"""A rehearsal does without them."""

Save = Callable[[], None]


class Worker:
    """A process of `tests.gpu.worker` whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(ROOT / "tests" / "gpu"), "worker", *arguments]
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._errors, text=True, process_group=0
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                self._lines.put(line)
        self._lines.put(None)

    def record(self, seconds: float) -> dict[str, Any] | None:
        """The next record; None where the worker has ended. Raises TimeoutError."""
        try:
            line = self._lines.get(timeout=max(0.1, seconds))
        except queue.Empty:
            raise TimeoutError from None
        return None if line is None else json.loads(line)

    def end(self) -> tuple[int, str]:
        """Ends the process, if it has not ended; its exit code, and the last of what it complained of."""
        try:
            code = self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)  # it says where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
            os.killpg(self._process.pid, signal.SIGKILL)  # and the compilers that it has started
            code = self._process.wait()
        self._errors.seek(0)
        return code, self._errors.read()[-LONGEST:].strip()


def brief(complaint: str) -> str:
    """The last lines of it in one."""
    return " / ".join(line.strip() for line in complaint.splitlines()[-4:])[-600:]


Start = Callable[..., Worker]
"""Starts a worker with these arguments."""


def compile_kernels(findings: Findings, seconds: float, start: Start = Worker) -> None:
    """What is not compiled here is compiled when it is needed."""
    worker = start("kernels", f"{seconds:.0f}")
    try:
        record = worker.record(seconds + 30)
    except TimeoutError:
        record = None
    code, complaint = worker.end()
    findings.kernels = record or {"problem": f"exit code {code}, {brief(complaint)}"}


def check_all(findings: Findings, place: Place, deadline: float, save: Save, start: Start = Worker) -> None:
    """Runs the cases of correctness, with a new worker after every one that was lost, until the deadline.

    After one was lost in which a library may have computed attention, our own kernel computes it everywhere.
    """
    from einc_runtime.kernels.cuda.attention_libraries import ENVIRONMENT, OWN
    from tests.gpu.cases import CASES

    runs = place.runs()
    titles = [f"{CASES[number].title} on {sites} sites" for number, sites in runs]
    position = 0
    while position < len(titles):
        worker, running = start("correctness", str(position)), position
        why = ""
        try:
            while (record := worker.record(min(CASE_LIMIT, deadline - perf_counter()))) is not None:
                if "start" in record:
                    running = record["start"]
                else:
                    findings.checks.append(record)
                    position = record["position"] + 1
                    save()
        except TimeoutError:
            why = "no answer in time"
        code, complaint = worker.end()
        if perf_counter() >= deadline:
            break
        ended = position <= running or bool(findings.checks and code and findings.checks[-1]["problem"])
        if ended and CASES[runs[running][0]].uses_libraries and ENVIRONMENT not in os.environ:
            os.environ[ENVIRONMENT] = OWN  # the fault may be a library's, and would cost all other cases
            findings.own_attention = titles[running]
        if position < len(titles) and position <= running:
            findings.lost.append(f"{titles[running]}: {why or f'exit code {code}, {brief(complaint)}'}")
            findings.complaints[titles[running]] = complaint
            position = running + 1
    findings.left += titles[position:]


def benchmark_all(findings: Findings, deadline: float, save: Save, start: Start = Worker) -> None:
    """Runs the benchmarks likewise; of one that is lost, what it had found before that counts."""
    from tests.gpu.cases import BENCHMARKS

    titles = [benchmark.title for benchmark in BENCHMARKS]
    position = 0
    while position < len(titles) and deadline - perf_counter() > ENOUGH:
        left = deadline - perf_counter()
        worker, running, begun = (
            start("benchmarks", str(position), f"{left - ENOUGH / 2:.0f}"),
            position,
            perf_counter(),
        )
        why = ""
        try:
            while (record := worker.record(min(begun + BENCHMARK_LIMIT, deadline) - perf_counter())) is not None:
                if "start" in record:
                    running, begun = record["start"], perf_counter()
                    continue
                findings.take(record)
                save()
                if record["complete"] and position <= record["position"]:
                    position = record["position"] + 1
                    print(f"  {titles[record['position']]}: {record['ms']}", flush=True)
        except TimeoutError:
            why = "no answer in time"
        code, complaint = worker.end()
        if position <= running:
            if why:
                findings.broken.append(f"{titles[running]}: {why}")
            else:
                findings.lost.append(f"{titles[running]}: exit code {code}, {brief(complaint)}")
            position = running + 1
        if why or code:  # also after all was measured
            findings.complaints[titles[running]] = complaint
    findings.left += titles[position:]


def missing(place: Place = GPU) -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None and not (place.rehearsal and name in FOR_GPUS)]


def facts() -> dict[str, str]:
    """Where the check ran."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(*names: str) -> str:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "none"

    def said(*command: str) -> str:
        try:
            found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
        return found.splitlines()[0] if found else "unknown"

    packages = {
        "torch": installed("torch"),
        "triton": installed("triton"),
        "cupy": installed("cupy-cuda12x", "cupy-cuda13x", "cupy"),
        "jax": installed("jax"),
        "flash-attn": installed("flash-attn"),
        "numpy": installed("numpy"),
        "cuBLAS": installed("nvidia-cublas", "nvidia-cublas-cu12"),
        "cuDNN": installed("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "GPU, memory, driver": said(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
        ),
        "power limit, highest clocks, MIG": said(
            "nvidia-smi",
            "--query-gpu=power.limit,clocks.max.sm,clocks.max.mem,mig.mode.current",
            "--format=csv,noheader",
        ),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {number}" for name, number in packages.items()),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.check", description="Check einc on the GPU of this machine."
    )
    parser.add_argument("--only", choices=["correctness", "benchmarks"])
    parser.add_argument("--no-write", action="store_true", help="write no page")
    parser.add_argument("--output", type=Path, help="the page, instead of docs/gpu-results.md")
    parser.add_argument("--seconds", type=float, default=LIMIT, help=f"that it may take in all ({LIMIT:.0f})")
    parser.add_argument(REHEARSE, action="store_true", help="without a GPU, at small sizes: says nothing of any GPU")
    chosen = parser.parse_args(arguments)
    if chosen.rehearse and not (chosen.output or chosen.no_write):
        parser.error("a rehearsal needs --output or --no-write")
    place = CPU if chosen.rehearse else GPU
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
        return _run(place, chosen.only, None if chosen.no_write else chosen.output or RESULTS, chosen.seconds)


def _run(place: Place, only: str | None, output: Path | None, limit: float) -> int:
    begin = perf_counter()
    findings, where = Findings(rehearsal=place.rehearsal), facts()

    def save() -> None:
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(page(findings, where, perf_counter() - begin))

    def start(*arguments: str) -> Worker:
        return Worker(*arguments, *([REHEARSE] if place.rehearsal else []))

    if find_spec("triton") is not None:
        compile_kernels(findings, min(FOR_KERNELS, limit / 5), start)
        print(f"kernels: {findings.kernels}", flush=True)
    if only != "benchmarks":
        kept = FOR_BENCHMARKS * limit / LIMIT if only is None else 0
        check_all(findings, place, begin + limit - kept, save, start)
        print(summary(findings), flush=True)
    if only != "correctness":
        benchmark_all(findings, begin + limit, save, start)
    findings.finished = True
    save()
    print(page(findings, where, perf_counter() - begin))
    return 0 if findings.passed else 1


if __name__ == "__main__":
    sys.exit(main())
