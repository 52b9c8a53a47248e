"""Proves from a bundle alone that its task graph computes what its operations say, in every order it may run in.

The tasks are executed symbolically: `contents` follows which partial outputs every element of every buffer
combines, and that no two tasks race. A kernel must read values that combine the outputs of all functions of their
producer that share the block (the aggregate step of the paper, Definition 6), each exactly once; so must every output.
What the kernels compute is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from einc_runtime.errors import PlanFault
from einc_runtime.plan.boxes import StepBudget
from einc_runtime.plan.contents import LOADED, Content, Contents
from einc_runtime.plan.joint_aggregation import AggregationGroup, aggregation_groups
from einc_runtime.plan.reachability import Ordering
from einc_runtime.plan.schema import (
    AggregateTask,
    AnyTask,
    Block,
    Bundle,
    CopyTask,
    FenceTask,
    KernelTask,
    TransferTask,
)
from einc_runtime.plan.validation import validate

MAX_STEPS = 30_000_000
"""Pieces of contents and earlier accesses that may be looked at: some tens of seconds."""


def prove(bundle: Bundle) -> None:
    """Raises PlanFault, naming task, operation and region, at the first thing that does not hold."""
    validate(bundle)
    ordering = Ordering(bundle.tasks)
    budget = StepBudget(MAX_STEPS)
    contents = Contents(bundle, ordering, budget)
    complete = _complete(bundle)
    groups = aggregation_groups(bundle)
    for position, task in enumerate(bundle.tasks):
        ordering.enter(position)
        _execute(bundle, position, task, contents, complete, groups, budget)
    for i, output in enumerate(bundle.outputs):
        for k, region in enumerate(output.regions):
            where = f"outputs[{i}].regions[{k}] ('{bundle.tensors[output.tensor].name}')"
            _require(contents.read(region, where), complete[output.tensor], where)


Complete = dict[int, int]
"""For every function of a tensor's producer, the mask of all functions that share its output block."""


def _complete(bundle: Bundle) -> list[Complete]:
    """Per tensor; inputs and weights count as the output of one function."""
    table: list[Complete] = [{0: LOADED} for _ in bundle.tensors]
    for operation in bundle.operations:
        for j, tensor in enumerate(operation.outputs):
            masks: Counter[Block] = Counter()
            for f, function in enumerate(operation.functions):
                masks[function.outputs[j]] += 1 << f
            table[tensor] = {f: masks[function.outputs[j]] for f, function in enumerate(operation.functions)}
    return table


def _execute(
    bundle: Bundle,
    position: int,
    task: AnyTask,
    contents: Contents,
    complete: Sequence[Complete],
    groups: Mapping[int, AggregationGroup],
    budget: StepBudget,
) -> None:
    """All reads of a task come before its writes, so that a task that overlaps with itself is found out."""
    where = f"tasks[{position}]"
    if isinstance(task, FenceTask):
        return
    if isinstance(task, KernelTask):
        operation = bundle.operations[task.operation]
        where = f"{where} (operation '{operation.name}', function {task.function}, site {task.site})"
        for k, region in enumerate(task.reads):
            at = f"{where}.reads[{k}]"
            _require(contents.read(region, at, position), complete[operation.inputs[k]], at)
        for j, region in enumerate(task.writes):
            contents.write(region, [(region.block, 1 << task.function)], f"{where}.writes[{j}]", position)
        return
    where = f"{where} (for '{task.serves}', site {task.site})"
    if isinstance(task, TransferTask):
        contents.write(task.write, contents.read(task.read, f"{where}.read", position), f"{where}.write", position)
    elif isinstance(task, CopyTask):
        found = [contents.read(region, f"{where}.reads[{k}]", position) for k, region in enumerate(task.reads)]
        for k, (region, content) in enumerate(zip(task.writes, found, strict=True)):
            contents.write(region, content, f"{where}.writes[{k}]", position)
    elif isinstance(task, AggregateTask):
        group = groups[bundle.buffers[task.writes[0].buffer].tensor]
        _aggregate(position, task, group, contents, budget, where)
    else:
        assert_never(task)


def _require(content: Content, complete: Complete, where: str) -> None:
    """Every element combines all that it must."""
    for block, mask in content:
        lowest = (mask & -mask).bit_length() - 1
        lacking = complete[lowest] & ~mask
        if lacking:
            message = f"{block} combines functions {_functions(mask)} of its producer"
            raise PlanFault(f"{message}, and lacks {_functions(lacking)}", where=where)


def _aggregate(
    position: int,
    task: AggregateTask,
    group: AggregationGroup,
    contents: Contents,
    budget: StepBudget,
    where: str,
) -> None:
    """Adds up each member on its own; that they are tuples is that every copy has the same in all members."""
    members = len(task.writes)
    found = [contents.read(region, f"{where}.reads[{k}]", position) for k, region in enumerate(task.reads)]
    totals: list[Content] = found[:members]
    for first in range(0, len(found), members):
        _require_tuple(found[first : first + members], group, budget, f"{where}.reads[{first}]")
        for n in range(members if first else 0):
            at = f"{where}.reads[{first + n}]"
            budget.spend(len(totals[n]) * len(found[first + n]), at)
            totals[n] = _combine(totals[n], found[first + n], at)
    for n, (region, total) in enumerate(zip(task.writes, totals, strict=True)):
        contents.write(region, total, f"{where}.writes[{n}]", position, in_place=region == task.reads[n])


def _require_tuple(copy: Sequence[Content], group: AggregationGroup, budget: StepBudget, where: str) -> None:
    """Elements that are combined as one tuple combine the same functions so far.

    Elements belong to one tuple if they agree in the dimensions that both have, those in `whole` apart.
    """
    if len(copy) == 1:
        return
    for n, (content, dims) in enumerate(zip(copy, group.dims, strict=True)):
        if n == 0 and not group.whole:
            continue
        budget.spend(len(copy[0]) * len(content), where)
        for block, mask in copy[0]:
            shadow = block.projected(dims)
            for other, more in content:
                if mask != more and _meet(shadow, other, [d in group.whole for d in dims]):
                    message = f"{other} of member {n} combines functions {_functions(more)}"
                    belongs = f"{block} of the primary, {_functions(mask)}"
                    raise PlanFault(f"{message}, and what belongs to it, {belongs}", where=where)


def _meet(a: Block, b: Block, apart: Sequence[bool]) -> bool:
    """Whether two blocks have elements that agree in all dimensions but those set apart."""
    bounds = zip(a.lower, a.upper, b.lower, b.upper, apart, strict=True)
    return all(free or (lo < end and start < up) for lo, up, start, end, free in bounds)


def _combine(left: Content, right: Content, where: str) -> Content:
    """Two contents of one block, added up piece by piece."""
    combined = []
    for block, mask in left:
        for other, more in right:
            common = block if block == other else block.intersect(other)
            if common is None:
                continue
            if mask & more:
                message = f"{common} counts functions {_functions(mask & more)} of its producer twice"
                raise PlanFault(message, where=where)
            combined.append((common, mask | more))
    return combined


def _functions(mask: int) -> str:
    """The members of a mask, the first few of many."""
    members = [f for f in range(mask.bit_length()) if mask >> f & 1]
    return "{" + ", ".join(map(str, members[:8])) + (", ...}" if len(members) > 8 else "}")
