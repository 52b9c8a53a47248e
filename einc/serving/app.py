"""The application: its paths, bodies that are read with limits, and answers, whole or as streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from einc.serving.answers import DONE, Kind, TextAnswer, make_embeddings, make_event, make_model
from einc.serving.fields import ApiError, make_api_error
from einc.serving.metrics import Metrics
from einc.serving.models import ServedModel
from einc.serving.requests import Continuation, parse_chat, parse_completion, parse_embedding
from einc_runtime.errors import ReportedError
from einc_runtime.generation.engine import BusyFault, Engine
from einc_runtime.generation.sequence_batch import NewToken, SequenceRequest
from einc_runtime.strict_json import Document

Asked = TypeVar("Asked")
Given = TypeVar("Given")

PAUSE = 0.05
"""Seconds after which a request that has begun asks again for room."""


class JobResults(Generic[Asked, Given]):
    """Submits requests, and gives their results as pairs of an index and a result, as they come.

    It raises what the engine's `submit` raises, and the first error among the results. `close` cancels what has not
    ended; it must be called.
    """

    def __init__(self, engine: Engine[Asked, Given], requests: Sequence[Asked]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Given | ReportedError, bool]] = asyncio.Queue()
        self._engine, self._open = engine, len(requests)
        self._jobs = engine.submit(requests, [self._listen(index) for index in range(len(requests))])

    def _listen(self, index: int) -> Callable[[Given | ReportedError, bool], None]:
        def tell(result: Given | ReportedError, is_last: bool) -> None:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, result, is_last))

        return tell

    def __aiter__(self) -> JobResults[Asked, Given]:
        return self

    async def __anext__(self) -> tuple[int, Given]:
        if not self._open:
            raise StopAsyncIteration
        index, result, is_last = await self._queue.get()
        self._open -= is_last
        if isinstance(result, ReportedError):
            raise result
        return index, result

    def close(self) -> None:
        """Frees the slots of what has not ended."""
        for job in self._jobs:
            self._engine.cancel(job)


async def run_in_turns(engine: Engine[Asked, Given], requests: Sequence[Asked]) -> list[Given]:
    """The last result of each request, as many at a time as run at once: a long list leaves room for others.

    Raises what `JobResults` raises; only of the first ones BusyFault. The others wait until there is room.
    """
    gathered: list[Given] = []
    while len(gathered) < len(requests):
        part = requests[len(gathered) : len(gathered) + engine.size]
        try:
            results = JobResults(engine, part)
        except BusyFault:
            if not gathered:
                raise
            await asyncio.sleep(PAUSE)
            continue
        try:
            last = dict([pair async for pair in results])
        finally:
            results.close()
        gathered += [last[index] for index in range(len(part))]
    return gathered


MAX_BODY = 4 << 20
"""Bytes of a request's body."""
MAX_BODIES = 64 << 20
"""Bytes of all bodies that are being read or understood."""
MAX_BODY_SECONDS = 60.0
"""Seconds in which a body has to arrive."""
MAX_WRITE_SECONDS = 60.0
"""Seconds that a client may leave what is sent to it unread."""
GONE = 499
"""The status, which nobody gets, of a request whose client has left."""

T = TypeVar("T")
Sequences = JobResults[SequenceRequest, NewToken]


def make_app(served: ServedModel, metrics: Metrics, report: Callable[[Exception], None]) -> ASGIApp:
    """The application, for one model; `report` is told what nobody has foreseen."""
    handlers = _Handlers(served, metrics)
    routes = [
        Route("/v1/completions", handlers.complete, methods=["POST"]),
        Route("/v1/chat/completions", handlers.chat, methods=["POST"]),
        Route("/v1/embeddings", handlers.embed, methods=["POST"]),
        Route("/v1/models", handlers.list_models),
        Route("/v1/models/{name:path}", handlers.show_model),
        Route("/health", handlers.check_health),
        Route("/metrics", handlers.show_metrics),
    ]
    errors: Any = {ApiError: _answer_error, ReportedError: _answer_error, HTTPException: _answer_error}
    app = Starlette(
        routes=routes, exception_handlers={**errors, ClientDisconnect: _answer_gone, Exception: _answer_bug}
    )
    paths = [route.path for route in routes if "{" not in route.path]
    return _Counting(app, metrics, paths, report)


