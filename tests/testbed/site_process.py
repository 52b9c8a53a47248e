"""One site of the testbed: it holds arrays, adds them with numpy, sends them over TCP, and reports every event.

A site knows its own actions and the data that it receives. It reads commands and writes reports, one line of JSON each;
the coordinator (`executor.py`) tells it which awaited actions have ended. A site does not control rates: the network
decides how flows share a link.

    python -m tests.testbed.site_process NUMBER      commands on standard input, reports on standard output
"""

from __future__ import annotations

import hashlib
import json
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import IO, Any

import numpy as np

from einc.exchange.language.closure import State
from einc.exchange.language.program import Aggregate

WINDOW = 64 * 1024
"""Bytes that the kernel may buffer at either end of a flow (it allows itself twice that): more than a link holds."""

_FLOW = struct.Struct("!II")  # what a connection begins with: the position of an action, and its destination
_RESET = struct.pack("ii", 1, 0)  # close at once, so that ports are free for the next program


def contents(aggregate: Aggregate, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The expected value of an aggregate: the sum, modulo 256, of its atoms, which are noise seeded by their names."""
    total = np.zeros(size, np.uint8)
    for atom in aggregate:
        seed = int.from_bytes(hashlib.sha256(atom.encode()).digest()[:8], "big")
        total += np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)
    return total


class Site:
    """Runs its share of one program after another. All state changes happen on the thread of `serve`."""

    def __init__(self, number: int, commands: Iterable[str], reports: IO[str]) -> None:
        self.number = number
        self.commands, self.reports = commands, reports
        self.writing = threading.Lock()
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.listener = socket.socket()
        self.outgoing: dict[tuple[int, int], socket.socket] = {}
        self.incoming: list[socket.socket] = []

    def serve(self) -> None:
        """Carry out commands until there are no more."""
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        threading.Thread(target=self._read_commands, daemon=True).start()
        handlers: dict[str, Callable[..., None]] = {
            "listen": self.listen, "prepare": self.prepare, "go": self.go, "ended": self.ended, "arrived": self.arrived,
            "formed": self.formed, "verify": self.verify, "fail": self.fail,
        }  # fmt: skip
        while (item := self.inbox.get())[0] != "quit":
            try:
                handlers[item[0]](*item[1:])
            except Exception as error:  # the coordinator has to learn of every failure
                self.report("failed", f"{type(error).__name__}: {error}")
        self._hang_up()
        self.listener.close()

    def listen(self, address: str, port: int) -> None:
        self.listener.bind((address, port))
        self.listener.listen(4096)
        self.report("listening", self.listener.getsockname()[1])

    def prepare(self, share: dict[str, Any]) -> None:
        """Prepare a share of a program: make the arrays, and open a connection for every flow."""
        self._hang_up()
        self.size: dict[str, int] = share["sizes"]
        self.actions: dict[int, tuple[Aggregate, tuple[int, ...]]] = {
            position: (tuple(aggregate), tuple(destinations)) for position, aggregate, destinations in share["actions"]
        }
        self.open_waits: dict[int, int] = dict(share["waits"])
        self.at_goal: dict[Aggregate, list[int]] = {}
        for position, (aggregate, _) in self.actions.items():
            self.at_goal.setdefault(aggregate, []).append(position)
        self.state = State((aggregate, self.number) for aggregate, _ in self.actions.values())
        self.begun: set[int] = set()
        self.held: dict[Aggregate, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.first = [tuple(aggregate) for aggregate in share["holdings"]]
        ready = {aggregate: contents(aggregate, self._bytes(aggregate)) for aggregate in self.first}
        self.initial = ready
        self.expected: dict[int, Aggregate] = {p: tuple(aggregate) for p, aggregate in share["incoming"]}
        buffers = {p: np.zeros(self._bytes(aggregate), np.uint8) for p, aggregate in self.expected.items()}
        for position, destination, address, port, own in share["flows"]:
            self.outgoing[position, destination] = self._connect(position, destination, address, port, own)
        for _ in self.expected:
            peer, _ = self.listener.accept()
            self.incoming.append(peer)
            header = _FLOW.unpack(_receive(peer, bytearray(_FLOW.size)))
            threading.Thread(target=self._take, args=(peer, header[0], buffers[header[0]]), daemon=True).start()
        self.report("ready", None)

    def go(self, at: float) -> None:
        """Begin at a time of the monotonic clock, which all processes of a host share."""
        time.sleep(max(0.0, at - time.monotonic()))
        for aggregate, array in self.initial.items():
            self._place(aggregate, array)

    def ended(self, position: int) -> None:
        """One of the actions that one of ours waits for has ended."""
        self.open_waits[position] -= 1
        if not self.open_waits[position] and self.state.is_ready((self.actions[position][0], self.number)):
            self._start(position)

    def arrived(self, position: int, array: np.ndarray[Any, np.dtype[np.uint8]], when: float) -> None:
        self.report("arrived", position, when)
        self._place(self.expected[position], array)

    def formed(self, position: int, array: np.ndarray[Any, np.dtype[np.uint8]], when: float) -> None:
        self.report("formed", position, when)
        self._send(position, array)
        self._place(self.actions[position][0], array)

    def verify(self, aggregates: list[list[str]]) -> None:
        """Report which of these aggregates are not here, or are not what they should be."""
        wrong = []
        for aggregate in map(tuple, aggregates):
            array = self.held.get(aggregate)
            if array is None or not np.array_equal(array, contents(aggregate, self._bytes(aggregate))):
                wrong.append("+".join(aggregate))
        self.report("verified", wrong)

    def fail(self, reason: str) -> None:
        raise ConnectionError(reason)

    def report(self, kind: str, *what: Any) -> None:
        with self.writing:
            self.reports.write(json.dumps([kind, *what]) + "\n")
            self.reports.flush()

    def _place(self, aggregate: Aggregate, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.held.setdefault(aggregate, array)
        for goal, _ in self.state.add(aggregate, self.number):
            for position in self.at_goal[goal]:
                if not self.open_waits[position]:
                    self._start(position)

    def _start(self, position: int) -> None:
        if position in self.begun:
            return
        self.begun.add(position)
        aggregate = self.actions[position][0]
        parts = self.state.partition((aggregate, self.number))
        self.report("started", position, time.monotonic(), len(parts))
        arrays = [self.held[part] for part in parts]
        if len(arrays) == 1:
            self.report("formed", position, time.monotonic())
            self._send(position, arrays[0])
        else:
            threading.Thread(target=self._combine, args=(position, arrays), daemon=True).start()

    def _combine(self, position: int, arrays: list[np.ndarray[Any, np.dtype[np.uint8]]]) -> None:
        total = arrays[0] + arrays[1]
        for array in arrays[2:]:
            total += array
        self.inbox.put(("formed", position, total, time.monotonic()))

    def _send(self, position: int, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        for destination in self.actions[position][1]:
            connection = self.outgoing[position, destination]
            threading.Thread(target=self._give, args=(connection, array), daemon=True).start()

    def _give(self, connection: socket.socket, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        try:
            connection.sendall(array.data)
        except OSError as error:
            self.inbox.put(("fail", f"sending from site {self.number}: {error}"))

    def _take(self, peer: socket.socket, position: int, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        try:
            _receive(peer, array.data)
            self.inbox.put(("arrived", position, array, time.monotonic()))
        except OSError as error:
            self.inbox.put(("fail", f"receiving at site {self.number}: {error}"))

    def _connect(self, position: int, destination: int, address: str, port: int, own: int) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WINDOW)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.bind(("", own))
        connection.connect((address, port))
        connection.sendall(_FLOW.pack(position, destination))
        return connection

    def _bytes(self, aggregate: Aggregate) -> int:
        return self.size[aggregate[0]]

    def _hang_up(self) -> None:
        for connection in (*self.outgoing.values(), *self.incoming):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.close()
        self.outgoing.clear()
        self.incoming.clear()

    def _read_commands(self) -> None:
        for line in self.commands:
            self.inbox.put(tuple(json.loads(line)))
        self.inbox.put(("quit",))


def _receive(peer: socket.socket, into: Any) -> Any:
    """Fill a buffer."""
    view = memoryview(into).cast("B")
    done = 0
    while done < len(view):
        got = peer.recv_into(view[done:], 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError(f"the connection ended after {done} of {len(view)} bytes")
        done += got
    return into


if __name__ == "__main__":
    Site(int(sys.argv[1]), sys.stdin, sys.stdout).serve()
