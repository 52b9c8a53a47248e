"""Experts whose weight is stored in every form, and what it stands for: by ml_dtypes, element by element, in f64."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

from einc_runtime.dtypes import Array

F8 = np.dtype(ml_dtypes.float8_e4m3fn)


class StoredExperts(NamedTuple):
    """The operands of a weight [experts, n, k], their group, and the weight."""

    operands: list[Array]
    group: int
    wide: Array


FORMS = ("i8", "i8 groups", "i4", "i4 groups and zeros", "f8", "f8 of experts", "f8 groups", "mxfp8", "mxfp4", "nvfp4")


def draw_experts(form: str, count: int, n: int, k: int, kind: np.dtype) -> StoredExperts:
    """Scales have the type `kind` where they are those of integers. k is a multiple of 32."""
    rng = np.random.default_rng(count * n * k)
    group = {"i8 groups": 32, "i4 groups and zeros": 32, "f8 groups": 32, "nvfp4": 16}.get(form, 32 * ("mx" in form))
    numbers, values = _draw_values(rng, form, (count, n, k))
    each = (count, n, k // group) if group else (count,) if form == "f8 of experts" else (count, n)
    scales = (rng.uniform(0.25, 1, each) * 0.02).astype(kind if form[0] == "i" else "f4")
    more: list[Array] = []
    if form.startswith("mx"):
        scales = np.exp2(rng.integers(-7, 2, each)).astype(ml_dtypes.float8_e8m0fnu)
    if form == "nvfp4":
        scales, more = rng.uniform(0.1, 1, each).astype(F8), [rng.uniform(0.1, 1, count).astype("f4")]
    if form.endswith("zeros"):
        more = [rng.integers(-8, 9, each).astype("i1")]
        numbers = numbers - np.repeat(more[0], group, axis=2)
    spread = np.repeat(scales.astype("f8"), group or 1, axis=-1)
    wide = numbers * spread.reshape(*spread.shape, *[1] * (3 - spread.ndim))
    if form == "nvfp4":
        wide = wide * more[0].astype("f8")[:, None, None]
    return StoredExperts([values, scales, *more], group, wide)


def _draw_values(rng: np.random.Generator, form: str, shape: tuple[int, int, int]) -> tuple[Array, Array]:
    """Numbers in f64, and the bytes that are stored of them: of 4 bits, the first of two is in the low half."""
    if form.startswith("i8"):
        values = rng.integers(-128, 128, shape, np.int8)
        return values.astype("f8"), values
    if form.startswith(("f8", "mxfp8")):
        values = rng.standard_normal(shape).astype(F8)
        return values.astype("f8"), values
    halves = rng.integers(0, 16, shape, np.uint8)
    packed = halves[..., 0::2] | halves[..., 1::2] << 4
    if form.startswith("i4"):
        return halves.astype("f8") - 8, packed
    return halves.view(ml_dtypes.float4_e2m1fn).astype("f8"), packed.view("V1")
