"""One small case under compute-sanitizer, where it is installed: accesses out of bounds, which results may not show."""

from __future__ import annotations

import os
import signal
import subprocess
from shutil import which

from tests.gpu.findings import Findings
from tests.gpu.layouts import Layout
from tests.gpu.places import Place
from tests.gpu.processes import Worker

TOOL = "compute-sanitizer"
FOUND = 86
"""The exit code that it is told to give for errors."""
LIMIT, LEAST = 60.0, 15.0
"""Seconds that it may take, and without which it is not begun."""
CASE = "llama_block odd f32", 4
"""The case, and its number of sites."""


def sanitize(findings: Findings, place: Place, seconds: float) -> None:
    """Runs the case, and says what came of it. Errors that it finds fail the check; not being able to run does not."""
    tool = which(TOOL)
    if tool is None:
        findings.sanitizer = {"status": "absent", "detail": f"{TOOL} is not here"}
        return
    if seconds < LEAST:
        findings.sanitizer = {"status": "unknown", "detail": "there was no time for it"}
        return
    runs = place.runs()
    wanted = next(
        number for number, run in enumerate(runs)
        if run.case.title == CASE[0] and run.layout is Layout.ONE and run.sites in (CASE[1], run.case.sites[-1])
    )  # fmt: skip
    command = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND), "--target-processes", "all",
               *Worker.command("correctness", str(wanted), str(wanted + 1), *place.arguments)]  # fmt: skip
    done = _run(command, min(seconds, LIMIT))
    if done is None:
        findings.sanitizer = {"status": "unknown", "detail": "no answer in time"}
        return
    code, told = done
    title, ran = runs[wanted].title, '"position": ' in told
    errors = [line.strip("= \n") for line in told.splitlines() if line.startswith("=========")]
    if code == FOUND:
        detail = f"{title}: {' / '.join(errors[:6])}"[:600]
        findings.sanitizer = {"status": "failed", "detail": detail}
        findings.complaints[f"{title}, under {TOOL}"] = told[-6000:]
    elif ran and not code:
        findings.sanitizer = {"status": "ok", "detail": f"{title}: {errors[-1] if errors else 'no errors'}"}
    else:
        last = " / ".join((errors or told.splitlines())[-3:])
        detail = f"it could not run {title}: exit code {code}, {last}"[:600]
        findings.sanitizer = {"status": "unknown", "detail": detail}


def _run(command: list[str], seconds: float) -> tuple[int, str] | None:
    """The exit code and what was printed; None where there was no end in time. Nothing of it goes on running."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )  # fmt: skip
    try:
        told, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return process.returncode, told.strip()
