"""States: tensors that keep their contents from run to run, and the operations that write over them.

A state has a buffer for each function of the one operation that writes over it, and of its readers the last. The
function's output lies at the same bytes: when it has run, the old contents are gone, and all later readers read the new
ones, which the next run starts with. So no other task may write the bytes of a state, and no run may leave a part of it
as it was. That whoever reads the old contents has done so before is for the proof to find (`symbolic_memory`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan.checks import require
from einc_runtime.plan.regions import ExecutablePlan, is_loaded, reads_of, writes_of
from einc_runtime.plan.schema import Block, Buffer, KernelTask, Operation, Tensor

IN_PLACE = "in_place"
"""The attribute of kernels that write their first output over their first input."""
STATE = "state"


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor comes from a weight file: a weight, or a state that is one until runs write over it."""
    return tensor.kind == "weight" or (tensor.kind == STATE and tensor.stored is not None)


def find_updates(operations: Sequence[Operation]) -> Mapping[int, int]:
    """For every tensor that is written over a state, that state (both are positions)."""
    return {
        operation.outputs[0]: operation.inputs[0]
        for operation in operations
        if operation.kernel_attributes.get(IN_PLACE) is True
    }


def validate_states(plan: ExecutablePlan) -> None:
    """Raises PlanFault, naming the part, where a state is read, written or placed otherwise than it may be.

    The operations, buffers and regions of the plan have been checked, one by one.
    """
    updates = find_updates(plan.operations)
    _check_readers(plan, updates)
    pairs = _pair_buffers(plan, updates)
    left = set(pairs)
    for i, task in enumerate(plan.tasks):
        state_and_result: tuple[int, int] | None = None
        if isinstance(task, KernelTask) and plan.operations[task.operation].outputs[0] in updates:
            store, result = task.reads[0], task.writes[0]
            state_and_result = store.buffer, result.buffer
            where = f"tasks[{i}].writes[0]"
            require(
                pairs.get(state_and_result[0]) == state_and_result[1],
                where,
                f"buffer {state_and_result[1]} does not lie where the state does",
            )
            state_block = plan.buffers[state_and_result[0]].block
            require(
                store.block == result.block == state_block,
                where,
                f"{result.block}, and the state has {state_block} there",
            )
            left.discard(state_and_result[0])
        for field, regions, side in (("reads", reads_of(task), 0), ("writes", writes_of(task), 1)):
            for k, region in enumerate(regions):
                buffer = plan.buffers[region.buffer]
                if buffer.role != STATE or (
                    state_and_result is not None and k == 0 and region.buffer == state_and_result[side]
                ):
                    continue
                message = f"buffer {region.buffer} is a state's, and only what updates it may do so"
                require(field == "reads", f"tasks[{i}].{field}[{k}]", message)
    for number in sorted(left):
        raise PlanFault("no task updates this part of a state", where=f"buffers[{number}]")


def _check_readers(plan: ExecutablePlan, updates: Mapping[int, int]) -> None:
    """One operation writes over a state, and no later one reads it."""
    updated: set[int] = set()
    for i, operation in enumerate(plan.operations):
        updating = operation.outputs[0] in updates
        for k, number in enumerate(operation.inputs):
            where, is_state = f"operations[{i}].inputs[{k}]", plan.tensors[number].kind == STATE
            first = updating and k == 0
            require(is_state or not first, where, f"tensor {number} is no state")
            require(number not in updated, where, f"an earlier operation has written over tensor {number}")
            updated.update([number] if first else [])
        if updating:
            old, new = plan.tensors[operation.inputs[0]], plan.tensors[operation.outputs[0]]
            same_layout = (old.shape, old.dtype, old.order) == (new.shape, new.dtype, new.order)
            require(same_layout, f"operations[{i}].outputs[0]", "it lies in memory otherwise than the state")


def _pair_buffers(plan: ExecutablePlan, updates: Mapping[int, int]) -> dict[int, int]:
    """For every buffer of a state the buffer of what is written over it. They have one block, at the same bytes."""
    stores: dict[tuple[int, int, Block], int] = {}
    results: list[tuple[int, Buffer]] = []
    for i, buffer in enumerate(plan.buffers):
        where = f"buffers[{i}].role"
        if buffer.role != STATE:
            continue
        if is_loaded(plan, i):
            key = buffer.site, buffer.tensor, buffer.block
            require(key not in stores, where, f"the site has {buffer.block} of the state twice")
            stores[key] = i
        else:
            require(buffer.tensor in updates, where, "a state buffer of a tensor that is not written over a state")
            results.append((i, buffer))
    pairs: dict[int, int] = {}
    for i, buffer in results:
        store = stores.get((buffer.site, updates[buffer.tensor], buffer.block))
        same_bytes = store is not None and store not in pairs and plan.buffers[store].offset == buffer.offset
        if store is None or not same_bytes:
            raise PlanFault("it does not lie at the bytes of a buffer of its state", where=f"buffers[{i}]")
        pairs[store] = i
    for store in stores.values():
        require(store in pairs, f"buffers[{store}]", "nothing is written over this part of a state")
    return pairs
