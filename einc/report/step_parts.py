"""What the memory and the time of a training step are for: weights, moments, activations, gradients, exchanges; and the
passes forward and backward, and the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from einc_runtime.plan.regions import buffer_bytes, reads_of, writes_of
from einc_runtime.plan.schema import Bundle, KernelTask
from einc_runtime.plan.states import find_updates, is_weight
from einc_runtime.text import format_memory

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_MEMORY_KINDS = ("weights", "moments", "inputs", "activations", "gradients", "updates", "exchanges")
_VALUES = {FORWARD: "activations", BACKWARD: "gradients", OPTIMIZER: "updates"}
"""What is computed in each part of a step."""


def describe_step(bundle: Bundle, operations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The bytes of the fullest site by kind, and what each part of a step adds to the critical path, in ms.

    `memory_bytes` counts what is kept from run to run, and of all else what is in use at once when that is most, in the
    order of the tasks: `exchanges` are blocks that came from other sites or were put together there. It is None for a
    plan that says a layer once. `critical_ms` is None where `operations`, those of `einc explain`, have no times. None
    for a plan that is no training step.
    """
    if not any(is_weight(bundle.tensors[state]) for state in find_updates(bundle.operations).values()):
        return None  # steps of decoding write over caches alone
    parts = _find_parts(bundle)
    time: dict[str, float] | None = dict.fromkeys((FORWARD, BACKWARD, OPTIMIZER), 0.0)
    for row in operations:
        if row["time"] is None or time is None or row["name"] not in parts:
            time = None
        else:
            time[parts[row["name"]]] += row["time"]["critical_ms"]
    memory = _measure_memory(bundle, parts) if bundle.repetition is None else None
    return {"memory_bytes": memory, "critical_ms": time}


def _find_parts(bundle: Bundle) -> dict[str, str]:
    """The part of the step that each operation is of, by its name: what the loss follows from; what follows from
    gradients of weights, or from the learning rate; and all else, which makes gradients."""
    from einc.training.control import CHANGES  # most plans are no steps, and to load these takes 30 ms
    from einc.training.gradients import GRADIENT
    from einc.training.steps import LEARNING_RATE, STEP

    tensors, updates = bundle.tensors, find_updates(bundle.operations)
    needed, forward = {bundle.outputs[0].tensor}, set[str]()
    for operation in reversed(bundle.operations):
        if not needed.isdisjoint(operation.outputs):
            forward.add(operation.name)
            needed.update(operation.inputs)
    first = {GRADIENT.format(tensor.name) for tensor in tensors if is_weight(tensor)} | {LEARNING_RATE, STEP, CHANGES}
    late = {number for number, tensor in enumerate(tensors) if tensor.name in first}
    parts: dict[str, str] = {}
    for operation in bundle.operations:
        if operation.outputs[0] in updates or not late.isdisjoint(operation.inputs):
            parts[operation.name] = OPTIMIZER
            late.update(operation.outputs)
        else:
            parts[operation.name] = FORWARD if operation.name in forward else BACKWARD
    return parts


def _measure_memory(bundle: Bundle, parts: Mapping[str, str]) -> dict[str, int]:
    site = max(range(len(bundle.memory)), key=lambda number: bundle.memory[number])
    made_by = {tensor: parts[operation.name] for operation in bundle.operations for tensor in operation.outputs}
    kernel_writes: set[int] = set()
    spans: dict[int, tuple[int, int]] = {}
    for number, task in enumerate(bundle.tasks):
        for region in (*reads_of(task), *writes_of(task)):
            first, _ = spans.get(region.buffer, (number, number))
            spans[region.buffer] = first, number
        if isinstance(task, KernelTask):
            kernel_writes.update(region.buffer for region in task.writes)
    kept: Counter[str] = Counter()
    changes: dict[int, Counter[str]] = {}
    for number, buffer in enumerate(bundle.buffers):
        if buffer.site != site or number not in spans:
            continue
        tensor = bundle.tensors[buffer.tensor]
        size, (first, last) = buffer_bytes(bundle, buffer), spans[number]
        if buffer.role == "state":  # its new contents lie at the bytes of the old ones
            kept["weights" if is_weight(tensor) else "moments"] += size if tensor.kind == "state" else 0
        elif buffer.role in ("input", "weight"):
            kept["inputs" if buffer.role == "input" else "weights"] += size
        else:
            kind = _VALUES[made_by[buffer.tensor]] if number in kernel_writes else "exchanges"
            changes.setdefault(first, Counter())[kind] += size
            changes.setdefault(last + 1, Counter())[kind] -= size
    live: Counter[str] = Counter()
    most = live.copy()
    for at in sorted(changes):
        live.update(changes[at])
        if live.total() > most.total():
            most = live.copy()
    return {kind: kept[kind] + most[kind] for kind in _MEMORY_KINDS if kept[kind] + most[kind] > 0}


def format_step(step: dict[str, Any] | None) -> list[str]:
    """Two lines on it."""
    if step is None:
        return []
    memory, time, lines = step["memory_bytes"], step["critical_ms"], []
    if memory is not None:
        sizes = ", ".join(f"{kind} {format_memory(size)}" for kind, size in memory.items())
        lines.append(f"memory of the fullest site: {sizes}")
    if time is not None and (total := sum(time.values())):
        shares = ", ".join(f"{part} {ms / total:.0%}" for part, ms in time.items())
        lines.append(f"time of a step: {shares}, each with its exchanges")
    return lines
