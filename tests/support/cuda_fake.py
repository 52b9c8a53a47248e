"""A fake of the driver of CUDA that records and checks every call, on memory of the host.

What is enqueued, a graph included, runs only when a call waits for it. Then it runs in a random order that streams and
events allow, so that a forgotten dependency shows as a wrong result in some order. Addresses are real.
"""

from __future__ import annotations

import ctypes
from collections import Counter

import numpy as np

from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.kernels.gpu import GpuTarget
from tests.support.cuda_fake_queue import Event, Graph, Misuse, Node, PendingWork, Stream
from tests.support.cuda_fake_virtual import KINDS, FakeVirtualMemory

PITCH = 256

IN_CAPTURE = {"use", "record", "wait", "copy_async", "kernel", "exchange", "end_capture"}
"""The calls that are allowed while a stream is being captured: none that waits, takes or releases something."""


def checked_call(method):
    """Records a call, may let it fail, and refuses it in a capture unless it is allowed there."""
    name = method.__name__

    def call(self, *arguments, **named):
        self._note(name, arguments)
        return method(self, *arguments, **named)

    return call


def releasing_call(method):
    """Records a call that releases; its argument counts as released even where the call fails."""
    name = method.__name__

    def call(self, *arguments):
        method(self, *arguments)
        self._note(name, arguments)

    return call


