"""Resize and its like: each axis by itself, as sums of neighbours with weights that are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einc.importers.arrays.elementwise import cast, where
from einc.importers.arrays.moving import pad, slice_axis, take
from einc.importers.arrays.resampling import interpolate
from einc.importers.arrays.values import Array, Elements, UnsupportedError, normalize_axis
from einc.importers.onnx.nodes import Convert, OnnxNode, Results


@dataclass(frozen=True, slots=True)
class Interpolation:
    """How positions of a result become positions of its source, and which neighbours count how much."""

    mode: str
    transformation: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _resize(node: OnnxNode) -> Results:
    x = node.input(0)
    if not all(extent.is_number for extent in x.shape):
        raise UnsupportedError(
            "resizing an array whose extents depend on params", "give the params numbers: --dim NAME=N"
        )
    extents = [extent.value for extent in x.shape]
    axes = [normalize_axis(axis, x.rank) for axis in node.integers("axes") or range(x.rank)]
    scales, sizes = _read_target(node, extents, axes)
    roi = np.ravel(node.known(1, "roi")) if node.opset >= 11 and node.optional(1) is not None else np.zeros(0)
    transformation, nearest = ("half_pixel", "round_prefer_floor") if node.opset >= 11 else ("asymmetric", "floor")
    interpolation = Interpolation(
        node.string("mode", "nearest"),
        node.string("coordinate_transformation_mode", transformation),
        node.string("nearest_mode", nearest),
        node.number("cubic_coeff_a", -0.75),
        bool(node.integer("exclude_outside")),
        bool(node.integer("antialias")),
        node.number("extrapolation_value"),
    )
    outside: list[tuple[int, Elements]] = []
    result = x
    for k, axis in enumerate(axes):
        region = (float(roi[k]), float(roi[k + len(axes)])) if roi.size == 2 * len(axes) else (0.0, 1.0)
        if sizes[k] == extents[axis] and scales[k] == 1 and region == (0.0, 1.0):
            continue
        positions = find_positions(interpolation, extents[axis], sizes[k], scales[k], region)
        if interpolation.transformation == "tf_crop_and_resize":
            beyond = (positions < 0) | (positions > extents[axis] - 1)
            outside += [(axis, beyond)] if beyond.any() else []
        result = _resample(node, result, axis, positions, min(scales[k], 1.0), interpolation)
    for axis, beyond in outside:
        mask = node.program.constant(beyond.reshape([-1 if k == axis else 1 for k in range(x.rank)]))
        value = node.program.constant(np.asarray(interpolation.extrapolation).astype(x.type.numpy), x.type)
        result = where(node.program, mask, value, result, hint=node.hint)
    return result


def _read_target(node: OnnxNode, extents: Sequence[int], axes: Sequence[int]) -> tuple[list[float], list[int]]:
    """The scale and the new extent of each axis."""
    if node.operator == "Upsample" or node.opset < 11:
        attribute = node.attributes.get("scales")
        numbers = np.asarray(attribute) if attribute is not None else node.known(1, "scales")
        scales = [float(number) for number in np.ravel(numbers)]
    elif node.optional(2) is not None and node.known(2, "scales").size:
        scales = [float(number) for number in np.ravel(node.known(2, "scales"))]
    else:
        sizes = node.known_ints(3, "sizes")
        scales = [size / extents[axis] for size, axis in zip(sizes, axes, strict=True)]
        policy = node.string("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return scales, sizes
        scale = min(scales) if policy == "not_larger" else max(scales)
        return [scale] * len(axes), [math.floor(scale * extents[axis] + 0.5) for axis in axes]
    sizes = [math.floor(extents[axis] * scale) for axis, scale in zip(axes, scales, strict=True)]
    if min(sizes) < 1 or max(sizes) > 2**24:
        raise UnsupportedError(f"resizing to {sizes}")
    return scales, sizes


def find_positions(
    interpolation: Interpolation, extent: int, size: int, scale: float, region: tuple[float, float]
) -> Elements:
    """Where each position of the result lies in the source."""
    out = np.arange(size, dtype=np.float64)
    new = size if size == 1 or scale * extent == size else scale * extent
    match interpolation.transformation:
        case "half_pixel":
            return (out + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjusted = size / (scale * extent)
            return extent / 2 * (1 - adjusted) + (out + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (out + 0.5) / scale - 0.5 if size > 1 else np.zeros(1) - 0.5 * 0
        case "align_corners":
            return out * ((extent - 1) / (new - 1)) if new > 1 else np.zeros(size)
        case "asymmetric":
            return out / scale
        case "tf_crop_and_resize":
            start, end = region
            if size == 1:
                return np.full(1, 0.5 * (start + end) * (extent - 1))
            return start * (extent - 1) + out * (end - start) * (extent - 1) / (size - 1)
    raise UnsupportedError(f"coordinate_transformation_mode '{interpolation.transformation}' is not supported")


def _resample(
    node: OnnxNode, x: Array, axis: int, positions: Elements, scale: float, interpolation: Interpolation
) -> Array:
    """Along one axis: the elements at positions, between which it is interpolated."""
    program, extent = node.program, x.shape[axis].value
    if interpolation.mode == "nearest":
        nearest = round_positions(interpolation.nearest, positions)
        return take(program, x, program.constant(np.clip(nearest, 0, extent - 1).astype(np.int64)), axis, node.hint)
    reach = {"linear": 1, "cubic": 2}.get(interpolation.mode)
    if reach is None:
        raise UnsupportedError(f"mode '{interpolation.mode}' is not supported")
    return interpolate(
        program, x, axis, positions, reach, node.hint, cubic=interpolation.cubic,
        stretch=scale if interpolation.antialias else 1.0, exclude_outside=interpolation.exclude_outside,
    )  # fmt: skip


def round_positions(mode: str, positions: Elements) -> Elements:
    match mode:
        case "round_prefer_floor":
            return np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            return np.floor(positions + 0.5)
        case "floor":
            return np.floor(positions)
        case "ceil":
            return np.ceil(positions)
    raise UnsupportedError(f"nearest_mode '{mode}' is not supported")


def _crop_or_pad(node: OnnxNode) -> Results:
    """CenterCropPad: each axis cut or padded on both sides to a size."""
    x, sizes = node.input(0), node.known_ints(1, "shape")
    axes = [normalize_axis(axis, x.rank) for axis in node.integers("axes") or range(x.rank)]
    for axis, size in zip(axes, sizes, strict=True):
        extent = x.shape[axis].value
        missing = size - extent
        if missing > 0:
            before = missing // 2
            x = pad(
                node.program,
                x,
                [(before, missing - before) if k == axis else (0, 0) for k in range(x.rank)],
                0,
                node.hint,
            )
        elif missing < 0:
            start = -missing // 2
            x = slice_axis(node.program, x, axis, start, start + size, 1, node.hint)
    return cast(node.program, x, x.type)


RESIZING_OPERATORS: Mapping[str, Convert] = {"Resize": _resize, "Upsample": _resize, "CenterCropPad": _crop_or_pad}
