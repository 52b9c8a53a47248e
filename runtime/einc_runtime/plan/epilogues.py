"""Finds contractions that may run together with the map after them: one as its epilogue, or two with the map of both.

`launches` says which of them are one launch. The executor for GPUs asks its kernels whether they can do each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.plan.regions import ExecutablePlan, Users, find_output_buffers, find_users, writes_of
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.schema import AnyTask, KernelTask, Operation
from einc_runtime.plan.states import IN_PLACE

ACTIVATIONS = ("relu", "gelu_tanh")
"""The functions that libraries for GPUs apply to a product before they write it (cuBLASLt's epilogues)."""

LAUNCH_PRODUCTS = frozenset({"contract", "quantized_contract"})
"""Kernels that multiply matrices; the second reads one as it is stored, in 8 or 4 bits."""

LIBRARY_FUNCTIONS = ("add", *ACTIVATIONS)
"""All that these libraries do to a product, and so all that a map may consist of which they compute with it."""

_FUNCTION = re.compile(r" = (\S+)")


def is_library_epilogue(operation: Operation) -> bool:
    """Whether an operation is a map that libraries may compute within the product which makes one of its operands."""
    if operation.kernel != "map" or operation.kernel_attributes.get(ATTRIBUTE) is True:
        return False
    return consists_of_library_functions(operation.kernel_attributes)


def consists_of_library_functions(attributes: Mapping[str, object]) -> bool:
    """Whether these are attributes of a map that such libraries can compute."""
    return set(_FUNCTION.findall(str(attributes["program"]))) <= set(LIBRARY_FUNCTIONS)


def find_epilogues(
    bundle: ExecutablePlan, tasks: Sequence[AnyTask], contracted: ContractedOperands | None = None
) -> dict[int, tuple[int, int]]:
    """For each contraction (a position of a task) the map that may run with it, and the map's operand that it computes.

    No other task reads or writes the contraction's result, so the fused kernel need not write it. All that the map
    waits for comes before the contraction, or is the contraction, so that the kernel can run in its place. The
    contraction may read bytes that the map writes. That is not checked here: kernels know the addresses, and check it.
    `contracted` is `list_contracted_operands`, for callers that have it.
    """
    epilogues: dict[int, tuple[int, int]] = {}
    for number, every in list_contracted_operands(bundle, tasks) if contracted is None else contracted:
        candidates = [candidate for candidate in every if _name_kernel(bundle, tasks[candidate[0]]) == "contract"]
        for contraction, operand in sorted(candidates, reverse=True)[:1]:  # the last contraction that it waits for
            if all(earlier <= contraction for earlier in tasks[number].after):
                epilogues[contraction] = number, operand
    return epilogues


ContractedOperands = Sequence[tuple[int, list[tuple[int, int]]]]
"""Maps, each with those of its operands that a contraction of its site computes for it alone: the contraction, and the
operand's place."""


def is_launch_product(operation: Operation) -> bool:
    """Whether an operation multiplies matrices by a kernel that may go on with a map."""
    return operation.kernel in LAUNCH_PRODUCTS


def list_contracted_operands(
    bundle: ExecutablePlan,
    tasks: Sequence[AnyTask],
    users: Users | None = None,
    contracts: Callable[[Operation], bool] = is_launch_product,
) -> ContractedOperands:
    """All maps of a plan; `users` is `find_users`, for callers that have it, and `contracts` says which operations are
    contractions."""
    readers, writers = users or find_users(tasks)
    kept = find_output_buffers(bundle)
    operands: list[tuple[int, list[tuple[int, int]]]] = []
    for number, task in enumerate(tasks):
        if not isinstance(task, KernelTask) or bundle.operations[task.operation].kernel != "map":
            continue
        if bundle.operations[task.operation].kernel_attributes.get(IN_PLACE) is True:
            continue  # the contraction would write over the state that the map has to read
        candidates: list[tuple[int, int]] = []
        for operand, region in enumerate(task.reads):
            writing_tasks = writers.get(region.buffer, [])
            if region.buffer in kept or readers[region.buffer] != [number] or len(writing_tasks) != 1:
                continue
            first = tasks[writing_tasks[0]]
            if not isinstance(first, KernelTask) or not contracts(bundle.operations[first.operation]):
                continue
            if first.site == task.site and writes_of(first) == (region,) and writing_tasks[0] < number:
                candidates.append((writing_tasks[0], operand))
        operands.append((number, candidates))
    return operands


def _name_kernel(bundle: ExecutablePlan, task: AnyTask) -> str:
    return bundle.operations[task.operation].kernel if isinstance(task, KernelTask) else ""


@dataclass(frozen=True, slots=True)
class GatedTasks:
    """The second contraction, and the map of both results; `places` are those of the first and the second result."""

    second: int
    then: int
    places: tuple[int, int]


def find_gated_pairs(
    bundle: ExecutablePlan, tasks: Sequence[AnyTask], contracted: ContractedOperands | None = None
) -> dict[int, GatedTasks]:
    """Maps of two operands which two contractions compute for them alone, such as gate, up and silu(gate) * up, by the
    position of the first contraction.

    One kernel for all three can run in its place: what the other two wait for comes before it, or is one of the three.
    `contracted` is as for `find_epilogues`.
    """
    gated: dict[int, GatedTasks] = {}
    for number, candidates in list_contracted_operands(bundle, tasks) if contracted is None else contracted:
        task = tasks[number]
        if len(candidates) != 2 or not isinstance(task, KernelTask) or len(task.reads) != 2:
            continue
        (first, first_operand), (second, second_operand) = sorted(candidates)
        same_kernel = _name_kernel(bundle, tasks[first]) == _name_kernel(bundle, tasks[second])
        alone = same_kernel and first < second and all(earlier < first for earlier in tasks[second].after)
        if alone and all(earlier < first or earlier == second for earlier in task.after if earlier != first):
            gated[first] = GatedTasks(second, number, (first_operand, second_operand))
    return gated
