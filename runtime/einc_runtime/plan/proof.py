"""Proves from a plan alone that its tasks compute what its operations say, in every order that dependencies allow.

First, of every operation, when the plan is read (`meaning.operations`): its kernel with attributes, the types of its
outputs, how partial outputs are aggregated, and the blocks that each function reads and writes follow from its family,
its attributes, its input tensors and the intervals of its cut.

Then, of the tasks: every element that a kernel reads, and every element of an output, combines the outputs of all
functions of its producer that share the block, each exactly once (the aggregate step of the paper, Definition 6); and
no two tasks that may run at the same time access the same bytes, unless both only read them. So every order that the
dependencies allow gives the same result, up to the rounding of the order of aggregation that each task states.

A plan that is said to be reproducible combines no partial results but those that are compared, and asks for kernels
that compute in one order (`reproducible.py`). Then the results have the same bits for any number of sites.

Replicas count as one function: validation has found that they read and write the same blocks, every kernel is proved to
read complete values, and so each replica's output may stand for that of another, but not be aggregated with it.

What is assumed: each kernel computes what its name and attributes say (the tests of kernels compare that with
definitions).

How: the tasks are executed symbolically in the order of their positions. `symbolic_memory` keeps, for every element of
every buffer, the set of functions that it combines, and checks each access for races. The order in which an aggregation
adds its copies is that of `reads` in its task. Whoever wants this order to be a certain one for the whole tensor keeps
it beside the set: `_combine` is where two contents become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from einc_runtime.errors import PlanFault
from einc_runtime.plan.boxes import StepBudget
from einc_runtime.plan.joint_aggregation import AggregationGroup, aggregation_groups
from einc_runtime.plan.reachability import TaskAncestors
from einc_runtime.plan.repetition import unfold
from einc_runtime.plan.reproducible import require_reproducible
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
from einc_runtime.plan.states import IN_PLACE
from einc_runtime.plan.symbolic_memory import LOADED, Content, SymbolicMemory
from einc_runtime.plan.validation import validate

MAX_PROOF_STEPS = 30_000_000
"""The most pieces of contents and earlier accesses that are looked at: some tens of seconds."""

PROVED = (
    "every operation's kernel, its attributes and operands, the types of its results and how these are aggregated "
    "follow from its family, attributes and input tensors",
    "the blocks that each function reads and writes follow from the operation and the intervals of its cut",
    "every kernel and every output reads complete data, whatever order the tasks run in: what all functions of its "
    "producer contribute to an element, each once",
    "no two tasks race",
)
"""What `prove` has proved of a plan, in words. `docs/proof.md` explains each of them."""


def prove(bundle: Bundle) -> None:
    """Raises PlanFault, naming the task, operation and region, at the first thing that does not hold."""
    bundle = unfold(bundle)
    validate(bundle)
    prove_decoded(bundle)


def prove_decoded(bundle: Bundle) -> None:
    """As `prove`, of a plan that `codec.decode` has read and so has validated: that is a third of the work."""
    require_reproducible(bundle)
    prove_data(bundle)


def prove_data(bundle: Bundle) -> None:
    """The second half of the proof, of a valid plan: what tasks read and write. Raises PlanFault as `prove` does."""
    ancestors = TaskAncestors(bundle.tasks)
    budget = StepBudget(MAX_PROOF_STEPS)
    memory = SymbolicMemory(bundle, ancestors, budget)
    complete = _complete_masks(bundle)
    groups = aggregation_groups(bundle)
    for position, task in enumerate(bundle.tasks):
        ancestors.enter(position)
        try:
            _execute(bundle, position, task, memory, complete, groups, budget)
        except PlanFault as fault:
            raise PlanFault(fault.message, where=f"{_describe(bundle, position)}{fault.where}") from None
    for i, output in enumerate(bundle.outputs):
        for k, region in enumerate(output.regions):
            where = f"outputs[{i}].regions[{k}] ('{bundle.tensors[output.tensor].name}')"
            _require(memory.read(region, where), complete[output.tensor], where)


Complete = dict[int, int]
"""For every function of a tensor's producer (one of each set of replicas), the mask of all that share its block."""


def _complete_masks(bundle: Bundle) -> list[Complete]:
    """Per tensor; inputs and weights count as the output of one function."""
    table: list[Complete] = [{0: LOADED} for _ in bundle.tensors]
    for operation in bundle.operations:
        for j, tensor in enumerate(operation.outputs):
            masks: dict[Block, int] = {}
            blocks = [function.outputs[j] for function in operation.functions[: operation.distinct]]
            for f, block in enumerate(blocks):
                masks[block] = masks.get(block, 0) | 1 << f
            table[tensor] = {f: masks[block] for f, block in enumerate(blocks)}
    return table


