"""A fake of NCCL between threads that play processes, each with a fake driver of CUDA: it checks NCCL's rules.

- A GPU is in a communicator once. What it sends and receives is on one stream, from memory of its own.
- Two GPUs are connected by the first calls of both, outside of a capture; each call waits for the other one.
- What one GPU sends to another and what that one receives pair up in their order, have one size, and both are in
  graphs of the same capture, or both in none.
- Messages of a group begin together. Those of two GPUs go on in their order, all others by themselves. Small ones may
  be sent before they are received, others not. What waits may keep everything else off its GPU.
- While a graph is on its way, its GPU sends nothing outside of it (without NCCL's support of mixing).
- Communicators are destroyed after the graphs that use them.

Within that, messages arrive as late as a seed says, and memory that is received into is garbage until then.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field

from einc_runtime.execution.cuda.driver import DriverError
from tests.support.cuda_fake_queue import PATIENCE, Misuse, Running

EAGER_BYTES = 256


class NcclWorld:
    """What connects the processes; `is_over` says that one of them has failed, which ends all."""

    def __init__(self, seed=0, *, patience=3, version=22809, is_over=lambda: False):
        self.rng, self.lock = random.Random(seed), threading.Condition()
        self.patience, self.number, self.is_over = patience, version, is_over
        self.joined: dict[int, FakeCommunicators] = {}
        self.addresses: set[str] = set()
        self.met: set[tuple[int, int, bool]] = set()  # sending GPU, receiving GPU, and which of them has called
        self.sent: dict[tuple[int, int], deque[End]] = defaultdict(deque)
        self.awaited: dict[tuple[int, int], deque[End]] = defaultdict(deque)
        self.lost: set[int] = set()  # GPUs whose connections have an error
        self.delivered = 0

    def wait_until(self, holds, waiter):
        """With the lock held."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if self.is_over():
                raise RuntimeError("another rank failed")
            if time.monotonic() > deadline:
                raise Misuse(f"{waiter} waits forever")
            self.lock.wait(0.01)


class FakeNccl:
    """See `einc_runtime.execution.cuda.nccl.Nccl`; one for each process."""

    def __init__(self, world, driver):
        self.world, self.driver = world, driver

    def version(self):
        return self.world.number

    def make_id(self):
        return bytes(range(128))

    def join(self, identity, count, gpus):
        assert identity == bytes(range(128))
        communicators = FakeCommunicators(self.world, self.driver, gpus)
        with self.world.lock:
            for device, gpu in gpus.items():
                address = self.driver.address(device)
                if gpu in self.world.joined or address in self.world.addresses:
                    raise Misuse("a GPU is in a communicator twice")
                self.world.addresses.add(address)
                self.world.joined[gpu] = communicators
            self.world.lock.notify_all()
            self.world.wait_until(lambda: len(self.world.joined) == count, "joining")
        return communicators


@dataclass(eq=False)
class End:
    """One end of a message on its way; `left` looks until it has ended, once it is matched."""

    message: object
    capture: int | None
    left: int
    data: bytes | None = None  # of an eager message
    partner: End | None = None
    copied: bool = False
    ended: bool = field(default=False)


