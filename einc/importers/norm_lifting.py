"""Finds norms again that were spelled out, with their gains, and turns those of heads before they are computed."""

from __future__ import annotations

from typing import Any

from einc.importers.arrays.moving import transpose
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import layer_norm, rms_norm
from einc.importers.arrays.values import Array
from einc.importers.origins import find_scaled, pairs


def turn_before_norm(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """Norms of heads [..., tokens, heads, d] that are turned afterwards are those of heads in front, which the product
    before them can make."""
    source, order = arguments[:2]
    norm = program.find_origin(source, "rms_norm")
    if norm is None or array.rank != 4 or order[-1] % array.rank != array.rank - 1:
        return None
    return rms_norm(program, transpose(program, norm[0], order, array.name), *list_vectors(norm), array.name)


def find_rms_norm(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """x * rsqrt(mean(x * x) + eps), or x / sqrt(...), over the last axis."""
    for x, factor in pairs(arguments):
        inside = program.find_origin(factor, "rsqrt")
        eps = find_scaled(program, inside[0], "add") if inside is not None else None
        if eps is None or not isinstance(x, Array) or not _is_mean_square(program, eps[0], x):
            continue
        return rms_norm(program, x, None, eps[1], hint=array.name)
    return None


def find_divided_norm(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    x, divisor = arguments[:2]
    inside = program.find_origin(divisor, "sqrt")
    eps = find_scaled(program, inside[0], "add") if inside is not None else None
    if eps is None or not isinstance(x, Array) or not _is_mean_square(program, eps[0], x):
        return None
    return rms_norm(program, x, None, eps[1], hint=array.name)


def _is_mean_square(program: ArrayProgram, value: Any, x: Array) -> bool:
    """Whether this is the mean of the squares of x over its last axis, which it keeps."""
    kept = program.find_origin(value, "reshape")
    mean = program.find_origin(kept[0] if kept is not None else value, "reduce")
    if mean is None or mean[1] != "mean" or not mean[2] or list(mean[2]) not in ([-1], [x.rank - 1]):
        return False
    square = program.find_origin(mean[0], "square")
    product = program.find_origin(mean[0], "mul")
    operands = square[:1] if square is not None else product[:2] if product is not None else ()
    return bool(operands) and all(isinstance(part, Array) and part.name == x.name for part in operands)


def scale_norm(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A norm without a gain, times a gain of its last axis, of which a number may have been subtracted."""
    for gain, norm in pairs(arguments):
        operands = program.find_origin(norm, "rms_norm")
        if operands is None or operands[1] is not None or not isinstance(gain, Array) or gain.type is not norm.type:
            continue
        if gain.rank == 1 and gain.shape[0] == norm.shape[-1] and gain.known is None:
            gain, offset = find_scaled(program, gain, "add") or (gain, 0.0)
            return rms_norm(program, operands[0], gain, operands[2], offset, hint=array.name)
    return None


def scale_layer_norm(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + eps) is a layer norm, whose rows are centred first."""
    operands = program.find_origin(array, "rms_norm")
    centred = program.find_origin(operands[0], "sub") if operands is not None and operands[1] is None else None
    if operands is None or centred is None or not isinstance(centred[1], Array):
        return None
    kept = program.find_origin(centred[1], "reshape")
    mean = program.find_origin(kept[0] if kept is not None else centred[1], "reduce")
    x: Array = centred[0]
    if mean is None or mean[1] != "mean" or mean[0].name != x.name or list(mean[2]) not in ([-1], [x.rank - 1]):
        return None
    return layer_norm(program, x, None, None, operands[2], array.name)


def list_vectors(norm: tuple[Any, ...]) -> tuple[Array | None, float, float]:
    """The gain of a norm, its eps, and the offset of the gain."""
    gain, eps, *offset = norm[1:]
    return gain, eps, float(offset[0]) if offset else 0.0
