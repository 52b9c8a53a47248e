"""Executes exchange programs on sites that talk over sockets, and measures when every action started and ended.

The coordinator gives each site its share of the program, tells sites which awaited actions have ended, and collects the
events. Its messages do not cross the links that are measured.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from einc.exchange.language.checker import check
from einc.exchange.language.closure import index_waits
from einc.exchange.language.program import Program, collect_atom_sizes, list_targets

from .site_process import Site

ROOT = Path(__file__).resolve().parents[2]

LEAD = 0.1
"""Seconds between the command to begin and the beginning."""

FlowAddress = Callable[[int, int], tuple[str, int, int]]
"""For (source, destination): the address and port to connect to, and the port to connect from, 0 for any."""


class ExecutionError(Exception):
    """A site failed, a program did not end in time, or what arrived was wrong."""


@dataclass(slots=True)
class Run:
    """What was measured of one action, in milliseconds from the beginning; `parts` is how many it combined."""

    start: float = 0.0
    parts: int = 0
    formed: float = 0.0
    arrivals: dict[int, float] = field(default_factory=dict)
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole execution: one run per action, in the program's order."""

    completion_ms: float
    runs: tuple[Run, ...]


class Executor:
    """Sites that were started, each with a stream of commands and one of reports."""

    def __init__(self, streams: Sequence[tuple[IO[str], IO[str]]], address: FlowAddress) -> None:
        self.streams = streams
        self.address = address
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        for number, (_, reports) in enumerate(streams):
            threading.Thread(target=self._listen, args=(number, reports), daemon=True).start()

    def listen(self, port: int = 0) -> list[int]:
        """Let all sites listen; returns their ports."""
        return [reply for (reply,) in self._ask([("listen", "", port)] * len(self.streams), "listening", 20)]

    def execute(self, program: Program, seconds: float = 60.0) -> Measured:
        """Run a valid program and compare its results with the expected ones. Raises ExecutionError."""
        faults = check(program).faults
        if faults:
            raise ExecutionError(faults[0].message)
        shares = self._shares(program)
        self._ask([("prepare", share) for share in shares], "ready", 30)
        measured = self._run(program, seconds)
        required: list[list[tuple[str, ...]]] = [[] for _ in self.streams]
        for requirement in program.requirements:
            for site in list_targets(program, requirement):
                required[site].append(requirement.aggregate)
        for site, (wrong,) in enumerate(self._ask([("verify", some) for some in required], "verified", 60)):
            if wrong:
                raise ExecutionError(f"site {site} has a wrong {wrong[0]}")
        return measured

    def _run(self, program: Program, seconds: float) -> Measured:
        runs = [Run() for _ in program.actions]
        _, waiters = index_waits(program)
        begin = time.monotonic() + LEAD
        for number in range(len(self.streams)):
            self._tell(number, "go", begin)
        missing = {position: 1 + len(action.destinations) for position, action in enumerate(program.actions)}
        deadline = begin + seconds
        while missing:
            site, kind, *what = self._next(deadline, f"{len(missing)} actions have not ended")
            position, when = what[0], (what[1] - begin) * 1e3
            run = runs[position]
            if kind == "started":
                run.start, run.parts = when, what[2]
                continue
            if kind == "formed":
                run.formed = when
            else:
                run.arrivals[site] = when
            run.end = max(run.end, when)
            missing[position] -= 1
            if not missing[position]:
                del missing[position]
                for waiter in waiters.get(position, ()):
                    self._tell(program.actions[waiter].source, "ended", waiter)
        return Measured(max((run.end for run in runs), default=0.0), tuple(runs))

    def _shares(self, program: Program) -> list[dict[str, Any]]:
        """What every site has to know of a program."""
        sizes = collect_atom_sizes(program)
        open_waits, _ = index_waits(program)
        shares: list[dict[str, Any]] = [
            {"sizes": sizes, "holdings": [], "actions": [], "waits": [], "incoming": [], "flows": []}
            for _ in self.streams
        ]
        for holding in program.holdings:
            for site in holding.sites:
                shares[site]["holdings"].append(holding.aggregate)
        for position, action in enumerate(program.actions):
            share = shares[action.source]
            share["actions"].append((position, action.aggregate, action.destinations))
            share["waits"].append((position, open_waits[position]))
            for destination in action.destinations:
                share["flows"].append((position, destination, *self.address(action.source, destination)))
                shares[destination]["incoming"].append((position, action.aggregate))
        return shares

    def _ask(self, commands: Sequence[tuple[Any, ...]], reply: str, seconds: float) -> list[list[Any]]:
        """Give every site its command, and wait for all replies."""
        for number, command in enumerate(commands):
            self._tell(number, *command)
        replies: dict[int, list[Any]] = {}
        deadline = time.monotonic() + seconds
        while len(replies) < len(commands):
            site, kind, *what = self._next(deadline, f"no {reply!r} from some site")
            if kind == reply:
                replies[site] = what
        return [replies[number] for number in range(len(commands))]

    def _next(self, deadline: float, otherwise: str) -> tuple[Any, ...]:
        try:
            report = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ExecutionError(f"{otherwise} in time") from None
        if report[1] == "failed":
            raise ExecutionError(f"site {report[0]}: {report[2]}")
        return report

    def _tell(self, site: int, *command: Any) -> None:
        stream = self.streams[site][0]
        stream.write(json.dumps(command) + "\n")
        stream.flush()

    def _listen(self, number: int, reports: IO[str]) -> None:
        for line in reports:
            self.inbox.put((number, *json.loads(line)))
        self.inbox.put((number, "failed", "the site ended"))


@contextlib.contextmanager
def processes(prefixes: Sequence[Sequence[str]], address: FlowAddress) -> Iterator[Executor]:
    """A process per site, each started behind its prefix (such as `ip netns exec NAME`); all end with the context."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number, prefix in enumerate(prefixes):
            command = [*prefix, sys.executable, "-m", "tests.testbed.site_process", str(number)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            # In a session of its own: Ctrl-C is for the coordinator, which ends all sites in its own order.
            started.append(subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes))
        streams = []
        for process in started:
            assert process.stdin is not None
            assert process.stdout is not None
            streams.append((process.stdin, process.stdout))
        yield Executor(streams, address)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@contextlib.contextmanager
def threads(sites: int, address: FlowAddress | None = None) -> Iterator[Executor]:
    """All sites in this process, on the loopback device: what tests use."""
    pipes = [(Pipe(), Pipe()) for _ in range(sites)]
    running = []
    for number, (commands, reports) in enumerate(pipes):
        site = Site(number, commands, reports)  # type: ignore[arg-type]
        running.append(threading.Thread(target=site.serve, daemon=True))
        running[-1].start()
    ports: list[int] = []
    executor = Executor(pipes, address or (lambda source, destination: ("127.0.0.1", ports[destination], 0)))  # type: ignore[arg-type]
    try:
        ports += executor.listen()
        yield executor
    finally:
        for commands, _ in pipes:
            commands.close()
        for thread in running:
            thread.join(5)


class Pipe:
    """A stream of lines between two threads."""

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write(self, text: str) -> None:
        self.lines.put(text)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.lines.put("")

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines.get, "")
