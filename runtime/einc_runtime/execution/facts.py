"""What an executor says about how it runs a plan, as records. `list_facts` makes of them what `run --json` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostMemoryFacts:
    """Bytes: the arenas of the plan, the kernels' scratch space, prepacked weights, loaded weights that nobody reads
    once those are made, and the most that the process has held (None where the system does not say)."""

    plan: int
    scratch: int
    packed: int
    released: int
    process: int | None


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The threads, the tasks that are run, their memory, and which library multiplies and why."""

    workers: int
    tasks: int
    memory_bytes: HostMemoryFacts
    libraries: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU, the plan's sites that are on it, and the bytes that it holds."""

    device: int
    name: str
    architecture: str
    sites: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The size of the captured graph."""

    steps: int
    streams: int
    events: int
    waits: int


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """How many tasks a kernel of a library runs."""

    kernel: str
    provider: str
    version: str
    variant: str
    tasks: int


@dataclass(frozen=True, slots=True)
class CudaFacts:
    """The GPUs, the graph, kernels by library, and for how many microseconds the host launched the graph last."""

    devices: tuple[DeviceFacts, ...]
    graph: GraphFacts
    kernels: tuple[KernelFacts, ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    host_us: float


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """What one backend says of itself. Where several processes run a plan, `ranks` is their number, and `messages` that
    of the messages which this one sends and receives."""

    ranks: int | None = None
    messages: int | None = None
    cpu: CpuFacts | None = None
    cuda: CudaFacts | None = None


def list_facts(facts: ExecutionFacts) -> dict[str, Any]:
    """The fields of a JSON document: those of the backend stand beside the others."""
    ranks = {"ranks": facts.ranks, "messages": facts.messages}
    listed = {name: count for name, count in ranks.items() if count is not None}
    for backend in (facts.cpu, facts.cuda):
        listed |= {} if backend is None else dataclasses.asdict(backend)
    return listed
