"""A server in a process of its own, and what is seen of it from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "models" / "stories"
WAIT = 300.0
"""Seconds after which what is waited for has failed."""


class Running:
    """`einc serve` in a process, to which the words `before` lead; `url` ends with /v1."""

    def __init__(self, folder: Path, *options: object, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "einc", "serve", str(folder), "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(WAIT)
        found = re.search(r"einc: serving (\S+) at (http://127\.0\.0\.1:(\d+)/v1), up to", "\n".join(self.lines))
        assert found is not None, self.lines
        self.model, self.url, self.port = found[1], found[2], int(found[3])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith("einc: serving"):
                self._started.set()
        self._started.set()

    def get(self, path: str) -> tuple[int, str]:
        """The status and the text of a page."""
        try:
            with urllib.request.urlopen(self.url.removesuffix("/v1") + path, timeout=WAIT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """The samples of `/metrics`."""
        lines = self.get("/metrics")[1].splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def resident(self) -> int:
        """Bytes of memory that the process has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def end(self, number: int) -> int:
        """Sends a signal, and waits for the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, when the process has ended and all that it said is read."""
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return code


@contextmanager
def serving(folder: Path, *options: object, before: Sequence[str] = ()) -> Iterator[Running]:
    """A server, which is killed if it has not ended by itself."""
    server = Running(folder, *options, before=before)
    try:
        yield server
    finally:
        server.process.kill()
        server.wait()


def curl(url: str, *options: str, data: object = None, file: Path | None = None) -> tuple[int, str]:
    """The status and the text of what curl gets; `data` is sent as JSON, a file as it is."""
    body = [] if data is None else ["--data", json.dumps(data)]
    body += [] if file is None else ["--data-binary", f"@{file}"]
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--write-out", "\n%{http_code}", *options, *body, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text
