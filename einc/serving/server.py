"""The server: a socket, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from einc.errors import UsageError
from einc_runtime.generation.engine import Engine

MAX_CONNECTIONS = 512
"""Connections at once; others get the status 503."""
KEEP_ALIVE = 30
"""Seconds after which a connection that nobody uses is closed."""
LAST_WORDS = 2.0
"""Seconds for answers that nothing is left of, when the time for draining is over."""
DRAIN_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """Signals are not its own: `run_server` handles them."""

    def __init__(self, config: uvicorn.Config, report: Callable[[], None]) -> None:
        super().__init__(config)
        self._report = report

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._report()


def bind(host: str, port: int) -> socket.socket:
    """A socket at a port, which does not listen yet; port 0 is any that is free. Raises UsageError if it is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise UsageError(f"cannot listen at {host}, port {port}: {error.strerror}") from None


def run_server(
    app: ASGIApp, at: socket.socket, engine: Engine[Any, Any], drain_seconds: float, started: Callable[[], None]
) -> int | None:
    """Answers requests until the first SIGTERM or SIGINT. Then it takes no more, and finishes those that it has.

    What has not ended after `drain_seconds` is told so. A second signal cuts all connections; its number is returned.
    `started` is called when requests are taken.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL + 1,  # errors are reported by the application
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE,
        ),
        started,
    )
    second: list[int] = []
    before = {number: signal.getsignal(number) for number in DRAIN_SIGNALS}

    async def run() -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.current_task()
        assert serving is not None
        closing = threading.Thread(target=engine.close, daemon=True)  # it waits for a step

        def end(number: int) -> None:
            if server.should_exit:
                second.append(number)
                serving.cancel()
                return
            engine.refuse()
            server.should_exit = True
            loop.call_later(drain_seconds, closing.start)
            loop.call_later(drain_seconds + LAST_WORDS, serving.cancel)

        for number in DRAIN_SIGNALS:
            if before[number] != signal.SIG_IGN:  # as under `nohup`
                loop.add_signal_handler(number, end, number)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve([at])

    try:
        asyncio.run(run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        engine.close()
    return second[0] if second else None