class FakeDriver(PendingWork):
    """`fail_at` makes that call (counting from 0) fail, once or from there on (`lost`); `unreachable` are pairs.

    `refused` are pairs of devices that could reach each other, but access to no more peers is given. `multicast` is the
    unit in bytes of multicast memory, 0 where there is none, and None where there is no memory by handles. `bus` is the
    beginning of its devices' addresses, and `silent` are pairs of which the first sets no flags at the second.
    """

    def __init__(
        self, devices=1, *, memory=1 << 30, unreachable=(), refused=(), seed=0, fail_at=None, lost=False, status=719,
        multicast=None, bus="0000", silent=(),
    ):  # fmt: skip
        self.devices, self.memory_bytes, self.unreachable = devices, memory, set(unreachable)
        self.refused, self.bus, self.silent = set(refused), bus, set(silent)
        self.gathered = 0  # results that kernels with flags have written to peers
        super().__init__(seed)
        self.fail_at, self.lost, self.status = fail_at, lost, status
        self.calls: list[tuple[str, tuple]] = []
        self.misused: list[str] = []  # what could not be raised
        self.held: dict[str, dict[int, object]] = {
            kind: {} for kind in ("memory", "host", "stream", "event", "graph", "instance", *KINDS)
        }
        self.virtual = None if multicast is None else FakeVirtualMemory(self, multicast)
        self.peers: set[tuple[int, int]] = set()
        self.origin = -1
        self.broken = False
        self.current = 0

    # For tests

    @property
    def counts(self):
        return Counter(name for name, _ in self.calls)

    def leaks(self):
        assert not self.misused
        return {kind: len(objects) for kind, objects in self.held.items() if objects}

    def kernel(self, stream, label, run):
        """What a kernel's launch calls."""
        self._note("kernel", (stream, label))
        if self.held["stream"][stream].device != self.current:
            raise Misuse(f"{label} is launched on device {self.current}, and its stream is of another")
        self._enqueue(stream, label, run)

    # Machinery

    def _note(self, name, arguments):
        number = len(self.calls)
        self.calls.append((name, arguments))
        if self.capture is not None and name not in IN_CAPTURE and not self.broken:
            self.broken = True
            raise Misuse(f"{name} while a stream is being captured")
        if self.fail_at is not None and (number == self.fail_at or (self.lost and number > self.fail_at)):
            self.broken = self.capture is not None
            if name == "end_capture":
                self._end()
            raise DriverError(name, self.status, "injected")

    def device_of(self, number):
        return self.held["stream"][self.nodes[number].stream].device

    def _handle(self, kind, value):
        self._next += 1
        self.held[kind][self._next] = value
        return self._next

    def _drop(self, kind, handle):
        if handle not in self.held[kind]:
            raise Misuse(f"{kind} {handle} is released twice, or never was")
        del self.held[kind][handle]

    def _enqueue(self, stream, label, run):
        return self.enqueue(stream, self.held["stream"][stream], label, run)

    def _inside(self, pointer, pitch, width, height, *, pinned_only=True):
        """The device of a range of live memory; None for the host's."""
        last = pointer + pitch * (height - 1) + width
        for kind in ("memory", "host"):
            for start, (array, device) in self.held[kind].items():
                if start <= pointer and last <= start + array.size:
                    return device
        mapped = None if self.virtual is None else self.virtual.device_of(pointer, last)
        if mapped is not None:
            return mapped
        if pinned_only:
            raise Misuse("a copy touches memory that is neither a device's nor pinned, or leaves it")
        return None

    def _rows(self, target, target_pitch, source, source_pitch, width, height):
        if height > 1 and min(target_pitch, source_pitch) < width:
            raise Misuse("rows overlap")
        for row in range(height):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

    # Devices

    @checked_call
    def device_count(self):
        return self.devices

    @checked_call
    def target(self, device):
        return GpuTarget(device, f"Fake {device}", (9, 0), 132)

    @checked_call
    def address(self, device):
        return f"{self.bus}:{device}"

    @checked_call
    def use(self, device):
        self.current = device

    @checked_call
    def memory(self, device):
        self.current = device
        used = sum(array.size for array, owner in self.held["memory"].values() if owner == device)
        return self.memory_bytes - used, self.memory_bytes

    @checked_call
    def can_reach(self, device, peer):
        return (device, peer) not in self.unreachable

    @checked_call
    def enable_peer(self, device, peer):
        if (device, peer) in self.unreachable or device == peer:
            raise Misuse("access that cannot be")
        if (device, peer) in self.refused:
            raise DriverError("enable_peer", 711, "too many peers")
        self.peers.add((device, peer))

    @checked_call
    def can_signal(self, device, peer):
        return (device, peer) not in self.silent

    @checked_call
    def synchronize(self, device):
        self.current = device
        self.flush()

    # Memory

    @checked_call
    def allocate(self, device, size):
        if size <= 0:
            raise Misuse("an empty allocation")
        raw = np.full(size + PITCH, 0xAB, np.uint8)
        start = -raw.ctypes.data % PITCH
        array = raw[start : start + size]
        self.held["memory"][array.ctypes.data] = array, device
        return array.ctypes.data

    @releasing_call
    def free(self, device, pointer):
        self._drop("memory", pointer)

    @checked_call
    def allocate_host(self, size):
        array = np.full(size, 0xAB, np.uint8)
        self.held["host"][array.ctypes.data] = array, None
        return array.ctypes.data

    @releasing_call
    def free_host(self, pointer):
        self._drop("host", pointer)

    @checked_call
    def fill_bytes(self, device, pointer, value, size):
        if self._inside(pointer, size, size, 1) != device:
            raise Misuse("memory of another device")
        self.flush()
        ctypes.memset(pointer, value, size)

    @checked_call
    def copy(self, device, target, target_pitch, source, source_pitch, width, height):
        ends = [self._inside(target, target_pitch, width, height, pinned_only=False),
                self._inside(source, source_pitch, width, height, pinned_only=False)]  # fmt: skip
        if sorted(ends, key=str) != sorted([device, None], key=str):
            raise Misuse("a copy that is not between this device and the host")
        # Our streams do not wait for the default one, nor it for them: what is pending may run before or after.
        if self.rng.random() < 0.5:
            self.flush()
        self._rows(target, target_pitch, source, source_pitch, width, height)

    @checked_call
    def copy_async(self, target, target_pitch, source, source_pitch, width, height, stream):
        ends = {self._inside(target, target_pitch, width, height), self._inside(source, source_pitch, width, height)}
        ends.discard(None)
        device = self.held["stream"][stream].device
        if device not in ends:
            raise Misuse("a stream of a device that has no part in the copy")
        arguments = target, target_pitch, source, source_pitch, width, height

        def run():  # also in every replay of a graph
            if self.virtual is not None:
                for pointer in (target, source):
                    self.virtual.require_access(device, pointer)
            if len(ends) == 2 and tuple(ends) not in self.peers:
                raise Misuse("a copy between devices without access")
            self._rows(*arguments)

        self._enqueue(stream, "copy", run)

    @checked_call
    def virtual_memory(self):
        return self.virtual

    # Streams and events

    @checked_call
    def create_stream(self, device):
        return self._handle("stream", Stream(device))

    @releasing_call
    def destroy_stream(self, stream):
        if self.held["stream"][stream].captured is not None:
            raise Misuse("a stream is destroyed while it is being captured")
        self._drop("stream", stream)

    @checked_call
    def create_event(self, device, *, timing):
        return self._handle("event", Event(device, timing))

    @releasing_call
    def destroy_event(self, event):
        self._drop("event", event)

    @checked_call
    def record(self, event, stream):
        held_event, known = self.held["event"][event], self.held["stream"][stream]
        if held_event.device != known.device:
            raise Misuse("an event is recorded on a stream of another device")
        held_event.in_capture = known.captured is not None
        if held_event.in_capture:
            if held_event.timing:
                raise Misuse("a captured event has no time")
            held_event.after, held_event.node = known.captured, None
        else:
            held_event.node = self._enqueue(stream, "record", None)
            held_event.after = known.after

    @checked_call
    def wait(self, stream, event):
        held_event, known = self.held["event"][event], self.held["stream"][stream]
        if held_event.after is None:
            raise Misuse("an event that was never recorded is waited for")
        if held_event.in_capture:
            if self.capture is None:
                raise Misuse("an event of a capture that is over")
            known.captured = (known.captured or frozenset()) | held_event.after
            self.capture.joined.add(stream)
        elif known.captured is not None:
            raise Misuse("a capture waits for what is outside of it")
        else:
            known.after = known.after | held_event.after

    @checked_call
    def wait_on_host(self, event):
        if self.held["event"][event].node is None:
            raise Misuse("an event that was not recorded outside of a capture")
        self.flush()

    @checked_call
    def has_happened(self, event):
        if self.held["event"][event].node is None:
            raise Misuse("an event that was not recorded outside of a capture")
        self.advance()
        return self.held["event"][event].node in self.times

    @checked_call
    def elapsed_ms(self, start, end):
        first, last = self.held["event"][start], self.held["event"][end]
        if not (first.timing and last.timing) or first.device != last.device:
            raise Misuse("events that cannot be compared")
        if first.node not in self.times or last.node not in self.times:
            raise Misuse("events that have not come yet")
        return self.times[last.node] - self.times[first.node]

    # Graphs

    @checked_call
    def begin_capture(self, stream):
        if self.capture is not None:
            raise Misuse("two captures at once")
        self.flush()
        self.capture, self.origin, self.broken = Graph(), stream, False
        self.capture.joined.add(stream)
        self.held["stream"][stream].captured = frozenset()

    @checked_call
    def end_capture(self, stream):
        if self.capture is None or stream != self.origin:
            raise Misuse("a capture ends where it did not begin")
        graph, broken = self.capture, self.broken
        ends = {s: self.held["stream"][s].captured for s in graph.joined}
        self._end()
        if broken:
            raise DriverError("end_capture", 901, "the capture is broken")
        seen: set[int] = set()
        pending = list(ends[stream])
        while pending:
            n = pending.pop()
            if n not in seen:
                seen.add(n)
                pending += graph.nodes[n].after
        if any(not tail <= seen for tail in ends.values()) or seen != set(graph.nodes):
            raise DriverError("end_capture", 904, "a stream was not joined back")
        return self._handle("graph", graph)

    def _end(self):
        for held_stream in self.held["stream"].values():
            held_stream.captured = None
        self.capture = None

    @checked_call
    def instantiate(self, graph):
        return self._handle("instance", self.held["graph"][graph])

    @releasing_call
    def destroy_graph(self, graph):
        self._drop("graph", graph)

    @releasing_call
    def destroy_instance(self, instance):
        self._drop("instance", instance)

    @checked_call
    def upload(self, instance, stream):
        assert instance in self.held["instance"]
        assert stream in self.held["stream"]

    @checked_call
    def launch(self, instance, stream):
        graph, held_stream = self.held["instance"][instance], self.held["stream"][stream]
        base, offset = held_stream.after, self._next + 1
        for n, node in sorted(graph.nodes.items()):
            after = frozenset(p + offset for p in node.after) or base
            self.nodes[n + offset] = Node(node.label, node.stream, after, node.run)
        self._next += offset + 1
        held_stream.after = frozenset(n + offset for n in graph.nodes) or base
