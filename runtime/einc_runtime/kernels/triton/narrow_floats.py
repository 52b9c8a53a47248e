"""Floats of 8 bits in sources: functions that widen stored bytes to f32 and round f32 to them, by their bits.

No GPU needs to know the types for that. The bytes of f8e5m2 are the upper halves of f16; those of f8e4m3, moved to
where an f16 has its bits, are an f16 that is 2^8 times too small, also where it is subnormal.

Rounding is to nearest, to even where two are as near: of the bits that are dropped, a half less one is added, and one
more where the last kept bit is odd. Below the smallest normal number, what is added to f32 is so large that its last
bit is the distance of the subnormal ones. Values beyond the largest become it (`plan.schema.NARROW_LARGEST`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from einc_runtime.dtypes import NARROW_LARGEST

_FRACTION_BITS = {"f8e4m3": 3, "f8e5m2": 2}
_BIASES = {"f8e4m3": 7, "f8e5m2": 15}
_NAN_BYTES = {"f8e4m3": 0x7F, "f8e5m2": 0x7E}

_F32_FRACTION_BITS, _F32_BIAS = 23, 127

_WIDEN = {
    "f8e5m2": """

@triton.jit
def widen_f8e5m2(stored):
    return ((stored.to(tl.int32) & 255) << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
""",
    "f8e4m3": """

@triton.jit
def widen_f8e4m3(stored):
    bits = stored.to(tl.int32)
    moved = (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.int16)
    value = moved.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((bits & 127) == 127, float("nan"), value)
""",
}


def write_narrow_helpers(lines: Sequence[str]) -> str:
    """The functions that some lines call."""
    text = "\n".join(lines)
    widening = [_WIDEN[kind] for kind in NARROW_LARGEST if f"widen_{kind}(" in text]
    return "".join([*widening, *(_write_rounding(kind) for kind in NARROW_LARGEST if f"narrow_{kind}(" in text)])


def _write_rounding(kind: str) -> str:
    dropped = _F32_FRACTION_BITS - _FRACTION_BITS[kind]
    smallest = 2.0 ** (1 - _BIASES[kind])
    adding = 1.5 * smallest * 2.0**dropped  # its last bit is that of the smallest normal number here
    return f"""

@triton.jit
def narrow_{kind}(x):
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    capped = tl.minimum(size, {_find_bits(NARROW_LARGEST[kind])})
    half = {(1 << (dropped - 1)) - 1} + ((capped >> {dropped}) & 1)
    normal = ((capped + half) >> {dropped}) - {(_F32_BIAS - _BIASES[kind]) << _FRACTION_BITS[kind]}
    added = capped.to(tl.float32, bitcast=True) + {adding!r}
    subnormal = added.to(tl.int32, bitcast=True) - {_find_bits(adding)}
    code = tl.where(capped < {_find_bits(smallest)}, subnormal, normal)
    code = tl.where(size > {_find_bits(float("inf"))}, {_NAN_BYTES[kind]}, code)
    return (code | ((bits >> 24) & 128)).to(tl.int8)
"""


def _find_bits(value: float) -> int:
    """The bits of an f32."""
    return int.from_bytes(struct.pack("<f", value), "little")
