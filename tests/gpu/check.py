"""`make gpu-check`: correctness and speed on whatever GPU is here, in under nine minutes, without a network.

python tests/gpu                   everything, and docs/gpu-results.md (or: python -m tests.gpu.check)
python tests/gpu --only correctness --no-write

Needs PyTorch, Triton, cupy, numpy, msgpack, click, rich; what else is missing may lie in `wheels/` (docs/cuda.md).
Ends with 0 if all that was computed is right, 1 if not, and 69 where there is no GPU or a package is missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from tests.gpu.report import Findings, page, summary

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "gpu-results.md"
UNAVAILABLE = 69
LIMIT = 530.0
FOR_BENCHMARKS = 290.0
"""Seconds in all, and how many of them are kept for benchmarks."""
CASE_LIMIT, BENCHMARK_LIMIT = 90.0, 150.0

NEEDED = (
    "click", "cupy", "lap", "lark", "ml_dtypes", "msgpack", "msgspec", "numpy", "rich", "safetensors", "threadpoolctl",
    "torch", "triton",
)  # fmt: skip


class Worker:
    """A process of `tests.gpu.worker` whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(ROOT / "tests" / "gpu"), "worker", *arguments]
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
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
        """Ends the process, if it has not ended; its exit code, and the last lines of what it complained of."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        return code, " / ".join(line.strip() for line in self._errors.read().splitlines()[-4:])[-600:]


def check_all(findings: Findings, deadline: float, start: type[Worker] = Worker) -> None:
    """Runs the cases of correctness, with a new worker after every one that was lost, until the deadline."""
    from tests.gpu.cases import CASES
    from tests.gpu.worker import runs

    titles = [f"{CASES[number].title} on {sites} sites" for number, sites in runs()]
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
        except TimeoutError:
            why = "no answer in time"
        code, complaint = worker.end()
        if perf_counter() >= deadline:
            break
        if position < len(titles) and position <= running:
            findings.lost.append(f"{titles[running]}: {why or f'exit code {code}, {complaint}'}")
            position = running + 1
    findings.left += titles[position:]


def benchmark_all(findings: Findings, deadline: float, start: type[Worker] = Worker) -> None:
    from tests.gpu.cases import BENCHMARKS

    for benchmark in BENCHMARKS:
        left = deadline - perf_counter()
        if left < 20:
            findings.left.append(benchmark.title)
            continue
        worker = start("benchmark", benchmark.name)
        why = ""
        try:
            record = worker.record(min(BENCHMARK_LIMIT, left))
        except TimeoutError:
            record, why = None, "no answer in time"
        code, complaint = worker.end()
        if record is None:
            findings.lost.append(f"{benchmark.title}: {why or f'exit code {code}, {complaint}'}")
        else:
            findings.benchmarks.append(record)
            print(f"  {benchmark.title}: {record['ms']}", flush=True)


def missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]


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
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "GPU, memory, driver": said(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
        ),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {number}" for name, number in packages.items()),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.check", description="Check einc on the GPU of this machine."
    )
    parser.add_argument("--only", choices=["correctness", "benchmarks"])
    parser.add_argument("--no-write", action="store_true", help="leave docs/gpu-results.md as it is")
    chosen = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    from runtime.executors.cuda_visible import gpus_visible

    if not gpus_visible():
        print("no GPU is visible here: nothing is checked (the suite, `make test`, covers what needs none)")
        return UNAVAILABLE
    with tempfile.TemporaryDirectory() as folder:
        from tests.gpu.wheels import FOLDER, unpack

        taken = unpack(FOLDER.glob("*.whl"), Path(folder)) if missing() else []
        sys.path.append(folder)
        invalidate_caches()
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH"), folder]))
        if absent := missing():
            print(f"missing here, and in {FOLDER.name}/: {', '.join(absent)}; docs/cuda.md says how to bring them")
            return UNAVAILABLE
        if taken:
            print(f"from {FOLDER.name}/: {', '.join(taken)}")
        return _run(chosen.only, write=not chosen.no_write)


def _run(only: str | None, *, write: bool) -> int:
    begin = perf_counter()
    findings = Findings()
    if only != "benchmarks":
        check_all(findings, begin + LIMIT - (FOR_BENCHMARKS if only is None else 0))
        print(summary(findings), flush=True)
    if only != "correctness":
        benchmark_all(findings, begin + LIMIT)
    text = page(findings, facts(), perf_counter() - begin)
    print(text)
    if write:
        RESULTS.write_text(text)
    return 0 if findings.passed else 1


if __name__ == "__main__":
    sys.exit(main())