class FakeCommunicators:
    def __init__(self, world, driver, gpus):
        self.world, self.driver, self.gpus = world, driver, dict(gpus)
        self.streams: dict[int, int] = {}
        self.aborted = self.closed = False
        self.captures = 0

    def exchange(self, device, messages, stream):
        self.driver._note("exchange", (device, stream, len(messages)))
        gpu, held_stream = self.gpus[device], self.driver.held["stream"][stream]
        if self.closed or self.aborted:
            raise Misuse("a communicator that is closed")
        if held_stream.device != device or self.streams.setdefault(device, stream) != stream:
            raise Misuse("messages of a GPU on another stream")
        for message in messages:
            if message.peer == gpu or message.peer not in self.world.joined:
                raise Misuse("a message to itself, or to nobody")
            if message.size <= 0 or self.driver._inside(message.pointer, message.size, message.size, 1) != device:
                raise Misuse("a message that is not in memory of its GPU")
        in_capture = held_stream.captured is not None
        pending = [node.run for node in self.driver.nodes.values() if isinstance(node.run, ExchangeRun)]
        if not in_capture and any(run.capture is not None and run.gpu == gpu for run in pending):
            raise Misuse("a message outside of a graph while the graph is on its way")
        with self.world.lock:
            ways = {(message.peer, gpu) if message.incoming else (gpu, message.peer) for message in messages}
            meetings = {(*way, end) for way in ways for end in (False, True)}
            if in_capture and not meetings <= self.world.met:
                raise Misuse("two GPUs are connected in a capture")
            self.world.met |= {(*way, way[1] == gpu) for way in ways}
            self.world.lock.notify_all()
            self.world.wait_until(lambda: meetings <= self.world.met, "connecting")
        self.driver._enqueue(stream, "exchange", ExchangeRun(self, gpu, tuple(messages), 1 if in_capture else None))

    def check(self):
        if self.world.is_over():
            raise RuntimeError("another rank failed")
        if set(self.gpus.values()) & self.world.lost:
            raise DriverError("ncclCommGetAsyncError", 6, "a connection is lost")

    def abort(self):
        with self.world.lock:
            self.aborted = True
            deadline = time.monotonic() + PATIENCE
            while self._has_graphs() and time.monotonic() < deadline:
                self.world.lock.wait(0.01)

    def close(self):
        if self._has_graphs():
            raise Misuse("communicators are destroyed before graphs that use them")
        self.closed = True

    def _has_graphs(self):
        graphs = [*self.driver.held["graph"].values(), *self.driver.held["instance"].values()]
        return any(node.label == "exchange" for graph in graphs for node in graph.nodes.values())


@dataclass(frozen=True)
class ExchangeRun:
    """What a node of a group does."""

    communicators: FakeCommunicators
    gpu: int
    messages: tuple
    capture: int | None

    def __call__(self):
        world = self.communicators.world
        ends = []
        with world.lock:
            for message in self.messages:
                end = End(message, self.capture, world.rng.randrange(world.patience))
                if message.incoming:
                    ctypes.memset(message.pointer, 0xCD, message.size)
                    world.awaited[message.peer, self.gpu].append(end)
                else:
                    if message.size <= EAGER_BYTES and world.rng.random() < 0.5:
                        end.data = ctypes.string_at(message.pointer, message.size)
                    world.sent[self.gpu, message.peer].append(end)
                ends.append(end)
        return Exchange(self.communicators, self.gpu, ends)


class Exchange(Running):
    def __init__(self, communicators, gpu, ends):
        self.communicators, self.gpu, self.ends = communicators, gpu, ends

    def has_ended(self):
        world = self.communicators.world
        with world.lock:
            if self.communicators.aborted:
                return True
            if world.is_over():
                raise RuntimeError("another rank failed")
            for end in self.ends:
                self._go_on(world, end)
            return all(end.ended for end in self.ends)

    def _go_on(self, world, end):
        pair = (end.message.peer, self.gpu) if end.message.incoming else (self.gpu, end.message.peer)
        sent, awaited = world.sent[pair], world.awaited[pair]
        while sent and awaited:
            sender, receiver = sent.popleft(), awaited.popleft()
            if sender.message.size != receiver.message.size:
                raise Misuse("a message is received with another size")
            if sender.capture != receiver.capture:
                raise Misuse("a message is captured at one end only")
            sender.partner, receiver.partner = receiver, sender
        if end.data is not None:
            end.ended = True
        if end.ended or end.partner is None:
            return
        end.left -= 1
        if end.left < 0:
            source, target = (end.partner, end) if end.message.incoming else (end, end.partner)
            if not end.copied:
                data = source.data or ctypes.string_at(source.message.pointer, source.message.size)
                ctypes.memmove(target.message.pointer, data, len(data))
                source.copied = target.copied = True
                world.delivered += 1
            end.ended = True
