"""Finds operators of the language again that a graph has in pieces: norms, activations, attention, linear layers.

`lift` is told of each array when it is made, with what made it (`ArrayProgram.origins`), and returns an array that
means the same. What nothing needs any more is left out of the text. What is not recognized stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from einc.importers.arrays.attention import rotate
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import reshape, transpose
from einc.importers.arrays.products import matmul, multiply_picked, multiply_rows
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import rms_norm, softmax
from einc.importers.arrays.values import Array, Shape
from einc.importers.arrays.views import Origin
from einc.importers.attention_lifting import find_attention
from einc.importers.causal_lifting import hide_choice, hide_sliced_weights, hide_sum, hide_weights
from einc.importers.norm_lifting import (
    find_divided_norm,
    find_rms_norm,
    list_vectors,
    scale_layer_norm,
    scale_norm,
    turn_before_norm,
)
from einc.importers.origins import find_scaled, is_near, pairs
from einc.importers.rotary_lifting import find_rotary

Rule = Callable[[ArrayProgram, Array, tuple[Any, ...]], Array | None]


def lift(program: ArrayProgram, array: Array) -> Array:
    """An array that means the same as one that has just been made, by fewer and better operators if there are any."""
    origin = program.origins.get(array.name)
    if origin is None:
        return array
    for rule in _LIFTING_RULES.get(origin.operation, ()):
        lifted = rule(program, array, origin.arguments)
        if lifted is not None:
            return lifted
    return array


# ---- views ----


def merge_reshapes(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A reshape of a reshape reads the first array; one that goes back is none."""
    inner = program.find_origin(arguments[0], "reshape")
    return reshape(program, inner[0], array.shape, array.name) if inner is not None else None


