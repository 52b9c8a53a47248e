"""The canonical text of a device program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einc.exchange.language.printer import print_program
from einc.physical.program import DeviceProgram, Exchange, Region, Task, TaskKind


def dump(program: DeviceProgram) -> str:
    """Sites, memory, buffers, exchanges and tasks; equal programs have equal texts."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: DeviceProgram) -> Iterator[str]:
    graph = program.plan.graph
    yield f"device program {graph.name}: {program.plan.sites} sites"
    yield ""
    yield "memory"
    for site, size in enumerate(program.memory):
        yield f"  site {site}: {size} bytes"
    yield ""
    yield "buffers"
    for b, (buffer, offset) in enumerate(zip(program.buffers, program.offsets, strict=True)):
        where = f"site {buffer.site} + {offset}"
        yield f"  b{b} = {buffer.dtype} {buffer.tensor}{buffer.block} at {where}, {buffer.role.value}"
    positions: dict[str, list[int]] = {}
    for position, task in enumerate(program.tasks):
        positions.setdefault(task.node, []).append(position)
    for node, sites, exchange in zip(graph.nodes, program.sites, program.exchanges, strict=True):
        yield ""
        yield f"operator {node.name} ({node.operator.title}) on sites {', '.join(map(str, sites))}"
        yield from _exchange(exchange)
        # an output of the same name comes after the kernels and is told below
        yield from _tasks(program, _until_kernels(program, positions.get(node.name, [])))
    for output in program.outputs:
        yield ""
        yield f"output {output.tensor} = {_regions(output.regions)}"
        yield from _exchange(output.exchange)
        own = positions.get(output.tensor, [])
        yield from _tasks(program, own[len(_until_kernels(program, own)) :])


def _until_kernels(program: DeviceProgram, positions: list[int]) -> list[int]:
    """The leading tasks up to the last kernel."""
    kernels = [i for i, position in enumerate(positions) if program.tasks[position].kind is TaskKind.KERNEL]
    return positions[: kernels[-1] + 1] if kernels else []


def _exchange(exchange: Exchange | None) -> Iterator[str]:
    if exchange is not None:
        yield "  exchange" + (" (naive)" if exchange.naive else "")
        for line in print_program(exchange.program).splitlines():
            yield f"    {line}".rstrip()


def _tasks(program: DeviceProgram, positions: Sequence[int]) -> Iterator[str]:
    for position in positions:
        yield f"  t{position} = {_task(program.tasks[position])}"


def _task(task: Task) -> str:
    what = task.kind.value
    if task.function is not None:
        what += f" {task.function}"
    if task.aggregation is not None:
        what += f" {task.aggregation}"
    text = f"{what} at {task.site}"
    if task.reads or task.writes:
        text += f": {_regions(task.reads)} -> {_regions(task.writes)}"
    return text + (f" after {', '.join(f't{before}' for before in task.after)}" if task.after else "")


def _regions(regions: Sequence[Region]) -> str:
    return ", ".join(f"b{region.buffer}{region.block}" for region in regions)
