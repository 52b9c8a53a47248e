"""What makes a plan reproducible: its results have the same bits as those of every other such plan of the same model.

No partial results are combined, except those that are only compared, so each element is computed by one kernel from all
that it depends on. And each kernel is one that computes an element in the same way in every block: the attribute asks
for that, and a runtime that has no such kernel refuses it.
"""

from __future__ import annotations

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import AggregateTask, Bundle

ATTRIBUTE = "reproducible"
"""The kernel attribute of reproducible operations. It is true, or left out."""

ORDERLESS = frozenset({"topk", "defined_exact"})
"""Aggregations that choose among partial results: no order and no grouping changes what they choose."""


def require_reproducible(bundle: Bundle) -> None:
    """Raises PlanFault where a plan that is said to be reproducible is not, or the other way round."""
    for position, operation in enumerate(bundle.operations):
        where = f"operations[{position}].kernel_attributes"
        if (operation.kernel_attributes.get(ATTRIBUTE) is True) != bundle.reproducible:
            expected = "in every operation" if bundle.reproducible else "in no operation"
            raise PlanFault(f"the attribute '{ATTRIBUTE}' is expected {expected} of this plan", where=where)
        if bundle.reproducible:
            functions = operation.functions[: operation.distinct]
            for j, name in enumerate(operation.aggregations):
                if name not in ORDERLESS and len({function.outputs[j] for function in functions}) < len(functions):
                    raise PlanFault(
                        "partial results would be combined, which a reproducible plan does not do",
                        where=f"operations[{position}].functions",
                    )
    if bundle.reproducible:
        for position, task in enumerate(bundle.tasks):
            if isinstance(task, AggregateTask) and task.aggregation not in ORDERLESS:
                raise PlanFault(
                    f"a reproducible plan aggregates nothing by '{task.aggregation}'", where=f"tasks[{position}]"
                )