def move_reshape(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A product of rows that were put together from more dimensions has these dimensions instead; so has its bias."""
    source: Array = arguments[0]
    if source.rank != 2 or array.rank < 2 or array.shape[-1] != source.shape[-1]:
        return None
    summands = program.find_origin(source, "add")
    for product, bias in pairs(summands) if summands is not None else []:
        if isinstance(bias, Array) and bias.rank == 1 and isinstance(product, Array) and product.rank == 2:
            wide = _widen_product(program, product, array)
            if wide is not None:
                return apply(program, "add", wide, bias, hint=array.name)
    return _widen_product(program, source, array)


_ROWWISE = ("mul", "silu", "sigmoid", "cast", "rms_norm")
"""Operations on rows, which are the same with more dimensions before."""


def move_reshape_of_factors(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """What was computed of flattened arrays, with the dimensions that they had before, or with those joined."""
    flat: Array = arguments[0]
    if flat.rank != 2 or array.rank <= 2 or program.find_origin(flat, "reshape") is not None:
        return None
    if array.shape[-1] == flat.shape[-1]:
        return _widen(program, flat, array.shape[:-1], array.name)
    lead = _find_lead(program, flat)
    wide = _widen(program, flat, lead, array.name) if lead is not None else None
    return reshape(program, wide, array.shape, array.name) if wide is not None else None


def _find_lead(program: ArrayProgram, value: Any) -> Shape | None:
    """The dimensions that were flattened to the first one of an array [n, d], or of one that it is computed of."""
    if not isinstance(value, Array) or value.rank != 2:
        return None
    flattened = program.find_origin(value, "reshape")
    if flattened is not None:
        source: Array = flattened[0]
        return source.shape[:-1] if source.rank > 2 and source.shape[-1] == value.shape[-1] else None
    origin = program.origins.get(value.name)
    if origin is None or origin.operation not in _ROWWISE:
        return None
    leads = (_find_lead(program, part) for part in origin.arguments[: 2 if origin.operation == "mul" else 1])
    return next((lead for lead in leads if lead is not None), None)


def _widen(program: ArrayProgram, value: Any, lead: Shape, hint: str) -> Array | None:
    """An array [n, d] as [lead..., d]: one that was flattened, a product, a norm, or a function of such arrays."""
    if not isinstance(value, Array) or value.rank != 2:
        return value if isinstance(value, Array) and value.rank == 1 else None
    shape = [*lead, value.shape[-1]]
    flattened = program.find_origin(value, "reshape")
    if flattened is not None:
        source: Array = flattened[0]
        return reshape(program, source, shape, hint) if _splits(source.shape, shape) else None
    origin = program.origins.get(value.name)
    if origin is None or origin.operation not in _ROWWISE:
        return None
    wide = [_widen(program, part, lead, hint) for part in origin.arguments[: 2 if origin.operation == "mul" else 1]]
    if any(part is None for part in wide):
        return None
    parts = [part for part in wide if part is not None]
    if origin.operation == "cast":
        return cast(program, parts[0], value.type, hint)
    if origin.operation == "rms_norm":
        return rms_norm(program, parts[0], *list_vectors(origin.arguments), hint)
    return apply(program, origin.operation, *parts, hint=hint)


def _splits(joined: Sequence[Extent], shape: Sequence[Extent]) -> bool:
    """Whether each dimension of `joined` is one of `shape`, or several in a row that are split there."""
    ends = [multiply_extents(shape[: axis + 1]) for axis in range(len(shape))]
    return all(multiply_extents(joined[: axis + 1]) in (make_extent(1), *ends) for axis in range(len(joined)))


def _widen_product(program: ArrayProgram, product: Array, like: Array) -> Array | None:
    operands = program.find_origin(product, "matmul")
    rows = program.find_origin(operands[0], "reshape") if operands is not None else None
    if operands is None or rows is None or operands[1].rank != 2:
        return None
    source: Array = rows[0]
    axes = like.rank - 1
    if source.shape[:axes] != like.shape[:-1]:
        return None
    wide = reshape(program, source, [*like.shape[:-1], operands[0].shape[-1]], like.name)
    return matmul(program, wide, operands[1], like.name)


def merge_transposes(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    inner = program.find_origin(arguments[0], "transpose")
    if inner is None:
        return None
    source, order, rank = inner[0], inner[1], array.rank
    merged = [order[axis % rank] % rank for axis in arguments[1]]
    return transpose(program, source, merged, array.name)


def merge_casts(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A cast back to the type from which it was widened; norms, rotations and softmax compute in f32 by themselves."""
    source: Array = arguments[0]
    inner = program.find_origin(source, "cast")
    if inner is not None and inner[0].type is array.type and _is_wider(source, array):
        original: Array = inner[0]
        return original
    norm = program.find_origin(source, "rms_norm")
    if norm is not None and (wide := program.find_origin(norm[0], "cast")) and wide[0].type is array.type:
        gain = norm[1]
        if gain is None or _is_wider(source, array):
            narrow = cast(program, gain, array.type) if isinstance(gain, Array) else None
            return rms_norm(program, wide[0], narrow, *list_vectors(norm)[1:], array.name)
    turned = program.find_origin(source, "rotate")
    if turned is not None and (wide := program.find_origin(turned[0], "cast")) and wide[0].type is array.type:
        return rotate(program, wide[0], turned[1], array.name)
    weights = program.find_origin(source, "softmax")
    if weights is not None and (wide := program.find_origin(weights[0], "cast")) and wide[0].type is array.type:
        return softmax(program, wide[0], weights[1], array.name)
    return None


def _is_wider(wide: Array, narrow: Array) -> bool:
    return wide.type.is_float and narrow.type.is_float and wide.type.bits > narrow.type.bits


# ---- activations ----


def find_gelu(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """0.5 x (1 + erf(x / sqrt(2))), and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), in any order of factors."""
    for half, gate in pairs(arguments):
        scaled = find_scaled(program, half)
        shifted = find_scaled(program, gate, "add")
        if scaled is None or shifted is None or scaled[1] != 0.5 or shifted[1] != 1.0:
            continue
        if _is_erf(program, shifted[0], scaled[0]):
            return apply(program, "gelu", scaled[0], hint=array.name)
        if _is_tanh(program, shifted[0], scaled[0]):
            return apply(program, "gelu_tanh", scaled[0], hint=array.name)
    halved = find_scaled(program, array)
    if halved is not None and halved[1] == 0.5:  # 0.5 * (x * (1 + ...))
        for x, gate in pairs(program.find_origin(halved[0], "mul") or (None, None)):
            shifted = find_scaled(program, gate, "add")
            if shifted is None or shifted[1] != 1.0 or not isinstance(x, Array):
                continue
            if _is_erf(program, shifted[0], x):
                return apply(program, "gelu", x, hint=array.name)
            if _is_tanh(program, shifted[0], x):
                return apply(program, "gelu_tanh", x, hint=array.name)
    return None


def _is_erf(program: ArrayProgram, value: Array, x: Array) -> bool:
    inside = program.find_origin(value, "erf")
    scaled = find_scaled(program, inside[0]) if inside is not None else None
    if scaled is None and inside is not None:
        divided = find_scaled(program, inside[0], "div")
        scaled = (divided[0], 1 / divided[1]) if divided is not None else None
    return scaled is not None and scaled[0].name == x.name and is_near(scaled[1], math.sqrt(0.5))


def _is_tanh(program: ArrayProgram, value: Array, x: Array) -> bool:
    inside = program.find_origin(value, "tanh")
    scaled = find_scaled(program, inside[0]) if inside is not None else None
    if scaled is None or not is_near(scaled[1], math.sqrt(2 / math.pi)):
        return False
    for first, second in pairs(program.find_origin(scaled[0], "add") or (None, None)):
        cubed = find_scaled(program, second)
        if isinstance(first, Array) and first.name == x.name and cubed is not None and is_near(cubed[1], 0.044715):
            return _is_power(program, cubed[0], x, 3)
    return False


def _is_power(program: ArrayProgram, value: Any, x: Array, power: int) -> bool:
    if not isinstance(value, Array):
        return False
    if power == 1:
        return value.name == x.name
    if power == 2 and (square := program.find_origin(value, "square")) is not None:
        return bool(square[0].name == x.name)
    raised = find_scaled(program, value, "pow")
    if raised is not None:
        return raised == (x, float(power))
    return any(
        isinstance(factor, Array) and factor.name == x.name and _is_power(program, left, x, power - 1)
        for left, factor in pairs(program.find_origin(value, "mul") or (None, None))
    )


def find_silu(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    for x, gate in pairs(arguments):
        inside = program.find_origin(gate, "sigmoid")
        if inside is not None and isinstance(x, Array) and inside[0].name == x.name:
            return apply(program, "silu", x, hint=array.name)
    return None


# ---- products ----


def read_transposed(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A product with a weight that was transposed reads the weight as it lies."""
    x, right = arguments[:2]
    operands = program.find_origin(right, "transpose")
    if operands is None or right.rank != 2 or x.rank < 2 or not program.is_weight(operands[0]):
        return None
    product = multiply_rows(program, x, operands[0], hint=array.name)
    program.origins[product.name] = Origin("matmul", (x, right), product)  # so that its reshapes are recognized, too
    return product


def skip_expansion(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A matrix that is repeated for each batch is read as the matrix that it is."""
    right = arguments[1]
    spread = program.find_origin(right, "expand")
    if spread is None or spread[0].shape[-2:] != right.shape[-2:]:
        return None
    if any(extent != make_extent(1) for extent in spread[0].shape[:-2]):
        return None
    return matmul(program, arguments[0], reshape(program, spread[0], spread[0].shape[-2:], array.name), array.name)


def find_experts(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """Products with matrices that are picked by data, one for each row: w[picks] [s, n, k] with [s, k, 1], or rows
    [s, 1, k] with w[picks] [s, k, n]; the latter also with slots: rows [t, s or 1, 1, k] with w[picks] [t, s, k, n]."""
    left, right = arguments[:2]
    if array.rank == 4:
        return _find_slots_of_experts(program, array, left, right)
    if array.rank != 3:
        return None
    for picked, rows, axes in ((left, right, (0, 1, 2)), (right, left, (0, 2, 1))):
        taken = program.find_origin(picked, "take")
        if taken is None or not _are_experts(program, taken, 1):
            continue
        vectors = rows.shape[2] if picked is left else rows.shape[1]
        if vectors != make_extent(1):
            continue
        flat = reshape(program, rows, [rows.shape[0], picked.shape[2] if picked is left else picked.shape[1]])
        matrices = transpose(program, taken[0], axes, "experts")
        picks = reshape(program, taken[1], [rows.shape[0], 1], "picks")
        return reshape(program, multiply_picked(program, flat, matrices, picks, array.name), array.shape, array.name)
    return None


def _find_slots_of_experts(program: ArrayProgram, array: Array, rows: Array, picked: Array) -> Array | None:
    turned = program.find_origin(picked, "transpose")
    if turned is not None and [axis % 4 for axis in turned[1]] != [0, 1, 3, 2]:
        return None
    taken = program.find_origin(turned[0] if turned is not None else picked, "take")
    if taken is None or not _are_experts(program, taken, 2) or rows.rank != 4 or rows.shape[2] != make_extent(1):
        return None
    tokens, slots = taken[1].shape
    if rows.shape[0] != tokens or rows.shape[1] not in (slots, make_extent(1)):
        return None
    each = [tokens, rows.shape[3]] if rows.shape[1] == make_extent(1) else [tokens, slots, rows.shape[3]]
    matrices = transpose(program, taken[0], (0, 1, 2) if turned is not None else (0, 2, 1), "experts")
    product = multiply_picked(program, reshape(program, rows, each), matrices, taken[1], array.name)
    return reshape(program, product, array.shape, array.name)


def _are_experts(program: ArrayProgram, taken: tuple[Any, ...], rank: int) -> bool:
    """Whether matrices of a weight were taken by picks of this rank that are data."""
    matrices, picks, axis = taken[:3]
    turned = program.find_origin(matrices, "transpose")
    weight = matrices if turned is None else turned[0]
    return bool(
        axis == 0 and matrices.rank == 3 and picks.rank == rank and picks.known is None and program.is_weight(weight)
    )


_LIFTING_RULES: dict[str, tuple[Rule, ...]] = {
    "add": (find_rotary, hide_sum),
    "reshape": (merge_reshapes, move_reshape, move_reshape_of_factors),
    "transpose": (merge_transposes, turn_before_norm),
    "cast": (merge_casts,),
    "mul": (find_rms_norm, scale_norm, find_gelu, find_silu),
    "div": (find_divided_norm,),
    "rms_norm": (scale_layer_norm,),
    "where": (hide_choice,),
    "softmax": (hide_weights,),
    "slice_axis": (hide_sliced_weights,),
    "matmul": (skip_expansion, read_transposed, find_experts, find_attention),
}
