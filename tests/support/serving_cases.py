"""A served model without plans, whose texts are known, and a client that calls an application without a network."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from einc.serving.app import make_app
from einc.serving.metrics import Metrics
from einc.serving.models import EmbeddingModel, ServedModel, TextModel
from einc_runtime.errors import ArrayFault, KernelFault
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.engine import Engine, Progress
from einc_runtime.generation.model_folder import ChatTemplate
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.sequence_batch import NewToken, SequenceRequest
from einc_runtime.generation.slots import GenerationTimes
from einc_runtime.generation.tokenizer import TextTokenizer
from tests.support.generation_cases import byte_tokenizer

NAME, CREATED, PLACES = "echo", 1_700_000_000, 40
WAIT = 60.0
"""Seconds after which a wait for an event fails."""
TEMPLATE = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {}, "template")


class EchoBatch:
    """Says each prompt backwards, token after token, and ends with token 0; 1 in a prompt is no number.

    With `gate`, every advance waits until it is released.
    """

    def __init__(self, size: int, gate: threading.Semaphore | None = None) -> None:
        self.size, self._gate = size, gate
        self.running: dict[int, tuple[SequenceRequest, int]] = {}
        self.requests: list[SequenceRequest] = []

    def check(self, request: SequenceRequest) -> None:
        if max(request.tokens) > 255:
            raise ArrayFault("there are 256 tokens")

    def start(self, slot: int, request: SequenceRequest) -> bool:
        self.requests.append(request)
        self.running[slot] = (request, 0)
        return True

    def end(self, slot: int) -> None:
        del self.running[slot]

    def advance(self) -> list[Progress[NewToken]]:
        assert self._gate is None or self._gate.acquire(timeout=WAIT)
        return [self._say(slot, *state) for slot, state in sorted(self.running.items())]

    def _say(self, slot: int, request: SequenceRequest, count: int) -> Progress[NewToken]:
        token = [*reversed(request.tokens), 0][count]
        self.running[slot] = (request, count + 1)
        ended = "stop" if token == 0 else "length" if count + 1 == request.max_tokens else None
        if token == 1 or ended:
            self.end(slot)
        if token == 1:
            return Progress(slot, KernelFault("the logits are not finite"), True)
        return Progress(slot, NewToken(request.number, token, chr(token) if token else "", ended), ended is not None)


class LengthBatch:
    """The vector of a text has its number of tokens, its first one, and 0.1."""

    size = 2

    def __init__(self, gate: threading.Semaphore | None = None) -> None:
        self._gate = gate
        self.running: dict[int, Sequence[int]] = {}

    def check(self, request: Sequence[int]) -> None:
        if max(request) > 255:
            raise ArrayFault("there are 256 tokens")

    def start(self, slot: int, request: Sequence[int]) -> bool:
        self.running[slot] = request
        return True

    def end(self, slot: int) -> None:
        self.running.pop(slot, None)

    def advance(self) -> list[Progress[np.ndarray]]:
        assert self._gate is None or self._gate.acquire(timeout=WAIT)
        progress = [
            Progress(slot, np.array([len(row), row[0], 0.1], np.float32), True) for slot, row in self.running.items()
        ]
        self.running.clear()
        return progress


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The documents of a stream, which has to end with DONE or an error."""
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") for part in parts)
        if parts[-1] == "data: [DONE]":
            parts.pop()
        else:
            assert "error" in json.loads(parts[-1][6:])
        return [json.loads(part[6:]) for part in parts]


class Server:
    """An application over a batch, and what it has reported as bugs."""

    def __init__(
        self, batch: Any, folder: Path, *, queue: int = 4, sampling: Sampling = GREEDY, max_tokens: int = PLACES,
        template: ChatTemplate | None = TEMPLATE,
    ) -> None:  # fmt: skip
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        tokenizer = TextTokenizer(str(folder / "tokenizer.json"))
        self.engine: Engine[Any, Any] = Engine(batch, queue)
        self.chat = ChatRenderer()
        self.bugs: list[Exception] = []
        model = (
            EmbeddingModel(self.engine, tokenizer, PLACES)
            if isinstance(batch, LengthBatch)
            else TextModel(self.engine, tokenizer, template, self.chat, sampling, PLACES, max_tokens, GenerationTimes())
        )
        self.app = make_app(ServedModel(NAME, CREATED, model), Metrics(), self.bugs.append)

    def close(self) -> None:
        self.engine.close()
        self.chat.__exit__()

    def ask(self, path: str, document: Any = None, *, body: bytes | None = None, method: str = "") -> Answer:
        """One request, with JSON or other bytes."""
        return call_app(self.app, path, document, body=body, method=method)

    async def call(self, path: str, parts: Sequence[bytes], *, leave: asyncio.Event | None = None) -> Answer:
        """One POST, whose body comes in parts; the client leaves at the event `leave`."""
        return await _call(self.app, path, parts, "POST", leave or asyncio.Event())


def call_app(app: Any, path: str, document: Any = None, *, body: bytes | None = None, method: str = "") -> Answer:
    """One request to an application, with JSON or other bytes."""
    body = body if body is not None else b"" if document is None else json.dumps(document).encode()
    return asyncio.run(_call(app, path, [body], method or ("POST" if body else "GET"), asyncio.Event()))


async def _call(app: Any, path: str, parts: Sequence[bytes], method: str, leave: asyncio.Event) -> Answer:
    waiting = [
        {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)} for at, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(make_scope(path, method), receive, send), WAIT)
    start, *body_messages = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers, b"".join(message["body"] for message in body_messages))


def make_scope(path: str, method: str = "POST") -> dict[str, Any]:
    """What a server tells an application about a request."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": [], "scheme": "http", "root_path": "",
        "server": ("test", 80), "client": ("test", 1),
    }  # fmt: skip
