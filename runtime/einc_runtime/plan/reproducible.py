"""What makes a plan reproducible: its results have the same bits as those of every other such plan of the same model.

No partial results are combined, except those that are only compared, so each element is computed by one kernel from all
that it depends on. And each kernel is one that computes an element in the same way in every block: the attribute asks
for that, and a runtime that has no such kernel refuses it.
"""

from __future__ import annotations

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import AggregateTask, Bundle
from einc_runtime.text import escape_text

ATTRIBUTE = "reproducible"
"""The kernel attribute of reproducible operations. It is true, or left out."""

ADDING_KERNELS = frozenset({
    "attention", "contract", "expert_matmul", "index", "layernorm", "quantized_contract", "recurrence", "reduce",
    "rmsnorm", "rounded_contract", "softmax",
})  # fmt: skip
"""Kernels that add up in an order that reproducible plans state, for which each has a second form."""

SUMLESS_KERNELS = frozenset({"append", "dequantize", "map", "reshape", "rope", "topk"})
"""Kernels that add up nothing that is rounded: they move elements, choose among them, compute each by itself, or add
integers. A kernel in neither of the lists is in no reproducible plan."""

ORDERLESS = frozenset({"topk", "defined_exact"})
"""Aggregations that choose among partial results: no order and no grouping changes what they choose."""


def require_order(name: str, where: str | None = None) -> bool:
    """Whether the kernel `name` adds up, in a stated order. Raises PlanFault if it does so in any order."""
    if name not in ADDING_KERNELS | SUMLESS_KERNELS:
        hint = "leave out --reproducible, or give the kernel a form with an order (docs/reproducible.md)"
        raise PlanFault(f"the kernel {escape_text(name, 40)} adds up in no stated order", where=where, hint=hint)
    return name in ADDING_KERNELS


def require_reproducible(bundle: Bundle) -> None:
    """Raises PlanFault where a valid plan that is said to be reproducible combines partial results."""
    if not bundle.reproducible:
        return
    for position, operation in enumerate(bundle.operations):
        functions = operation.functions[: operation.distinct]
        for j, name in enumerate(operation.aggregations):
            if name not in ORDERLESS and len({function.outputs[j] for function in functions}) < len(functions):
                message = "partial results would be combined, which a reproducible plan does not do"
                raise PlanFault(message, where=f"operations[{position}].functions")
    for position, task in enumerate(bundle.tasks):
        if isinstance(task, AggregateTask) and task.aggregation not in ORDERLESS:
            message = f"a reproducible plan aggregates nothing by '{task.aggregation}'"
            raise PlanFault(message, where=f"tasks[{position}]")
