"""The family `custom`: an operator that a Python package defines.

All that a plan says of it follows from its signature, which is in the plan. So a plan is proved, predicted and
explained without the package.
"""

from __future__ import annotations

from einc_runtime.plan.meaning.custom_signatures import (
    BoundSignature,
    bind_signature,
    parse_custom_signature,
    parse_settings,
)
from einc_runtime.plan.meaning.terms import WHOLE, Application, Axes, BlockAxis, IndexForm, OperatorMeaning
from einc_runtime.plan.scalar_functions import NUMBER_TYPES

AGGREGATIONS = ("sum", "max", "min", "prod")


def bind(applied: Application) -> BoundSignature:
    """The operator's signature for its operands and settings."""
    signature = parse_custom_signature(applied.value("signature", str))
    applied.require(str(signature) == applied.attributes["signature"], "its signature is not in canonical form")
    return bind_signature(signature, applied.inputs, parse_settings(applied.value("settings", str)))


def custom(applied: Application) -> OperatorMeaning:
    """`operator` is its name, `operations` the floating point operations at each index vector of its labels. `uncut`
    are labels along which it is not cut; without an `aggregation`, all that some result lacks are uncut."""
    applied.allow(("operator", "signature", "uncut", "aggregation", "operations", "settings"))
    bound = bind(applied)
    uncut, aggregation = applied.items("uncut", str), applied.value("aggregation", str)
    applied.require(applied.number("operations", above=-1.0) >= 0, "its operations are negative")
    known = aggregation in ("", *AGGREGATIONS)
    numbers = all(form.dtype in NUMBER_TYPES for form in bound.result_forms)
    applied.require(known and (numbers or not aggregation), f"there is no aggregation '{aggregation[:40]}' here")
    cuts = bound.list_cuts(uncut, aggregation)

    def follow(labels: tuple[str, ...]) -> Axes:
        return tuple(BlockAxis(cuts.index(label)) if label in cuts else WHOLE for label in labels)

    return OperatorMeaning(
        "custom",
        {name: applied.value(name, str) for name in ("operator", "signature", "settings")},
        bound.result_forms,
        tuple(IndexForm(bound.names[label], bound.extents[label]) for label in cuts),
        tuple(map(follow, bound.operands)),
        tuple(map(follow, bound.results)),
        (aggregation or "sum",) * len(bound.results),
    )
