"""The kernel `map` in Triton: a fused chain of scalar functions over joined indices, with broadcasts and transposes.

Aggregations of copies are maps too: a chain of additions in the order of the plan, in f32 or wider, rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.map import Map, aggregation_as_map
from einc_runtime.kernels.program import Input
from einc_runtime.kernels.triton.plan import Plan
from einc_runtime.kernels.triton.scalar import Program
from einc_runtime.kernels.triton.tiles import Elements


def plan_map(invocation: Invocation[Array]) -> Plan:
    """One launch. Raises PlanFault for what is no map."""
    call = Map.parse(invocation)
    names = [f"x{k}" for k in range(len(call.views))]
    elements = Elements([*call.views, call.output], [*names, "y"])
    chain = Program(call.steps, [f"v{k}" for k in range(len(names))])
    used = {operand.position for step in call.steps for operand in step.operands if isinstance(operand, Input)}
    lines = [f"v{k} = {elements.load(names[k])}" for k in sorted(used)]
    lines += [*chain.lines, elements.store("y", chain.value)]
    title = f"map over {' '.join(call.indices) or 'one element'}: {call.source}"
    return Plan((elements.call("map", title, lines, chain.source()),))


def plan_aggregate(aggregation: str, reads: Sequence[Array], write: Array) -> Plan:
    """The chain of additions (or the like) over views in their order."""
    return plan_map(aggregation_as_map(aggregation, reads, write))
