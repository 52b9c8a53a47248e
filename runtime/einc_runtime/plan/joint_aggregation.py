"""Which tensors aggregate together, and what must hold for operations and tasks that aggregate them.

An *aggregation group* is a tensor with all tensors that aggregate together with it. Most tensors are alone in their
group. The outputs of a joint aggregation form one group, and their partial copies are combined as tuples (the two parts
of a log-sum-exp, an index with its value, the two lists of a top-k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.aggregate_definitions import DEFINED, DEFINED_EXACT
from einc_runtime.plan.checks import require, require_position, require_unique
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import AggregateTask, AggregationName, Block, Bundle, JointAggregation, Operation, Tensor

SINGLE = frozenset({"sum", "max", "min", "prod"})
"""The aggregations of single tensors."""

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
        """The group of a tensor that aggregates alone."""
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


def require_joint_aggregations(bundle: Bundle, operation: Operation, where: str) -> None:
    """The joint aggregations of an operation fit its outputs, and every function puts out blocks that belong together.

    The operation's outputs and functions have been checked before.
    """
    members: list[int] = []
    for n, joint in enumerate(operation.joint_aggregations):
        _require_joint_aggregation(bundle, operation, joint, f"{where}.joint_aggregations[{n}]")
        members += joint.outputs
    require_unique(members, f"{where}.joint_aggregations")
    for j, aggregation in enumerate(operation.aggregations):
        fits = aggregation in DEFINITIONS or (aggregation in SINGLE) is (j not in members)
        how = "in a joint aggregation" if j in members else "in no joint aggregation"
        require(fits, f"{where}.aggregations[{j}]", f"{aggregation}, and output {j} is {how}")


def _require_joint_aggregation(bundle: Bundle, operation: Operation, joint: JointAggregation, where: str) -> None:
    require(len(joint.outputs) >= 2, f"{where}.outputs", "a joint aggregation has at least two")
    for j in joint.outputs:
        require_position(j, len(operation.outputs), "output", f"{where}.outputs")
    names = {operation.aggregations[j] for j in joint.outputs}
    require(len(names) == 1, f"{where}.outputs", f"they aggregate by {' and '.join(sorted(names))}")
    shapes = [bundle.tensors[operation.outputs[j]].shape for j in joint.outputs]
    require(len(joint.dims) == len(shapes), f"{where}.dims", f"{len(joint.dims)} lists for {len(shapes)} members")
    require(joint.dims[0] == tuple(range(len(shapes[0]))), f"{where}.dims[0]", "not the primary's own, in order")
    for n, (dims, shape) in enumerate(zip(joint.dims, shapes, strict=True)):
        for d in dims:
            require_position(d, len(shapes[0]), "dimension", f"{where}.dims[{n}]")
        require_unique(dims, f"{where}.dims[{n}]")
        extents = tuple(shapes[0][d] for d in dims)
        require(extents == shape, f"{where}.dims[{n}]", f"extents {extents}, where the member has {shape}")
    for d in joint.uncut:
        require_position(d, len(shapes[0]), "dimension", f"{where}.whole")
    require_unique(joint.uncut, f"{where}.whole")
    never_cut = {d for d in range(len(shapes[0])) if d in joint.uncut or any(d not in dims for dims in joint.dims)}
    for f, function in enumerate(operation.functions):
        primary = function.outputs[joint.outputs[0]]
        for n, (j, dims) in enumerate(zip(joint.outputs, joint.dims, strict=True)):
            expected = primary.projected(dims)
            if function.outputs[j] != expected:
                message = f"{function.outputs[j]}, where member {n} has {expected}"
                raise PlanFault(message, where=f"{where}, function {f}")
        for d in sorted(never_cut):
            spans = (primary.lower[d], primary.upper[d]) == (0, shapes[0][d])
            require(spans, f"{where}, function {f}", f"dimension {d} of {primary} must be whole")


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
