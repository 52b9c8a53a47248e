"""The canonical text of a device program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einc.physical.program import DeviceProgram
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, Exchange, KernelTask, Region


def dump(program: DeviceProgram) -> str:
    """Sites, memory, buffers, exchanges and tasks; equal programs have equal texts."""
    return "\n".join(_format_lines(program)) + "\n"


def _format_lines(program: DeviceProgram) -> Iterator[str]:
    yield f"device program {program.plan.graph.name}: {program.plan.sites} sites"
    yield ""
    yield "memory"
    for site, size in enumerate(program.memory):
        yield f"  site {site}: {size} bytes"
    yield ""
    yield "buffers"
    for b, buffer in enumerate(program.buffers):
        tensor = program.tensors[buffer.tensor]
        where = f"site {buffer.site} + {buffer.offset}"
        yield f"  b{b} = {tensor.dtype} {tensor.name}{buffer.block} at {where}, {buffer.role}"
    positions: dict[str, list[int]] = {}
    for position, task in enumerate(program.tasks):
        positions.setdefault(task.serves, []).append(position)
    for operation in program.operations:
        sites = ", ".join(str(function.site) for function in operation.functions)
        yield ""
        yield f"operator {operation.name} ({operation.title}) on sites {sites}"
        yield from _format_exchange(operation.exchange)
        # The tasks of an output of the same name come after the kernels; they are listed with the output below.
        yield from _format_tasks(program, _take_until_kernels(program, positions.get(operation.name, [])))
    for output in program.outputs:
        name = program.tensors[output.tensor].name
        yield ""
        yield f"output {name} = {_format_regions(output.regions)}"
        yield from _format_exchange(output.exchange)
        task_positions = positions.get(name, [])
        yield from _format_tasks(program, task_positions[len(_take_until_kernels(program, task_positions)) :])


def _take_until_kernels(program: DeviceProgram, positions: list[int]) -> list[int]:
    """The leading tasks up to the last kernel."""
    kernels = [i for i, position in enumerate(positions) if isinstance(program.tasks[position], KernelTask)]
    return positions[: kernels[-1] + 1] if kernels else []


def _format_exchange(exchange: Exchange | None) -> Iterator[str]:
    if exchange is not None:
        yield "  exchange" + (" (naive)" if exchange.naive else "")
        for line in exchange.program.splitlines():
            yield f"    {line}".rstrip()


def _format_tasks(program: DeviceProgram, positions: Sequence[int]) -> Iterator[str]:
    for position in positions:
        yield f"  t{position} = {_format_task(program.tasks[position])}"


def _format_task(task: AnyTask) -> str:
    kind = str(task.__struct_config__.tag)
    if isinstance(task, KernelTask):
        kind += f" {task.function}"
    if isinstance(task, AggregateTask):
        kind += f" {task.aggregation}"
    text = f"{kind} at {task.site}"
    reads, writes = reads_of(task), writes_of(task)
    if reads or writes:
        text += f": {_format_regions(reads)} -> {_format_regions(writes)}"
    return text + (f" after {', '.join(f't{before}' for before in task.after)}" if task.after else "")


def _format_regions(regions: Sequence[Region]) -> str:
    return ", ".join(f"b{region.buffer}{region.block}" for region in regions)