class _Handlers:
    """One method for each path."""

    def __init__(self, served: ServedModel, metrics: Metrics) -> None:
        self._served, self._metrics = served, metrics
        self._held = 0  # bytes of bodies

    async def complete(self, request: Request) -> Response:
        async with self._read_body(request) as body:
            completion = await asyncio.to_thread(parse_completion, body)
            model = self._served.require_text(completion.how.model)
            rows = await asyncio.to_thread(model.read_completion, completion)
        return await self._answer(request, "completion", rows, completion.how)

    async def chat(self, request: Request) -> Response:
        async with self._read_body(request) as body:
            chat_request = await asyncio.to_thread(parse_chat, body)
            model = self._served.require_text(chat_request.how.model)
            rows = await asyncio.to_thread(model.read_chat, chat_request)
        return await self._answer(request, "chat", rows, chat_request.how)

    async def embed(self, request: Request) -> Response:
        async with self._read_body(request) as body:
            embedding = await asyncio.to_thread(parse_embedding, body)
            model = self._served.require_embedding(embedding.model)
            rows = await asyncio.to_thread(model.read, embedding)
        vectors = await _unless_gone(request, run_in_turns(model.engine, rows))
        count = sum(map(len, rows))
        return JSONResponse(
            await asyncio.to_thread(make_embeddings, self._served.name, vectors, count, embedding.is_base64)
        )

    @contextlib.asynccontextmanager
    async def _read_body(self, request: Request) -> AsyncIterator[bytes]:
        """The body, if it has at most MAX_BODY bytes, comes in time, and there is room for what it asks.

        It counts among the bodies that are held until the block ends.
        """
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(MAX_BODY_SECONDS):
                    async for part in request.stream():
                        body += part
                        self._held += len(part)
                        self._limit_bodies(len(body))
            except TimeoutError:
                raise ApiError(408, f"the body has not come within {MAX_BODY_SECONDS:g} seconds") from None
            self._served.model.engine.require_room()
            yield bytes(body)
        finally:
            self._held -= len(body)

    def _limit_bodies(self, size: int) -> None:
        if size > MAX_BODY:
            raise ApiError(413, f"the body has more than {MAX_BODY >> 20} MiB", code="request_too_large")
        if self._held > MAX_BODIES:
            message = f"all bodies that are read have more than {MAX_BODIES >> 20} MiB; try again later"
            raise ApiError(503, message, kind="server_error", code="overloaded")

    async def list_models(self, _: Request) -> Response:
        data = [make_model(self._served.name, self._served.created)]
        return JSONResponse({"object": "list", "data": data})

    async def show_model(self, request: Request) -> Response:
        self._served.require_name(request.path_params["name"])
        return JSONResponse(make_model(self._served.name, self._served.created))

    async def check_health(self, _: Request) -> Response:
        takes = self._served.model.engine.takes
        return JSONResponse({"status": "ok" if takes else "draining"}, 200 if takes else 503)

    async def show_metrics(self, _: Request) -> Response:
        return PlainTextResponse(
            self._metrics.render(self._served), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def _answer(
        self, request: Request, kind: Kind, rows: Sequence[SequenceRequest], how: Continuation
    ) -> Response:
        model = self._served.require_text(self._served.name)
        lengths = [len(row.tokens) for row in rows]
        answer = TextAnswer(kind, self._served.name, lengths, model.name_token, how.count)
        results = JobResults(model.engine, rows)
        tokens = self._follow(answer, results)
        if how.is_stream:
            return _EventStream(_make_events(answer, tokens, how.has_usage), results)
        try:
            await _unless_gone(request, _collect(tokens))
        finally:
            results.close()
        return JSONResponse(answer.whole())

    async def _follow(self, answer: TextAnswer, results: Sequences) -> AsyncIterator[tuple[int, NewToken]]:
        start = perf_counter()
        async for index, new in results:
            if not any(answer.tokens):
                self._metrics.observe_first(perf_counter() - start)
            answer.add(index, new)
            yield index, new


async def _make_events(
    answer: TextAnswer, tokens: AsyncIterator[tuple[int, NewToken]], has_usage: bool
) -> AsyncIterator[bytes]:
    """The events of a stream. An error ends it, and is an event itself: the status has been sent."""
    documents: list[Document] = answer.first_chunks()
    try:
        async for index, new in tokens:
            for document in [*documents, *answer.chunks(index, new)]:
                yield make_event(document)
            documents = []
    except ReportedError as error:
        yield make_event(make_api_error(error).document())
        return
    if has_usage:
        yield make_event(answer.usage_chunk())
    yield DONE


class _EventStream(Response):
    """Server-sent events, until the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], results: Sequences) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._results = events, results

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _first_of(self._send(send), _wait_until_gone(receive))
        finally:
            self._results.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(TimeoutError):  # as if the client had left
            async for event in self._events:
                async with asyncio.timeout(MAX_WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Counting:
    """Counts and times the answers of an application, whose last errors end here."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Sequence[str], report: Callable[[Exception], None]
    ) -> None:
        self._app, self._metrics, self._paths, self._report = app, metrics, frozenset(paths), report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start, status = perf_counter(), 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:  # which has been answered
            self._report(error)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, status, perf_counter() - start)


async def _collect(results: AsyncIterator[T]) -> list[T]:
    return [result async for result in results]


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; ClientDisconnect where the client leaves before."""
    result = await _first_of(work, _wait_until_gone(request.receive))
    if result is None:
        raise ClientDisconnect
    return result


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(work: Coroutine[Any, Any, T], end: Coroutine[Any, Any, None]) -> T | None:
    """What the work returns, or None where `end` returns first. The other one is cancelled."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def _answer_error(_: Request, error: Exception) -> Response:
    match error:
        case ReportedError():
            api_error = make_api_error(error)
        case HTTPException(status_code=404):
            api_error = ApiError(404, "there is no such path", code="not_found")
        case HTTPException():
            api_error = ApiError(error.status_code, str(error.detail))
        case ApiError():
            api_error = error
        case _:
            raise error
    headers = {"retry-after": "1"} if api_error.status in (429, 503) else {}
    if isinstance(error, HTTPException):
        headers |= error.headers or {}
    return JSONResponse(api_error.document(), api_error.status, headers)


async def _answer_bug(_: Request, error: Exception) -> Response:
    api_error = ApiError(500, f"a bug in einc: {type(error).__name__}", kind="server_error", code="internal")
    return JSONResponse(api_error.document(), api_error.status)


async def _answer_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=GONE)
