"""Map joining: a contraction and the map of its result become one task, which needs no memory in between.

The contraction writes where the map's result goes, and the map works on that in place: each element is computed from
the one that lies there. A result that no cache holds is written and read at one place then, and not at two, and
convolutions compute many maps before they write. The values are the same.

Both run at the place of the map. This is right if nobody else reads the contraction's result, and if what the
contraction reads keeps its values and its bytes until the map has written, and is not where the map writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from einc_runtime.execution.rewrites.convolutions import read_convolution
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.epilogues import is_launch_product, list_contracted_operands
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.regions import ExecutablePlan, region_bytes, span
from einc_runtime.plan.schema import AnyTask, KernelTask, Operation

MIN_BYTES = 1 << 18
"""Smaller results stay in a core's cache between the two tasks."""


class JoinedMap(msgspec.Struct, frozen=True):
    """The map that a contraction's task also computes: its operation, and the position of the contraction's result
    among its operands. The map's other operands follow the contraction's among the task's reads."""

    operation: int
    operand: int


def find_joined_maps(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> dict[int, tuple[int, int]]:
    """For maps, by the position of their tasks, the contraction that can be joined to each, and the operand that it
    computes."""
    lifetimes: Lifetimes | None = None
    joined: dict[int, tuple[int, int]] = {}
    for number, candidates in list_contracted_operands(bundle, tasks, contracts=_contracts):
        for contraction, operand in sorted(candidates, reverse=True):
            then, first = tasks[number], tasks[contraction]
            assert isinstance(then, KernelTask)
            assert isinstance(first, KernelTask)
            if not are_alike(bundle, first, then, operand):
                continue
            lifetimes = lifetimes or Lifetimes(bundle, tasks)
            if _stays(bundle, lifetimes, first, then, contraction, number):
                joined[number] = contraction, operand
                break
    return joined


def _contracts(operation: Operation) -> bool:
    return is_launch_product(operation) or read_convolution(operation) is not None


def join(first: KernelTask, then: KernelTask, operand: int) -> KernelTask:
    """The task of a contraction with what the map of its result reads and writes."""
    further_reads = (region for position, region in enumerate(then.reads) if position != operand)
    return msgspec.structs.replace(first, reads=(*first.reads, *further_reads), writes=then.writes)


def are_alike(bundle: ExecutablePlan, first: KernelTask, then: KernelTask, operand: int) -> bool:
    """Whether the map computes each element of its result from the element of the operand that has the same indices
    and lies at the same place in memory."""
    (result,), (target,) = first.writes, then.writes
    kinds = [bundle.tensors[bundle.buffers[region.buffer].tensor] for region in (result, target)]
    names = parse_index_equation(str(bundle.operations[then.operation].kernel_attributes["indices"]))
    return (
        region_bytes(bundle, target) >= MIN_BYTES
        and result.block == target.block
        and len({(kind.dtype, kind.order) for kind in kinds}) == 1
        and names.inputs[operand] == names.output
        and all(len(set(indices_of_operand)) == len(indices_of_operand) for indices_of_operand in names.inputs)
    )


def _stays(
    bundle: ExecutablePlan, lifetimes: Lifetimes, first: KernelTask, then: KernelTask, start: int, end: int
) -> bool:
    """Whether all that the contraction at `start` reads is there until the map at `end` has written elsewhere."""
    target = then.writes[0].buffer
    low, high = span(bundle, target)
    for region in first.reads:
        buffer = region.buffer
        writers = lifetimes.writers.get(buffer, [])
        later = bisect_right(writers, start)
        if (later < len(writers) and writers[later] <= end) or lifetimes.loses_bytes(buffer, start, end):
            return False
        begin, stop = span(bundle, buffer)
        if bundle.buffers[buffer].site == bundle.buffers[target].site and begin < high and low < stop:
            return False
    return True
