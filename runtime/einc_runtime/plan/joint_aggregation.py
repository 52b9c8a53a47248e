"""Which tensors aggregate together, and what must hold of operations and tasks that say so.

A *group* is a tensor with all that aggregates with it. Most tensors are groups of their own; the members of a merge
form one, and their partial copies are combined as tuples (log-sum-exp pairs, an index with its value, top-k lists).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.checks import require, require_position, require_unique
from einc_runtime.plan.schema import AggregateTask, Block, Bundle, Merge, Operation

ALONE = frozenset({"sum", "max", "min", "prod"})
"""Aggregations of single tensors; all others are of tuples."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors (positions), the primary first; for every dimension of each, which one of the primary it is.

    The dimensions `whole` of the primary are not cut while copies are combined.
    """

    aggregation: str
    tensors: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...] = ()

    def parts(self, primary: Block) -> list[Block]:
        """What belongs to a block of the primary, one block per member."""
        return [projected(primary, dims) for dims in self.dims]


def projected(block: Block, dims: Sequence[int]) -> Block:
    return Block(tuple(block.lower[d] for d in dims), tuple(block.upper[d] for d in dims))


def groups(bundle: Bundle) -> dict[int, Group]:
    """The group of every computed tensor of a bundle whose operations are valid."""
    found: dict[int, Group] = {}
    for operation in bundle.operations:
        for tensor, aggregation in zip(operation.outputs, operation.aggregations, strict=True):
            found[tensor] = Group(aggregation, (tensor,), (tuple(range(len(bundle.tensors[tensor].shape))),))
        for merge in operation.merges:
            tensors = tuple(operation.outputs[j] for j in merge.outputs)
            group = Group(operation.aggregations[merge.outputs[0]], tensors, merge.dims, merge.whole)
            found.update(dict.fromkeys(tensors, group))
    return found


def require_merges(bundle: Bundle, operation: Operation, where: str) -> None:
    """Merges say which outputs belong together, and these follow one another in every function.

    The operation's outputs and functions have been checked.
    """
    merged: list[int] = []
    for m, merge in enumerate(operation.merges):
        at = f"{where}.merges[{m}]"
        _require_merge(bundle, operation, merge, at)
        merged += merge.outputs
    require_unique(merged, f"{where}.merges")
    for j, aggregation in enumerate(operation.aggregations):
        fits = (aggregation in ALONE) is (j not in merged)
        how = "in a merge" if j in merged else "in no merge"
        require(fits, f"{where}.aggregations[{j}]", f"{aggregation}, and output {j} is {how}")


def _require_merge(bundle: Bundle, operation: Operation, merge: Merge, where: str) -> None:
    require(len(merge.outputs) >= 2, f"{where}.outputs", "a merge has at least two")
    for j in merge.outputs:
        require_position(j, len(operation.outputs), "output", f"{where}.outputs")
    names = {operation.aggregations[j] for j in merge.outputs}
    require(len(names) == 1, f"{where}.outputs", f"they aggregate by {' and '.join(sorted(names))}")
    shapes = [bundle.tensors[operation.outputs[j]].shape for j in merge.outputs]
    require(len(merge.dims) == len(shapes), f"{where}.dims", f"{len(merge.dims)} lists for {len(shapes)} members")
    require(merge.dims[0] == tuple(range(len(shapes[0]))), f"{where}.dims[0]", "not the primary's own, in order")
    for n, (dims, shape) in enumerate(zip(merge.dims, shapes, strict=True)):
        for d in dims:
            require_position(d, len(shapes[0]), "dimension", f"{where}.dims[{n}]")
        require_unique(dims, f"{where}.dims[{n}]")
        found = tuple(shapes[0][d] for d in dims)
        require(found == shape, f"{where}.dims[{n}]", f"extents {found}, where the member has {shape}")
    for d in merge.whole:
        require_position(d, len(shapes[0]), "dimension", f"{where}.whole")
    require_unique(merge.whole, f"{where}.whole")
    uncut = {d for d in range(len(shapes[0])) if d in merge.whole or any(d not in dims for dims in merge.dims)}
    for f, function in enumerate(operation.functions):
        primary = function.outputs[merge.outputs[0]]
        for n, (j, dims) in enumerate(zip(merge.outputs, merge.dims, strict=True)):
            wanted = projected(primary, dims)
            if function.outputs[j] != wanted:
                message = f"{boxes.show(function.outputs[j])}, where member {n} has {boxes.show(wanted)}"
                raise PlanFault(message, where=f"{where}, function {f}")
        for d in sorted(uncut):
            spans = (primary.lower[d], primary.upper[d]) == (0, shapes[0][d])
            require(spans, f"{where}, function {f}", f"dimension {d} of {boxes.show(primary)} must be whole")


def require_aggregation(bundle: Bundle, task: AggregateTask, known: Mapping[int, Group], where: str) -> None:
    """A task combines copies of one block of one group; its regions exist. Pairs of regions are not compared."""
    require(bool(task.writes), f"{where}.writes", "an aggregation has at least one")
    tensors = tuple(bundle.buffers[region.buffer].tensor for region in task.writes)
    group = known.get(tensors[0])
    require(group is not None, where, f"tensor {tensors[0]} is not computed")
    assert group is not None
    message = f"{task.aggregation}, where the tensor's is {group.aggregation}"
    require(task.aggregation == group.aggregation, where, message)
    message = f"tensors {tensors}, where {group.tensors} aggregate together"
    require(tensors == group.tensors, f"{where}.writes", message)
    copies, left = divmod(len(task.reads), len(tensors))
    message = f"{len(task.reads)} regions are not two or more copies of {len(tensors)}"
    require(copies >= 2 and not left, f"{where}.reads", message)
    primary = task.writes[0].block
    for n, (region, wanted) in enumerate(zip(task.writes, group.parts(primary), strict=True)):
        if region.block != wanted:
            message = f"{boxes.show(region.block)}, where {boxes.show(wanted)} belongs to {boxes.show(primary)}"
            raise PlanFault(message, where=f"{where}.writes[{n}]")
    for d in group.whole:
        extent = bundle.tensors[tensors[0]].shape[d]
        spans = (primary.lower[d], primary.upper[d]) == (0, extent)
        require(spans, f"{where}.writes[0]", f"dimension {d} of {boxes.show(primary)} must be whole")