def _execute(
    bundle: Bundle,
    position: int,
    task: AnyTask,
    memory: SymbolicMemory,
    complete: Sequence[Complete],
    groups: Mapping[int, AggregationGroup],
    budget: StepBudget,
) -> None:
    """Executes one task. All its reads come before its writes, so that a task that overwrites its input is noticed.

    Raises PlanFault that names the region, without the task.
    """
    if isinstance(task, KernelTask):
        operation = bundle.operations[task.operation]
        for k, region in enumerate(task.reads):
            at = f".reads[{k}]"
            _require(memory.read(region, at, position), complete[operation.inputs[k]], at)
        mask = 1 << task.function % operation.distinct
        updates = operation.kernel_attributes.get(IN_PLACE) is True
        for j, region in enumerate(task.writes):
            memory.write(region, [(region.block, mask)], f".writes[{j}]", position, in_place=updates and j == 0)
    elif isinstance(task, TransferTask):
        memory.write(task.write, memory.read(task.read, ".read", position), ".write", position)
    elif isinstance(task, CopyTask):
        contents = [memory.read(region, f".reads[{k}]", position) for k, region in enumerate(task.reads)]
        for k, (region, content) in enumerate(zip(task.writes, contents, strict=True)):
            memory.write(region, content, f".writes[{k}]", position)
    elif isinstance(task, AggregateTask):
        group = groups[bundle.buffers[task.writes[0].buffer].tensor]
        _aggregate(position, task, group, memory, budget)
    elif not isinstance(task, FenceTask):
        assert_never(task)


def _describe(bundle: Bundle, position: int) -> str:
    task = bundle.tasks[position]
    if isinstance(task, KernelTask):
        name = bundle.operations[task.operation].name
        return f"tasks[{position}] (operation '{name}', function {task.function}, site {task.site})"
    return f"tasks[{position}] (for '{task.serves}', site {task.site})"


def _require(content: Content, complete: Complete, where: str) -> None:
    """Raises PlanFault unless every element combines all functions that it must."""
    for block, mask in content:
        lowest = (mask & -mask).bit_length() - 1
        lacking = complete[lowest] & ~mask
        if lacking:
            message = f"{block} combines functions {_format_functions(mask)} of its producer"
            raise PlanFault(f"{message}, and lacks {_format_functions(lacking)}", where=where)


def _aggregate(
    position: int, task: AggregateTask, group: AggregationGroup, memory: SymbolicMemory, budget: StepBudget
) -> None:
    """Combines each member on its own. They stay tuples because every copy has the same functions in all members."""
    members = len(task.writes)
    contents = [memory.read(region, f".reads[{k}]", position) for k, region in enumerate(task.reads)]
    totals: list[Content] = contents[:members]
    for first in range(0, len(contents), members):
        _require_tuple(contents[first : first + members], group, budget, f".reads[{first}]")
        for n in range(members if first else 0):
            at = f".reads[{first + n}]"
            budget.spend(len(totals[n]) * len(contents[first + n]), at)
            totals[n] = _combine(totals[n], contents[first + n], at)
    for n, (region, total) in enumerate(zip(task.writes, totals, strict=True)):
        memory.write(region, total, f".writes[{n}]", position, in_place=region == task.reads[n])


def _require_tuple(copy: Sequence[Content], group: AggregationGroup, budget: StepBudget, where: str) -> None:
    """Raises PlanFault unless the elements of each tuple combine the same functions so far.

    Elements belong to one tuple if they agree in the dimensions that both have, except for those in `uncut`.
    """
    if len(copy) == 1:
        return
    for n, (content, dims) in enumerate(zip(copy, group.dims, strict=True)):
        if n == 0 and not group.uncut:
            continue
        budget.spend(len(copy[0]) * len(content), where)
        for block, mask in copy[0]:
            part = block.projected(dims)
            for member_block, more in content:
                if mask != more and _agree(part, member_block, [d in group.uncut for d in dims]):
                    message = f"{member_block} of member {n} combines functions {_format_functions(more)}"
                    belongs = f"{block} of the primary, {_format_functions(mask)}"
                    raise PlanFault(f"{message}, and what belongs to it, {belongs}", where=where)


def _agree(a: Block, b: Block, free: Sequence[bool]) -> bool:
    """Whether two blocks have elements that agree in all dimensions that are not free."""
    bounds = zip(a.lower, a.upper, b.lower, b.upper, free, strict=True)
    return all(any_place or (lo < end and start < up) for lo, up, start, end, any_place in bounds)


def _combine(left: Content, right: Content, where: str) -> Content:
    """The union of two contents of one block, piece by piece."""
    combined = []
    for block, mask in left:
        for right_block, more in right:
            common = block if block == right_block else block.intersect(right_block)
            if common is None:
                continue
            if mask & more:
                message = f"{common} counts functions {_format_functions(mask & more)} of its producer twice"
                raise PlanFault(message, where=where)
            combined.append((common, mask | more))
    return combined


def _format_functions(mask: int) -> str:
    """The members of a mask as text, only the first few of many."""
    members = [f for f in range(mask.bit_length()) if mask >> f & 1]
    return "{" + ", ".join(map(str, members[:8])) + (", ...}" if len(members) > 8 else "}")
