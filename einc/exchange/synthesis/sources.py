"""Where proposals come from, as a user names it: a file, `command:LINE`, or `llm:URL?model=NAME`.

A language model is asked at an OpenAI-compatible endpoint. A reply is untrusted text: its time and size are bounded
before it is read, and it is only ever parsed as exchange programs. A request goes to the given host and to no other.
The key is taken from the environment and appears in no message.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from einc.errors import ProgramError, UsageError
from einc.exchange.synthesis.proposers import (
    MAX_PROPOSAL_TEXT,
    ProposalRequest,
    Proposer,
    TextProposer,
    build_messages,
    extract_programs,
    write_request,
)
from einc_runtime import environment
from einc_runtime.environment import LLM_KEY


def make_proposer(source: str, read_text: Callable[[str], str]) -> Proposer:
    """The proposer that a source names; `read_text` reads a file. Raises UsageError."""
    kind, _, argument = source.partition(":")
    if kind == "llm":
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


MAX_REPLY = 1 << 20
"""Bytes of a reply."""

_RETRIED = (408, 429, 500, 502, 503, 504)
_REDIRECTS = range(300, 400)
_MAX_PAUSE = 10.0
_MIN_SECONDS = 0.5
"""A request with fewer seconds left is not sent."""


class _TooLateError(Exception):
    """There was no reply in time."""


@dataclass(frozen=True, slots=True)
class EndpointProposer:
    """Asks `model` for programs in at most `rounds` rounds; each request has the outcomes of the earlier answers.

    A round takes at most `seconds`, its `retries` included; `pause` is the wait before the first retry, in seconds,
    and doubles.
    """

    url: str
    model: str
    rounds: int = 4
    seconds: float = 60.0
    retries: int = 2
    pause: float = 1.0
    temperature: float | None = None
    key: str | None = field(default=None, repr=False)

    def propose(self, request: ProposalRequest) -> str | None:
        """The candidates of a reply. Raises ProgramError, in one line, for every failure."""
        seconds = min(self.seconds, request.seconds)
        if request.round >= self.rounds or seconds < _MIN_SECONDS:
            return None
        body: dict[str, Any] = {"model": self.model, "messages": build_messages(request), "stream": False}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        reply = self._ask(json.dumps(body).encode(), seconds)
        return extract_programs(_read_content(reply))

    def _ask(self, body: bytes, seconds: float) -> bytes:
        """Send the request until there is a reply; after failures that may pass it is sent again."""
        deadline = time.monotonic() + seconds
        for attempt in range(self.retries + 1):
            try:
                status, headers, data = self._post_in_time(body, deadline)
            except (OSError, http.client.HTTPException) as error:
                reason, pause = f"{type(error).__name__}: {error}", self.pause * 2**attempt
            except _TooLateError:
                raise ProgramError(f"{self._host()}: no whole reply within {seconds:.3g} s") from None
            else:
                if status == 200:
                    return data
                reason, pause = self._describe_refusal(status, headers, data), self.pause * 2**attempt
                if status not in _RETRIED:
                    break
                retry_after = headers.get("retry-after", "")
                if retry_after.isdecimal() and len(retry_after) < 9:
                    pause = float(retry_after)
            if attempt == self.retries or pause > _MAX_PAUSE or time.monotonic() + pause > deadline - _MIN_SECONDS:
                break
            time.sleep(pause)
        raise ProgramError(self._hide_key(f"{self._host()}: {reason}"))

    def _post_in_time(self, body: bytes, deadline: float) -> tuple[int, Mapping[str, str], bytes]:
        """One request, given up at the deadline wherever it is stuck: in a name look-up, or between slow bytes."""
        outcome: list[tuple[int, Mapping[str, str], bytes] | BaseException] = []
        seconds = max(0.0, deadline - time.monotonic())
        connection = self._connect(seconds)

        def exchange() -> None:
            try:
                outcome.append(self._exchange(connection, body))
            except BaseException as error:  # raised again by the thread that waits
                outcome.append(error)
            finally:
                connection.close()

        worker = threading.Thread(target=exchange, daemon=True)
        worker.start()
        worker.join(seconds)
        if not outcome:
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            raise _TooLateError
        result = outcome[0]
        if isinstance(result, TimeoutError):
            raise _TooLateError
        if isinstance(result, BaseException):
            raise result
        return result

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(self.url)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        response = connection.getresponse()
        data = response.read(MAX_REPLY + 1)
        if len(data) > MAX_REPLY:
            raise ProgramError(f"{self._host()}: the reply has more than {MAX_REPLY} bytes")
        if response.length:
            raise http.client.IncompleteRead(data, response.length)
        return response.status, {name.lower(): value for name, value in response.getheaders()}, data

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=max(seconds, 0.001))

    def _describe_refusal(self, status: int, headers: Mapping[str, str], data: bytes) -> str:
        if status in _REDIRECTS:
            where = urlsplit(headers.get("location", "")).netloc or "elsewhere"
            return f"HTTP {status}: it redirects to {where[:100]}, which is not followed"
        hint = f" (is {LLM_KEY} set?)" if status in (401, 403) and self.key is None else ""
        said = " ".join(data[:400].decode("utf-8", "replace").split())
        return f"HTTP {status}{hint}" + (f": {said}" if said else "")

    def _hide_key(self, text: str) -> str:
        """The text without the key, which a reply may repeat."""
        return text if not self.key else text.replace(self.key, "***")

    def _host(self) -> str:
        return urlsplit(self.url).netloc


def read_endpoint(text: str) -> EndpointProposer:
    """An endpoint from `URL?model=NAME`, with optional `rounds`, `seconds` and `temperature`.

    The URL is the API's base, such as https://api.openai.com/v1, or ends in /chat/completions; the rest of its query is
    sent along. The key comes from the environment. Raises UsageError.
    """
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{text[:200]!r} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{text[:200]!r} is no http or https URL", hint="llm:https://HOST/v1?model=NAME")
    if parts.username is not None or parts.fragment:
        raise UsageError(f"the URL of {host} must have no user and no fragment", hint=f"the key belongs in {LLM_KEY}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    model = query.pop("model", "")
    if not model:
        raise UsageError(f"which model of {host}?", hint=f"llm:{parts.scheme}://{parts.netloc}{parts.path}?model=NAME")
    rounds = _read_number(query.pop("rounds", "4"), "rounds", 1, 50)
    seconds = _read_number(query.pop("seconds", "60"), "seconds", 1, 3600)
    temperature = query.pop("temperature", None)
    key = (environment.read(LLM_KEY) or "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError(f"{LLM_KEY} has characters that no key has")
    if key is not None and parts.scheme == "http" and not _is_loopback(host):
        raise UsageError(f"{LLM_KEY} would travel to {host} unencrypted", hint="use https, or unset it")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/chat/completions") else path + "/chat/completions"
    return EndpointProposer(
        parts._replace(path=path, query=urlencode(query)).geturl(),
        model,
        int(rounds),
        seconds,
        temperature=None if temperature is None else _read_number(temperature, "temperature", 0, 5),
        key=key,
    )


def _read_content(reply: bytes) -> str:
    """The text of a chat completion."""
    try:
        content = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, RecursionError):
        raise ProgramError("the reply is not JSON") from None
    except (KeyError, IndexError, TypeError):
        raise ProgramError("the reply is not a chat completion: it has no choices[0].message.content") from None
    if not isinstance(content, str):
        raise ProgramError("the reply is not a chat completion: its content is not text")
    return content


def _read_number(text: str, name: str, minimum: float, maximum: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not minimum <= value <= maximum:
        raise UsageError(f"{name} is a number from {minimum:g} to {maximum:g}, not {text[:40]!r}")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
