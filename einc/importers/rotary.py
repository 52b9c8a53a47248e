"""Rotary position embeddings as configurations describe them: `rope_theta`, `rope_scaling` or `rope_parameters`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from einc.importers.common import MAX_POSITIONS
from einc.importers.config import ConfigFields
from einc.importers.families import DecoderFamily
from einc_runtime.strict_json import describe_json


@dataclass(frozen=True, slots=True)
class RotaryEmbedding:
    """The arguments of `rope` in the model language, except positions, and how many elements of a head are rotated.

    The rotated elements are multiplied by `amplitude`. The `factors`, one for each pair of elements, hold for texts of
    at most `longest` tokens.
    """

    arguments: str
    width: int
    amplitude: float = 1.0
    factors: tuple[float, ...] = ()
    longest: int = MAX_POSITIONS

    def apply(self, tensor: str, places: str, d_head: int) -> str:
        """An expression for `tensor` with its heads rotated."""
        amplitude = "" if self.amplitude == 1.0 else f" * {self.amplitude!r}"
        if self.width == d_head:
            return f"rope({tensor}, {places}, {self.arguments}){amplitude}"
        first, unrotated = (
            f"slice({tensor}, d_head=[{lo}, {up}])" for lo, up in ((0, self.width), (self.width, d_head))
        )
        return f'concat(rope({first}, {places}, {self.arguments}){amplitude}, {unrotated}, over="d_head")'


def read_rotary(fields: ConfigFields, family: DecoderFamily, d_head: int, longest: int) -> RotaryEmbedding:
    """How heads of `d_head` elements are rotated in texts of up to `longest` tokens. Problems are noted in `fields`."""
    if family.local_theta is not None:
        return RotaryEmbedding(_read_two_thetas(fields, family.theta, family.local_theta), d_head)
    inner = fields.nested("rope_parameters", "rope_scaling")
    # Older configurations have theta and the rotated part beside the scaling, newer ones inside.
    holders = [fields] if inner is None else [inner, fields]
    theta = _find_holder(holders, "rope_theta").real("rope_theta", family.theta, maximum=1e15)
    width = d_head
    if family.partial:
        width = int(
            d_head
            * _find_holder(holders, "partial_rotary_factor").optional_real("partial_rotary_factor", 1.0, maximum=1.0)
        )
    for holder in [] if family.partial else holders:
        holder.require("partial_rotary_factor", (1, 1.0), "all of a head is rotated")
    if width % 2 or not width:
        fields.fail(
            f"{width} elements of each head are rotated, and rotary embedding rotates pairs", "expected an even width"
        )
    plain = RotaryEmbedding(f"theta={theta!r}", width)
    if inner is None:
        return plain
    kind = inner.value("rope_type", "type") or "default"
    if kind in ("longrope", "su") or (family.partial and kind == "yarn"):  # as configurations of Phi-3 have called it
        return _read_longrope(fields, inner, plain, longest)
    if kind == "yarn":
        return _read_yarn(inner, plain, theta, longest)
    if kind == "dynamic":
        return _read_dynamic(fields, inner, plain, longest)
    return replace(plain, arguments=plain.arguments + _read_scaling(inner))


def _read_two_thetas(fields: ConfigFields, theta: float, local_theta: float) -> str:
    """The arguments for families whose local layers have a theta of their own, which is never scaled."""
    both = fields.nested("rope_parameters")
    far, near = (None, None) if both is None else (both.nested("full_attention"), both.nested("sliding_attention"))
    if far is None:
        far = fields.nested("rope_scaling")
    slow = _find_holder([fields] if far is None else [far, fields], "rope_theta").real(
        "rope_theta", theta, maximum=1e15
    )
    if near is not None and near.value("rope_theta") is not None:
        fast = near.real("rope_theta", maximum=1e15)
    else:
        fast = fields.real("rope_local_base_freq", local_theta, maximum=1e15)
    factor, kind = 1.0, None if far is None else far.value("rope_type", "type")
    if far is not None and kind == "linear":
        factor = far.real("factor", maximum=1e6)
    elif kind not in (None, "default"):
        fields.fail(f"rope_type {describe_json(kind)} is not supported", "supported are default, linear")
    if near is not None:
        near.require("rope_type", ("default",), "local layers are not scaled")
    for inner in filter(None, (both, far, near)):
        inner.check_unknown((), "rotary")
    arguments = f"theta={fast!r} * local + {slow!r} * (1 - local)"
    return arguments if factor == 1.0 else arguments + f', scaling="linear", factor=local + {factor!r} * (1 - local)'


def _read_longrope(fields: ConfigFields, inner: ConfigFields, plain: RotaryEmbedding, longest: int) -> RotaryEmbedding:
    """Each pair of elements has a factor for short texts and one for long texts. A plan cannot choose by the length of
    a text, so only the factors for short texts are taken."""
    original = _find_holder([inner, fields], "original_max_position_embeddings").integer(
        "original_max_position_embeddings", MAX_POSITIONS, 4096, minimum=2
    )
    inner.value("long_factor")
    factors = inner.reals("short_factor", plain.width // 2)
    growth = longest / original if inner.value("factor") is None else inner.real("factor", maximum=1e6)
    amplitude = 1.0 if growth <= 1 else math.sqrt(1 + math.log(growth) / math.log(original))
    amplitude = inner.optional_real("attention_factor", amplitude, maximum=1e6)
    inner.check_unknown((), "rotary")
    return _set_factors(plain, factors, amplitude, original)


def _read_yarn(inner: ConfigFields, plain: RotaryEmbedding, theta: float, longest: int) -> RotaryEmbedding:
    """Pairs that turn often in a text of the original length keep their rate, those that turn less than once are slowed
    down by the factor, and those between by a part of it, as in the paper "YaRN" (arXiv:2309.00071)."""
    original = inner.integer("original_max_position_embeddings", MAX_POSITIONS, longest, minimum=2)
    factor = longest / original if inner.value("factor") is None else inner.real("factor", maximum=1e6)
    stated, amount = (inner.optional_real(name, 0.0, maximum=1e6) for name in ("mscale", "mscale_all_dim"))
    amplitude = _grow(factor, stated) / _grow(factor, amount) if stated and amount else _grow(factor, 1.0)
    amplitude = inner.optional_real("attention_factor", amplitude, maximum=1e6)
    turns = [inner.optional_real(name, default, maximum=1e6) for name, default in (("beta_fast", 32), ("beta_slow", 1))]
    if theta <= 1:
        inner.fail(f"expected a rope_theta above 1, found {theta!r}")
        return plain
    first, last = (plain.width * math.log(original / (2 * math.pi * n)) / (2 * math.log(theta)) for n in turns)
    if inner.value("truncate") is not False:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, plain.width - 1)
    last += 0.001 * (first == last)
    ramps = [min(1.0, max(0.0, (pair - first) / (last - first))) for pair in range(plain.width // 2)]
    inner.check_unknown((), "rotary")
    return _set_factors(plain, tuple(1 / (ramp / factor + 1 - ramp) for ramp in ramps), amplitude, MAX_POSITIONS)


def _grow(factor: float, amount: float) -> float:
    """The amplitude of YaRN for texts that are `factor` times as long as the original ones."""
    return 1.0 if factor <= 1 else 0.1 * amount * math.log(factor) + 1.0


def _read_dynamic(fields: ConfigFields, inner: ConfigFields, plain: RotaryEmbedding, longest: int) -> RotaryEmbedding:
    """Texts of at most `max_position_embeddings` tokens are rotated as without scaling. The rate of longer ones would
    change with every token, and a plan has one."""
    inner.real("factor", maximum=1e6)
    fields.note(f"rope_type is dynamic: texts have at most {longest:,} tokens, which are not scaled")
    inner.check_unknown(("original_max_position_embeddings",), "rotary")
    return replace(plain, longest=longest)


def _set_factors(plain: RotaryEmbedding, factors: tuple[float, ...], amplitude: float, longest: int) -> RotaryEmbedding:
    arguments = f'{plain.arguments}, scaling="longrope", factors=factors'
    return RotaryEmbedding(arguments, plain.width, amplitude, factors, longest)


def _find_holder(holders: list[ConfigFields], name: str) -> ConfigFields:
    """The object that has a field. If both have it, their values must agree."""
    matching = [holder for holder in holders if holder.value(name) is not None]
    values = [holder.value(name) for holder in matching]
    if len(values) == 2 and values[0] != values[1]:
        holders[-1].fail(f"{name} stands twice: {describe_json(values[1])} and {describe_json(values[0])}")
    return matching[0] if matching else holders[-1]


def _read_scaling(inner: ConfigFields) -> str:
    """The arguments that slow the rotation of all texts down."""
    kind = inner.value("rope_type", "type") or "default"
    arguments = ""
    if kind == "linear":
        arguments = f', scaling="linear", factor={inner.real("factor", maximum=1e6)!r}'
    elif kind == "llama3":
        factor, low, high = (
            inner.real(name, maximum=1e6) for name in ("factor", "low_freq_factor", "high_freq_factor")
        )
        original = inner.integer("original_max_position_embeddings", MAX_POSITIONS)
        if low >= high:
            inner.fail(f"expected a low_freq_factor below the high_freq_factor, found {low!r} and {high!r}")
        arguments = (
            f', scaling="llama3", factor={factor!r}, low_freq_factor={low!r}, high_freq_factor={high!r},'
            f" original_length={original}"
        )
    elif kind != "default":
        inner.fail(
            f"rope_type {describe_json(kind)} is not supported",
            "supported are default, linear, llama3, yarn, dynamic, longrope",
        )
        return arguments
    inner.check_unknown(("original_max_position_embeddings",), "rotary")
    return arguments
