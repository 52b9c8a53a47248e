"""The element types of plans: one record for each, from which everything else that knows types is derived."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

DTypeName = Literal[
    "f16", "bf16", "f32", "f64", "i32", "i64", "bool", "i8", "i4x2", "f8e4m3", "f8e5m2", "f4x2", "f8e8m0"
]  # fmt: skip
Kind = Literal["float", "integer", "bool", "narrow", "stored"]
"""What a type is for: models compute in the first three, nothing is computed in `narrow` values, and `stored` ones are
parts of quantized weights alone."""


@dataclass(frozen=True, slots=True)
class FloatBits:
    """A narrow float: a sign, the bits of an exponent and of a fraction, the largest value, and the bits of NaN, if it
    has any. What is larger than the largest value becomes it, with its sign."""

    exponent: int
    fraction: int
    largest: float
    nan: int | None

    @property
    def bias(self) -> int:
        """What is added to exponents."""
        return (1 << self.exponent - 1) - 1

    @property
    def largest_exponent(self) -> int:
        """That of the largest value: both have the same power of two."""
        return int(self.largest).bit_length() - 1


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """What is the same for all elements of a type.

    `width` is that of an element in bytes, of which each has `packing` values: of two, the first is in the low half.
    `numpy` or `ml` is what numpy or ml_dtypes calls it, `safetensors` what files do, and `triton` its type in
    signatures of kernels, which take narrow and stored types as bytes. `peaks` names those of a machine file that may
    limit products of it, the first one known. `variance` is about that of random bits.
    """

    width: int
    kind: Kind
    triton: str
    numpy: str = ""
    ml: str = ""
    safetensors: str = ""
    bits: FloatBits | None = None
    packing: int = 1
    peaks: tuple[str, ...] = field(default=("f32",), kw_only=True)
    variance: int = field(default=1, kw_only=True)


_E4M3, _E5M2, _E2M1 = FloatBits(4, 3, 448.0, 0x7F), FloatBits(5, 2, 57344.0, 0x7E), FloatBits(2, 1, 6.0, None)
_F8_PEAKS = ("f8", "f16", "f32")

ELEMENT_FORMATS: dict[DTypeName, ElementFormat] = {
    "f16": ElementFormat(2, "float", "fp16", "float16", safetensors="F16", peaks=("f16", "f32")),
    "bf16": ElementFormat(2, "float", "bf16", ml="bfloat16", safetensors="BF16", peaks=("bf16", "f32")),
    "f32": ElementFormat(4, "float", "fp32", "float32", safetensors="F32"),
    "f64": ElementFormat(8, "float", "fp64", "float64", safetensors="F64", peaks=("f64", "f32")),
    "i32": ElementFormat(4, "integer", "i32", "int32", safetensors="I32", peaks=("i32", "f32")),
    "i64": ElementFormat(8, "integer", "i64", "int64", safetensors="I64", peaks=("i64", "f32")),
    "bool": ElementFormat(1, "bool", "i8", "bool", safetensors="BOOL", peaks=("bool", "f32")),
    "i8": ElementFormat(1, "stored", "i8", "int8", safetensors="I8", peaks=("i8", "f16", "f32"), variance=5461),
    "i4x2": ElementFormat(1, "stored", "i8", "uint8", safetensors="U8", packing=2, variance=21),
    "f8e4m3": ElementFormat(
        1, "narrow", "i8", ml="float8_e4m3fn", safetensors="F8_E4M3", bits=_E4M3, peaks=_F8_PEAKS, variance=256
    ),
    "f8e5m2": ElementFormat(
        1, "narrow", "i8", ml="float8_e5m2", safetensors="F8_E5M2", bits=_E5M2, peaks=_F8_PEAKS, variance=256
    ),
    "f4x2": ElementFormat(1, "stored", "i8", "V1", bits=_E2M1, packing=2, peaks=("f4", "f16", "f32"), variance=9),
    "f8e8m0": ElementFormat(1, "stored", "i8", ml="float8_e8m0fnu", safetensors="F8_E8M0"),
}
"""Each value of `i4x2` is an integer of 4 bits, stored plus 8; each of `f4x2` a float with 2 bits of an exponent and 1
of a fraction. `f8e4m3` has no infinities. `f8e8m0` is a power of two: its exponent plus 127, where 255 is NaN (OCP
Microscaling Formats specification 1.0). To numpy, `f4x2` are bytes of no type, so that arrays tell what they are."""


_BY_NAME: dict[str, ElementFormat] = dict(ELEMENT_FORMATS.items())


def find_element_type(name: str) -> ElementFormat:
    """The type of this name; raises KeyError where there is none."""
    return _BY_NAME[name]


def list_peaks(name: str) -> tuple[str, ...]:
    """The peaks of a machine file that may limit products of a type, the first one known. A file may name others."""
    return _BY_NAME[name].peaks if name in _BY_NAME else (name, "f32")


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How quantized weights are stored whose name in the language this is: the types of values and scales, where ""
    is the weight's own type, and the size of all groups, where it is 0 if a weight says it. With `has_factor`, a tensor
    has a factor in f32 beside its scales. `rounded` is what products round what they multiply with the weight to, where
    a weight says so."""

    name: str
    values: DTypeName
    scales: DTypeName | Literal[""] = ""
    group: int = 0
    has_factor: bool = False
    rounded: DTypeName = "f8e4m3"

    @property
    def packing(self) -> int:
        """The values in a byte."""
        return ELEMENT_FORMATS[self.values].packing

    @property
    def is_float(self) -> bool:
        """Whether values are floats: without zero points, and of a weight whose type no operand tells."""
        return ELEMENT_FORMATS[self.values].bits is not None

    def rounds_inputs(self, group: int) -> bool:
        """Whether products with it, in groups of so many elements, can round what they multiply with it."""
        return self.is_float or (self.values == self.rounded and not group)

    def needs_largest(self, group: int) -> bool:
        """Whether rounding takes the largest magnitudes of whole rows: for their scales, or for their factors."""
        return not group or self.has_factor

    def list_more(self) -> tuple[list[str], ...]:
        """The types of what may stand beside values and scales: a factor, or zero points."""
        return (["f32"],) if self.has_factor else ([],) if self.is_float else ([], ["i8"])

    @property
    def input_bits(self) -> int:
        """The bits of what products multiply with the weight, where they round it."""
        kind = ELEMENT_FORMATS[self.rounded]
        return 8 * kind.width // kind.packing


STORED_FORMS: dict[str, StoredForm] = {
    form.name: form
    for form in (
        StoredForm("i8", "i8", rounded="i8"),
        StoredForm("i4", "i4x2", rounded="i8"),
        StoredForm("f8e4m3", "f8e4m3", "f32"),
        StoredForm("f8e5m2", "f8e5m2", "f32"),
        StoredForm("mxfp8", "f8e4m3", "f8e8m0", 32),
        StoredForm("mxfp4", "f4x2", "f8e8m0", 32),
        StoredForm("nvfp4", "f4x2", "f8e4m3", 16, has_factor=True, rounded="f4x2"),
    )
}
"""MXFP8 and MXFP4 are those of the OCP Microscaling Formats specification 1.0, NVFP4 that of NVIDIA's Blackwell."""


def find_stored_form(values: str, scales: str) -> StoredForm | None:
    """The form whose operands have these types; None where there is none."""
    return next(
        (
            form
            for form in STORED_FORMS.values()
            if form.values == values and (scales in _FLOATS if not form.scales else form.scales == scales)
        ),
        None,
    )


_FLOATS = tuple(name for name, each in ELEMENT_FORMATS.items() if each.kind == "float")
