"""Which tensors aggregate together, and what must hold for tasks that aggregate them.

An *aggregation group* is a tensor with all tensors that aggregate together with it. Most tensors are alone in their
group. The outputs of a joint aggregation form one group, and their partial copies are combined as tuples (the two parts
of a log-sum-exp, an index with its value, the two lists of a top-k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.aggregate_definitions import DEFINED, DEFINED_EXACT
from einc_runtime.plan.checks import require
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import AggregateTask, AggregationName, Block, Operation, Tensor

DEFINITIONS: frozenset[str] = frozenset({DEFINED, DEFINED_EXACT})
"""Those of single tensors or of tuples; all others combine tuples."""


@dataclass(frozen=True, slots=True)
class AggregationGroup:
    """Tensors (positions), the primary first, and the name of the operation that combines their copies.

    `dims` says for every dimension of each tensor which dimension of the primary it is. The dimensions `uncut` of the
    primary are not cut while copies are combined. `definition` is the text of an aggregation that the plan defines.
    """

    aggregation: AggregationName
    tensors: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    uncut: tuple[int, ...] = ()
    definition: str = ""

    @staticmethod
    def single(aggregation: AggregationName, tensor: int, rank: int, definition: str = "") -> AggregationGroup:
        return AggregationGroup(aggregation, (tensor,), (tuple(range(rank)),), (), definition)

    def parts(self, primary: Block) -> list[Block]:
        """The blocks that belong to a block of the primary, one for every member."""
        return [primary.projected(dims) for dims in self.dims]


def groups_of(operation: Operation, tensors: Sequence[Tensor]) -> dict[int, AggregationGroup]:
    """The aggregation group of every output (a position among `tensors`) of a valid operation."""
    text = operation.attributes.get("aggregation") if set(operation.aggregations) & DEFINITIONS else None
    definition = text if isinstance(text, str) else ""
    groups = {
        tensor: AggregationGroup.single(aggregation, tensor, len(tensors[tensor].shape), definition)
        for tensor, aggregation in zip(operation.outputs, operation.aggregations, strict=True)
    }
    for joint in operation.joint_aggregations:
        members = tuple(operation.outputs[j] for j in joint.outputs)
        group = AggregationGroup(operation.aggregations[joint.outputs[0]], members, joint.dims, joint.uncut, definition)
        groups.update(dict.fromkeys(members, group))
    return groups


def aggregation_groups(plan: ExecutablePlan) -> dict[int, AggregationGroup]:
    """The aggregation group of every computed tensor of a plan whose operations are valid."""
    groups: dict[int, AggregationGroup] = {}
    for operation in plan.operations:
        groups.update(groups_of(operation, plan.tensors))
    return groups


def require_aggregation(
    plan: ExecutablePlan, task: AggregateTask, groups: Mapping[int, AggregationGroup], where: str
) -> None:
    """A task, whose regions exist, combines copies of one block of one group. Pairs of regions are not compared."""
    require(bool(task.writes), f"{where}.writes", "an aggregation has at least one")
    tensors = tuple(plan.buffers[region.buffer].tensor for region in task.writes)
    group = groups.get(tensors[0])
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
    for n, (region, expected) in enumerate(zip(task.writes, group.parts(primary), strict=True)):
        if region.block != expected:
            message = f"{region.block}, where {expected} belongs to {primary}"
            raise PlanFault(message, where=f"{where}.writes[{n}]")
    for d in group.uncut:
        extent = plan.tensors[tensors[0]].shape[d]
        spans = (primary.lower[d], primary.upper[d]) == (0, extent)
        require(spans, f"{where}.writes[0]", f"dimension {d} of {primary} must be whole")
