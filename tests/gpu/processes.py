"""Processes that touch the GPU in place of the check, so that a lost device costs no more than what was running."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 5.0
"""Seconds in which a worker ends that has nothing left to do."""
LAST_WORDS = 0.5
"""Seconds in which one that is ended says where it is."""
LONGEST = 6000
"""Characters of what a lost worker complained of."""


class Worker:
    """A process of `tests.gpu.worker` whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        command = self.command(*arguments)
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._errors, text=True, process_group=0
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "tests" / "gpu"), "worker", *arguments]

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

    def end(self, patience: float | None = None) -> tuple[int, str]:
        """Ends the process, if it has not ended after some seconds (None: PATIENCE); its exit code, and the last of
        what it complained of."""
        try:
            code = self._process.wait(timeout=PATIENCE if patience is None else patience)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)  # it says where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=LAST_WORDS)
            with contextlib.suppress(ProcessLookupError):  # it may just have ended
                os.killpg(self._process.pid, signal.SIGKILL)  # and the compilers that it has started
            code = self._process.wait()
        self._errors.seek(0)
        return code, self._errors.read()[-LONGEST:].strip()


def brief(complaint: str) -> str:
    """The last lines of it in one."""
    return " / ".join(line.strip() for line in complaint.splitlines()[-4:])[-600:]


Start = Callable[..., Worker]
"""Starts a worker with these arguments."""
