"""Floats of 8 and 4 bits in sources: functions that widen stored bits to f32 and round f32 to them, by their bits.

No GPU needs to know the types for that. Moved to where an f16 has its bits, they are an f16 that is smaller by the
difference of the biases, also where it is subnormal: 2^8 times for f8e4m3, 2^14 times for those of 4 bits. The bits of
f8e8m0 are the exponents of f32.

Rounding is to nearest, to even where two are as near: of the bits that are dropped, a half less one is added, and one
more where the last kept bit is odd. Below the smallest normal number, what is added to f32 is so large that its last
bit is the distance of the subnormal ones. Values beyond the largest become it (`plan.element_types.FloatBits`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from einc_runtime.plan.element_types import ELEMENT_FORMATS, FloatBits

F32_BIAS = 127
"""What is added to exponents of f32."""
_F32_FRACTION_BITS = 23
_F16_BIAS, _F16_EXPONENT_AND_FRACTION = 15, 15

_FLOAT_BITS: dict[str, FloatBits] = {name: each.bits for name, each in ELEMENT_FORMATS.items() if each.bits is not None}
_EXPONENTS = "f8e8m0"
WIDENED_TYPES = frozenset((*_FLOAT_BITS, _EXPONENTS))
"""Types that have a function `widen_TYPE`, which takes bits in an integer, and ignores those that the type lacks."""

_WIDEN_EXPONENTS = f"""

@triton.jit
def widen_{_EXPONENTS}(stored):
    bits = stored.to(tl.int32) & 255
    moved = tl.where(bits == 0, {1 << _F32_FRACTION_BITS - 1}, bits << {_F32_FRACTION_BITS})
    value = moved.to(tl.float32, bitcast=True)
    return tl.where(bits == 255, float("nan"), value)
"""


def write_narrow_helpers(lines: Sequence[str]) -> str:
    """The functions that some lines call."""
    text = "\n".join(lines)
    widening = [_write_widening(kind, form) for kind, form in _FLOAT_BITS.items() if f"widen_{kind}(" in text]
    rounding = [_write_rounding(kind, form) for kind, form in _FLOAT_BITS.items() if f"narrow_{kind}(" in text]
    return "".join([*widening, *[_WIDEN_EXPONENTS] * (f"widen_{_EXPONENTS}(" in text), *rounding])


def _write_widening(kind: str, form: FloatBits) -> str:
    size = form.exponent + form.fraction
    magnitude, sign = (1 << size) - 1, 1 << size
    up = _F16_EXPONENT_AND_FRACTION - form.exponent - form.fraction - (5 - form.exponent)
    moved = f"((bits & {sign}) << {15 - size}) | ((bits & {magnitude}) << {up})"
    lines = [
        "bits = stored.to(tl.int32)",
        f"moved = ({moved}).to(tl.int16)",
        f"value = moved.to(tl.float16, bitcast=True).to(tl.float32) * {2.0 ** (_F16_BIAS - form.bias)!r}",
    ]
    infinite = form.exponent == 5  # f16 has the same exponents, with infinities and NaN
    value = (
        "value"
        if infinite or form.nan is None
        else f'tl.where((bits & {magnitude}) == {form.nan}, float("nan"), value)'
    )
    return f"\n\n@triton.jit\ndef widen_{kind}(stored):\n" + "".join(f"    {x}\n" for x in [*lines, f"return {value}"])


def _write_rounding(kind: str, form: FloatBits) -> str:
    dropped = _F32_FRACTION_BITS - form.fraction
    smallest = 2.0 ** (1 - form.bias)
    adding = 1.5 * smallest * 2.0**dropped  # its last bit is that of the smallest normal number here
    sign = 1 << form.exponent + form.fraction
    invalid = form.nan if form.nan is not None else 0  # without NaN, what is none becomes 0
    return f"""

@triton.jit
def narrow_{kind}(x):
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    capped = tl.minimum(size, {_find_bits(form.largest)})
    half = {(1 << (dropped - 1)) - 1} + ((capped >> {dropped}) & 1)
    normal = ((capped + half) >> {dropped}) - {(F32_BIAS - form.bias) << form.fraction}
    added = capped.to(tl.float32, bitcast=True) + {adding!r}
    subnormal = added.to(tl.int32, bitcast=True) - {_find_bits(adding)}
    code = tl.where(capped < {_find_bits(smallest)}, subnormal, normal)
    code = tl.where(size > {_find_bits(float("inf"))}, {invalid}, code)
    return (code | ((bits >> {31 - form.exponent - form.fraction}) & {sign})).to(tl.int8)
"""


def _find_bits(value: float) -> int:
    """The bits of an f32."""
    return int.from_bytes(struct.pack("<f", value), "little")
