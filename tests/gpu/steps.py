"""Where the time of a plan goes: each of its steps against the least that it could take, and PyTorch's time for the
same product or attention alone. For whoever has only the page to find out why a target was missed.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.streams import StepKind
from einc_runtime.execution.trace import task_kind
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Bundle, KernelTask, Operation, Region
from tests.gpu.ceilings import Ceilings
from tests.gpu.places import Place

AHEAD = 30.0
"""Milliseconds that the GPU has to do when the steps are enqueued, so that it does not wait for the host."""
COPIES = 5
"""Computations in a measurement of PyTorch's."""


def steps(executor: CudaExecutor, times: dict[str, float], ceilings: Ceilings, milliseconds: float) -> list[str]:
    """A table of the steps of a plan, those alike together, measured one by one on their streams.

    `milliseconds` is what a replay takes. Steps of several streams run beside each other, and take longer then.
    The least that they could take is what this GPU's ceilings allow. The milliseconds of products and attention go to
    `times`, by their names.
    """
    records: list[TaskRecord] = []
    for _ in range(min(100, math.ceil(AHEAD / max(milliseconds, 1e-3)))):
        executor.enqueue()
    executor.execute(records)
    bundle, tasks, schedule = executor.bundle, executor._plan.errors.tasks, executor._plan.schedule
    with_it = {  # what steps do besides their own task
        schedule.steps[step.after[0]].task: step.task
        for step in schedule.steps
        if step.stream is None and step.kind is StepKind.TASK and isinstance(tasks[step.task], KernelTask)
    }
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number, _lane, start, end in sorted(records, key=lambda record: record[2]):
        task = tasks[number]
        kind, bound = _kind(bundle, task), least(bundle, task, ceilings)
        if number in with_it:
            other = tasks[with_it[number]]
            kind += f" with {_kind(bundle, other)}"
            if "with map" not in kind:  # a map moves hardly more than is moved anyway
                bound += least(bundle, other, ceilings)
        groups.setdefault((task.serves, kind), []).append((1e3 * (end - start), bound))
        if kind.startswith(("contract", "attention")):
            both = f" and {tasks[with_it[number]].serves}" if "with contract" in kind else ""
            times.setdefault(task.serves + both, 1e3 * (end - start))
    lines = ["| for | step | count | ms each | ms in all | least, in all |", "| --- | --- | --- | --- | --- | --- |"]
    for (serves, kind), taken in groups.items():
        own, bound = (sum(times) for times in zip(*taken, strict=True))
        lines.append(f"| {serves} | {kind} | {len(taken)} | {own / len(taken):.4f} | {own:.4f} | {bound:.4f} |")
    first, last = (1e3 * of(record[place] for record in records) for of, place in ((min, 2), (max, 3)))
    busy = 1e3 * _covered([(start, end) for _, _, start, end in records])
    own, bound = (sum(sum(pair[place] for pair in taken) for taken in groups.values()) for place in (0, 1))
    told = f"All in {last - first:.3f} ms, of which some step ran in {busy:.3f}; steps together {own:.3f}, and "
    return [
        *lines,
        "",
        told + f"{bound:.3f} at {ceilings.bytes / 1e12:.3g} TB/s and {ceilings.operations / 1e12:.4g} TFLOP/s.",
    ]


def least(bundle: Bundle, task: AnyTask, ceilings: Ceilings) -> float:
    """Milliseconds for the bytes that a task reads and writes, or for its operations."""
    moved = sum(_bytes(bundle, region) for region in (*reads_of(task), *writes_of(task))) / ceilings.bytes
    if not isinstance(task, KernelTask):
        return 1e3 * moved
    function = bundle.operations[task.operation].functions[task.function]
    return 1e3 * max(moved, function.flops / ceilings.operations)


def by_pytorch(bundle: Bundle, alone: dict[str, dict[str, float]], place: Place) -> list[str]:
    """A line for every product of matrices and attention of a plan for one site: what PyTorch takes for it alone.

    The milliseconds go to `alone`, by the name of the operation and of who computed it. Of several layers, the first
    stands for all.
    """
    lines = []
    for operation in bundle.operations:
        if operation.kernel in ("contract", "attention") and not is_later_layer(operation.name):
            found = {how: milliseconds(call, place) for how, call in _calls(bundle, operation, place)}
            alone.setdefault(operation.name, {}).update({f"PyTorch's {how}": took for how, took in found.items()})
            told = ", ".join(f"{how} {took:.4f}" for how, took in found.items())
            lines.append(f"- PyTorch alone, {operation.name}: {told} ms")
    return lines


def is_later_layer(name: str) -> bool:
    """Whether an operation is that of a layer other than the first, by its name."""
    return re.search(r"\.[1-9]\d*\.", name) is not None


def _calls(bundle: Bundle, operation: Operation, place: Place) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"f16": torch.float16, "bf16": torch.bfloat16}
    kind = kinds.get(bundle.tensors[operation.inputs[0]].dtype, torch.float32)
    given = [
        torch.randn(bundle.tensors[position].shape, device=place.torch, dtype=kind) for position in operation.inputs[:3]
    ]
    if operation.kernel == "contract":
        equation = parse_index_equation(str(operation.kernel_attributes["equation"]))
        letter = dict(zip(dict.fromkeys(name for names in equation.inputs for name in names), string.ascii_letters))  # noqa: B905
        *sides, result = ("".join(letter[name] for name in names) for names in (*equation.inputs, equation.output))
        yield "einsum", lambda: torch.einsum(f"{','.join(sides)}->{result}", *given)
        return
    if given[0].shape[1] != given[1].shape[1]:
        return  # over caches: several sequences, which are no batch of equal ones
    q, k, v = (x[None] for x in given)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # by tokens, as in the plan
    backends = ("CUDNN_ATTENTION", "FLASH_ATTENTION") if place.torch == "cuda" else ("MATH",)

    def attend(backend: str) -> Any:
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            causal = bool(operation.kernel_attributes["causal"])
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    for backend in backends:
        try:
            attend(backend)
        except RuntimeError:
            continue  # it cannot, and says so in many words
        yield backend.lower(), lambda backend=backend: attend(backend)  # type: ignore[misc]


def milliseconds(call: Callable[[], Any], place: Place) -> float:
    """Of one of several computations in a row: on a GPU in a graph, so that nobody waits for the host."""
    import torch

    def several() -> None:
        for _ in range(COPIES):
            call()

    run: Callable[[], Any] = several
    several()
    place.wait()
    if place.torch == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            several()
        run = graph.replay
        run()
        place.wait()
    begin = perf_counter()
    run()
    place.wait()
    return 1e3 * (perf_counter() - begin) / COPIES


def _kind(bundle: Bundle, task: AnyTask) -> str:
    if not isinstance(task, KernelTask):
        return task_kind(task)
    operation = bundle.operations[task.operation]
    return f"{operation.kernel} {operation.name}"


def _bytes(bundle: Bundle, region: Region) -> int:
    extents = (up - lo for lo, up in zip(region.block.lower, region.block.upper, strict=True))
    return math.prod(extents) * ITEMSIZE[bundle.tensors[bundle.buffers[region.buffer].tensor].dtype]


def _covered(intervals: list[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
