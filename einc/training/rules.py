"""Which rule makes the gradients of which family of operators. A family that vanishes is a row that vanishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from einc.errors import OperatorError
from einc.ops.base import Operator
from einc.training.attention_gradients import differentiate_attention
from einc.training.join_gradients import differentiate_equation, differentiate_index_program, differentiate_reshape
from einc.training.layer_gradients import (
    differentiate_expert_matmul,
    differentiate_norm,
    differentiate_rope,
    differentiate_softmax,
    differentiate_topk,
)
from einc.training.recurrence_gradients import differentiate_recurrence
from einc.training.tape import NodeGradient

Rule: TypeAlias = Callable[[NodeGradient], None]
"""Adds to the gradients of a node's inputs what follows from those of its outputs. Raises OperatorError."""

GRADIENT_RULES: dict[str, Rule] = {  # by kernels, and by families of those whose kernels have none
    "attention": differentiate_attention,
    "equation": differentiate_equation,
    "expert_matmul": differentiate_expert_matmul,
    "index": differentiate_index_program,
    "layernorm": differentiate_norm,
    "recurrence": differentiate_recurrence,
    "reshape": differentiate_reshape,
    "rmsnorm": differentiate_norm,
    "rope": differentiate_rope,
    "softmax": differentiate_softmax,
    "topk": differentiate_topk,
}


def find_rule(operator: Operator) -> Rule:
    """The rule of an operator; raises OperatorError where it has none."""
    rule = GRADIENT_RULES.get(operator.kernel.name) or GRADIENT_RULES.get(operator.family)
    if rule is None:
        raise OperatorError("has no gradient", hint="only what the loss needs must have one")
    return rule
