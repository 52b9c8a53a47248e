"""Where proposals come from, as a user names it: a file, `command:LINE`, or `llm:URL?model=NAME`."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from einc.errors import ProgramError, UsageError
from einc.exchange.synthesis.prompt import write_request
from einc.exchange.synthesis.proposers import MAX_PROPOSAL_TEXT, ProposalRequest, Proposer, TextProposer


def make_proposer(source: str, read_text: Callable[[str], str]) -> Proposer:
    """The proposer that a source names; `read_text` reads a file. Raises UsageError."""
    kind, _, argument = source.partition(":")
    if kind == "llm":
        from einc.exchange.synthesis.endpoint import read_endpoint

        return read_endpoint(argument)
    if kind != "command":
        return TextProposer(read_text(source))
    try:
        arguments = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"--propose {source[:200]!r}: {error}") from None
    if not arguments:
        raise UsageError(f"--propose {source[:200]!r}: it names no command", hint="write command:LINE")
    return CommandProposer(tuple(arguments))


COMMAND_POLL_SECONDS = 0.05
"""How often is looked whether a command has ended whose standard output is still open."""


@dataclass(frozen=True, slots=True)
class CommandProposer:
    """Runs a command that reads a request on its standard input and writes candidates to its standard output.

    It is run again as long as its answer ends with a line `--- again`. It runs without a shell. After `seconds`, or
    after those of the request if they are fewer, it is ended together with all processes that it has started.
    """

    arguments: Sequence[str]
    seconds: float = 60.0

    def propose(self, request: ProposalRequest) -> str | None:
        if request.round and not request.again:
            return None
        name, seconds = self.arguments[0], min(self.seconds, request.seconds)
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(self.arguments, stdin=pipe, stdout=pipe, stderr=null, process_group=0)
        except (OSError, ValueError) as error:
            raise ProgramError(f"the proposer {name} cannot be run: {error}") from None
        try:
            threading.Thread(target=_write_input, args=(process, write_request(request)), daemon=True).start()
            reply, status = _read_reply(process, time.monotonic() + seconds)
        except subprocess.TimeoutExpired:
            raise ProgramError(f"the proposer {name} took longer than {seconds:.3g} s") from None
        finally:
            _end_process(process)
        if status:
            raise ProgramError(f"the proposer {name} failed with status {status}")
        return reply.decode("utf-8", "replace")


def _write_input(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin as sink:
        sink.write(text.encode())


def _read_reply(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, int]:
    """What a process writes, at most one byte more than is allowed, and its exit status, 0 where not all is read.

    It has written all when it has ended, even if processes that it has started keep its standard output open; these
    are ended. Raises TimeoutExpired.
    """
    assert process.stdout is not None
    reply = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(reply) <= MAX_PROPOSAL_TEXT:
            ended = process.poll() is not None  # before looking for what it wrote, which is there then
            if not selector.select(max(0.0, min(deadline - time.monotonic(), 0.0 if ended else COMMAND_POLL_SECONDS))):
                if ended:
                    os.killpg(process.pid, signal.SIGKILL)  # those that keep the output open are of this group
                    return reply, process.returncode
                if time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(process.args, 0)
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 20)
            if not chunk:
                return reply, process.wait(max(0.0, deadline - time.monotonic()))
            reply += chunk
    return reply, 0


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, unless it has ended by itself."""
    assert process.stdout is not None
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
