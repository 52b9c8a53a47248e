"""Calls of the kernel `custom`: the operator of a Python package, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einc_runtime.custom import CustomOperator, load_planned_operator
from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.plan.meaning.custom import parse_settings


@dataclass(frozen=True, slots=True)
class CustomCall:
    """The operands and results of an invocation, the operator that computes them, its name and its settings."""

    name: str
    operator: CustomOperator
    settings: Mapping[str, Any]
    inputs: Sequence[Array]
    outputs: Sequence[Array]

    @staticmethod
    def parse(invocation: Invocation[Array]) -> CustomCall:
        """Raises PlanFault for other settings than the operator's, MissingFault where it is not installed."""
        name = invocation.attribute("operator", str)
        operator = load_planned_operator(name, invocation.attribute("signature", str))
        settings = parse_settings(invocation.attribute("settings", str))
        if set(settings) != set(operator.defaults):
            message = f"the operator '{name}' takes {', '.join(operator.defaults) or 'no settings'}"
            raise PlanFault(f"{message}, and the plan has {', '.join(settings) or 'none'}")
        return CustomCall(name, operator, settings, invocation.inputs, invocation.outputs)
