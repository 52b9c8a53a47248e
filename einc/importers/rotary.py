"""Rotary position embeddings as configurations describe them: `rope_theta`, `rope_scaling` or `rope_parameters`."""

from __future__ import annotations

from einc.importers.common import LONGEST
from einc.importers.fields import Fields, shown


def rope_arguments(fields: Fields, theta: float) -> str:
    """The arguments of `rope` in the model language, positions apart; `theta` is the family's where none is given."""
    inner = fields.inside("rope_parameters", "rope_scaling")
    # Older configurations have theta beside the scaling, newer ones inside.
    holder = inner if inner is not None and inner.value("rope_theta") is not None else fields
    outer = fields.value("rope_theta")
    if holder is not fields and outer not in (None, holder.value("rope_theta")):
        fields.fail(f"rope_theta stands twice: {shown(outer)} and {shown(holder.value('rope_theta'))}")
    theta = holder.real("rope_theta", theta, most=1e15)
    fields.must_be("partial_rotary_factor", (1, 1.0), "all of a head is rotated")
    arguments = f"theta={theta!r}"
    if inner is None:
        return arguments
    kind = inner.value("rope_type", "type") or "default"
    inner.must_be("partial_rotary_factor", (1, 1.0), "all of a head is rotated")
    if kind == "linear":
        arguments += f', scaling="linear", factor={inner.real("factor", most=1e6)!r}'
    elif kind == "llama3":
        factor, low, high = (inner.real(name, most=1e6) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        original = inner.integer("original_max_position_embeddings", LONGEST)
        if low >= high:
            inner.fail(f"expected a low_freq_factor below the high_freq_factor, found {low!r} and {high!r}")
        arguments += (
            f', scaling="llama3", factor={factor!r}, low_freq_factor={low!r}, high_freq_factor={high!r},'
            f" original_length={original}"
        )
    elif kind != "default":
        inner.fail(f"rope_type {shown(kind)} is not supported", "supported are default, linear, llama3")
        return arguments
    inner.check_unknown(("original_max_position_embeddings",), ())
    return arguments
