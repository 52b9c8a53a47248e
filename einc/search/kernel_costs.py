"""The costs of kernels, described once for all cuts of an operator whose blocks have equal shapes."""

from __future__ import annotations

import functools

from einc.core.spec import FunctionSpec
from einc.logical.candidates import MAX_KEPT_OFFERS
from einc.logical.plan import Candidate
from einc.ops.base import Operator
from einc.predict.costs import TaskCost, describe_operator


def list_cost_keys(operator: Operator, candidate: Candidate) -> list[object]:
    """For every function specification of a candidate what its cost depends on: the shapes of its blocks, or these."""
    functions = candidate.spec.functions
    if not operator.costs_by_shape:
        return list(functions)
    blocks = [(*function.inputs, *function.outputs) for function in functions]
    distinct = {id(block): block for row in blocks for block in row}
    shapes = {key: block.shape for key, block in distinct.items()}
    return [tuple([shapes[id(block)] for block in row]) for row in blocks]


def describe_known(operator: Operator, function: FunctionSpec, key: object) -> TaskCost:
    """What `describe_operator` says, once for all that have the `key` (`list_cost_keys`)."""
    costs = _keep_costs(operator)
    if key not in costs:
        costs[key] = describe_operator(operator, function)
    return costs[key]


@functools.lru_cache(maxsize=MAX_KEPT_OFFERS)
def _keep_costs(operator: Operator) -> dict[object, TaskCost]:
    """The costs of an operator's function specifications: other cuts and the bound on all plans ask for the same."""
    return {}
