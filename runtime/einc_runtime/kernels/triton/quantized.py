"""The kernels `dequantize` and `quantized_contract` in Triton.

A product of few rows widens tiles of its weight in registers and multiplies them there: the weight is read once, as it
is stored. Other products widen the weight into workspace, in the type of the tensor, and a library multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import GatedInvocations, Invocation, address, dtype_name
from einc_runtime.kernels.calls.quantized import DequantizeCall, QuantizedContractCall, QuantizedWeight
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.matrices import are_mergeable, view_as_matrices
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.launches import (
    SCRATCH,
    KernelLaunch,
    LaunchSequence,
    WorkspaceAllocator,
    relocate_step,
)
from einc_runtime.kernels.triton.ordered_products import build_ordered_contract
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LINE_ELEMENTS,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.plan.element_types import ELEMENT_FORMATS, StoredForm
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.launches import MAX_FEW_ROWS

MIN_STEP, MAX_STEP = 16, 64
"""Stored values of a row that are multiplied at a time: tensor cores take 16 at least."""
STAND_IN_WEIGHT, STAND_IN_TENSOR = 1 << 61, 1 << 60
"""Where operands in workspace seem to be while a product is built: behind all memory, in front of all workspace."""


def build_dequantize(invocation: Invocation[Array]) -> LaunchSequence:
    call = DequantizeCall.parse(invocation)
    return LaunchSequence((widen(call.weight, call.target),))


def build_ordered_quantized_contract(invocation: Invocation[Array]) -> LaunchSequence:
    """As for other plans, with products in one order: each widened element has one result wherever it lies."""
    return build_quantized_contract(invocation, build_ordered_contract)


def build_quantized_contract(
    invocation: Invocation[Array], multiply: Callable[[Invocation[Array]], LaunchSequence] = build_contract
) -> LaunchSequence:
    """One launch for few rows; else one that widens the weight, and those of `multiply`, which builds a `contract`."""
    call = QuantizedContractCall.parse(invocation)
    direct = _build_direct(call) if multiply is build_contract else None
    if direct is not None:
        return LaunchSequence((direct,))
    return build_on_operand(
        STAND_IN_WEIGHT,
        (call.weight.shape, storage_dtype(dtype_name(call.tensor.array))),
        lambda widened: widen(call.weight, widened),
        lambda widened: multiply(call.product_with(widened, call.result.array)),
    )


def build_on_operand(
    stand_in: int,
    operand: tuple[Sequence[int], DType],
    write: Callable[[Array], KernelLaunch],
    multiply: Callable[[Array], LaunchSequence],
) -> LaunchSequence:
    """The launch that writes an operand, given by shape and type, into the first part of workspace, and those of the
    product that `multiply` builds with it, whose own workspace is behind it. Meanwhile the operand is at `stand_in`."""
    allocator, elsewhere = WorkspaceAllocator(), WorkspaceAllocator()
    elsewhere.size = stand_in - SCRATCH
    product = multiply(elsewhere.take(*operand))
    written = allocator.take(*operand)

    def relocate(old: int) -> int:
        if old >= SCRATCH:
            return old + allocator.size
        return old - stand_in + SCRATCH if stand_in <= old < stand_in + STAND_IN_TENSOR else old

    steps = [relocate_step(step, relocate) for step in product.steps]
    return replace(product, steps=(write(written), *steps), scratch=allocator.size + product.scratch)


def build_stored_rows(invocation: Invocation[Array]) -> KernelLaunch | None:
    """The one launch of a product of few rows; None where it takes more."""
    return _build_direct(QuantizedContractCall.parse(invocation))


def build_stored_gated(pair: GatedInvocations[Array]) -> KernelLaunch | None:
    """The launch of two products of few rows that share the tensor, and of the map of their results; None where the
    weights are not stored alike, or the map permutes. Products are not rounded before the map."""
    first, second, then = pair.parts
    places = pair.places
    program, equation = (then.attribute(name, str) for name in ("program", "indices"))
    names = parse_index_equation(equation)
    aligned = all(labels == names.output for labels in names.inputs) and sorted(places) == [0, 1]
    if not aligned or any(x.shape != then.output.shape or x.dtype != then.output.dtype for x in then.inputs):
        return None
    calls = [QuantizedContractCall.parse(part.on(part.inputs, [then.output])) for part in (first, second)]
    forms = [(_find_form(call.weight), call.labels, call.equation, _locate(call.tensor.array)) for call in calls]
    viewed = [_view_direct(call) for call in calls]
    if forms[0] != forms[1] or any(views is None for views in viewed):
        return None
    ordered = sorted(zip(places, calls, viewed, strict=True), key=lambda part: part[0])
    return _multiply_tiles([call for _, call, _ in ordered], [views for *_, views in ordered if views], program)


def _find_form(weight: QuantizedWeight) -> tuple[object, ...]:
    return weight.form, weight.group, [operand.shape for operand in weight.operands]


def _name_operands(weight: QuantizedWeight) -> list[str]:
    return ["values", "scales", *["factor" if weight.form.has_factor else "zeros"] * (weight.more is not None)]


def _locate(view: Array) -> tuple[object, ...]:
    return address(view), view.shape, view.strides


def _build_direct(call: QuantizedContractCall) -> KernelLaunch | None:
    """The launch for few rows; None where there are more, or where operands are no matrices."""
    views = _view_direct(call)
    return None if views is None else _multiply_tiles([call], [views])


def _view_direct(call: QuantizedContractCall) -> list[Array] | None:
    """Stacks of matrices: tensor and result, values, scales, and zero points if there are any. None for many rows, and
    where operands are no matrices."""
    batch, rows, columns, summed = call.groups
    weight, kind = call.weight, dtype_name(call.tensor.array)
    kept = (*batch, *columns)
    names = [call.labels[: array.ndim] for array in weight.operands]
    known = {compute_type(name) for name in (kind, call.result.kind, weight.kind)} == {"f32"}
    if call.count(rows) > MAX_FEW_ROWS or not known or call.labels[: len(kept)] != kept or len(batch) > 1:
        return None
    if not weight.group and names[1] != kept:
        return None
    operands = [call.tensor, call.result, *(NamedArray(n, a) for n, a in zip(names, weight.operands, strict=True))]
    sides = [(rows, summed), (rows, columns), *((columns, summed) for _ in names)]
    groups = [
        [tuple(name for name in side if name in x.names) for side in both]
        for x, both in zip(operands, sides, strict=True)
    ]
    if not all(are_mergeable(x, side) for x, both in zip(operands, groups, strict=True) for side in both):
        return None
    views = [view_as_matrices(x, batch, first, second) for x, (first, second) in zip(operands, groups, strict=True)]
    return [view if batch else view[None] for view in views]


def _multiply_tiles(
    calls: Sequence[QuantizedContractCall], viewed: Sequence[list[Array]], program: str = "t0 = copy x0"
) -> KernelLaunch:
    """The launch for stacks of matrices (`_view_direct`) of products that share the tensor and the result, which the
    scalar program makes of them. A program computes all rows for a tile of the weights' rows."""
    weight, kind = calls[0].weight, dtype_name(viewed[0][0])
    x, y = (PointerOperand.of(name, view) for name, view in zip("xy", viewed[0], strict=False))
    stored = [name_stored(weight, views[2:], str(n)) for n, views in enumerate(viewed)]
    (stack, width, depth), count = viewed[0][2].shape, viewed[0][0].shape[1]
    tile, rows = 32, max(MAX_FEW_ROWS, power_of_two(count))
    step = find_step(weight)
    tiles = -(-width // tile)
    inside, near, in_rows = f"column < {width}", f"place < {depth}", f"row < {count}"
    lines = [
        "program = tl.program_id(0).to(tl.int64)",
        f"number = program // {tiles}",
        f"column = (program % {tiles}) * {tile} + tl.arange(0, {tile})",
        f"row = tl.arange(0, {rows}).to(tl.int64)",
        *(f"sums{n} = tl.zeros(({rows}, {tile}), tl.float32)" for n in range(len(calls))),
        f"for start in range(0, {depth}, {step}):",
        f"    place = start + tl.arange(0, {step}).to(tl.int64)",
    ]
    for half in range(weight.packing):
        at = {0: "number", 1: "row[:, None]", 2: f"(place * {weight.packing} + {half})[None, :]"}
        part = x.load(at, f"({in_rows})[:, None] & ({near})[None, :]")
        lines.append(f"    part{half} = {part}.to({LANGUAGE[kind]})")
    for n, operands in enumerate(stored):
        lines += [f"    {line}" for line in multiply_step(weight, operands, kind, step, inside, near, f"sums{n}")]
    results = [f"v{n}" for n in range(len(calls))]
    chain = ScalarSource(read_steps(program, ["f32"] * len(calls)), results)
    lines += [*(f"v{n} = sums{n} * {call.scale!r}" for n, call in enumerate(calls)), *chain.lines]
    target = {0: "number", 1: "row[:, None]", 2: "column[None, :]"}
    lines.append(y.store(target, f"({chain.value})", f"({in_rows})[:, None] & ({inside})[None, :]"))
    title = f"{count} rows times {stack} weights of {width} rows in groups of {weight.group}: {program}"
    items = [x, y, *(item for of_one in stored for item in of_one)]
    options = LaunchOptions(chain.source())
    return assemble("quantized_product", title, items, viewed[0][1].shape, lines, stack * tiles, options)


def find_step(weight: QuantizedWeight) -> int:
    """Stored values of a row that are multiplied at a time: of one group, where tensor cores take so few."""
    of_group = math.gcd(weight.group // weight.packing or MAX_STEP, MAX_STEP)
    return of_group if of_group >= MIN_STEP else MAX_STEP


def multiply_step(
    weight: QuantizedWeight,
    operands: Sequence[PointerOperand],
    kind: str,
    step: int,
    inside: str,
    near: str,
    sums: str,
) -> list[str]:
    """Lines that add to `sums` the products of `step` stored values of the rows `column` of matrix `number`, from
    `place` on: of their first halves with `part0`, and with `part1` of the second ones of pairs, which are of type
    `kind`. `inside` is where columns are in the matrix, and `near` where places are."""
    wide = "tl.float64" if kind == "f64" else "tl.float32"
    less = " - zero" if weight.zeros is not None else ""
    lines = [f"mask = ({inside})[:, None] & ({near})[None, :]", *_load_stored(weight, operands, step, inside)]
    for half, value in enumerate(_decode("stored", weight.form)):
        lines += [
            f"wide = tl.where(mask, ({value}.to({wide}){less}) * scale, 0.0).to({LANGUAGE[kind]})",
            f'{sums} = tl.dot(part{half}, tl.trans(wide), {sums}, input_precision="ieee", out_dtype={wide})',
        ]
    return lines


def name_stored(weight: QuantizedWeight, views: Sequence[Array], suffix: str = "") -> list[PointerOperand]:
    """The operands of a weight as arguments, of which these are views as stacks of matrices."""
    return [
        PointerOperand.of(f"{name}{suffix}", view, "i8" if name == "values" else "")
        for name, view in zip(_name_operands(weight), views, strict=True)
    ]


def _load_stored(weight: QuantizedWeight, operands: Sequence[PointerOperand], step: int, inside: str) -> list[str]:
    """Lines that load `stored` bytes of a tile, and its `scale` and `zero`, which broadcast to it."""
    values, *factors = operands
    lines = [f"stored = {values.load({0: 'number', 1: 'column[:, None]', 2: 'place[None, :]'}, 'mask')}.to(tl.int32)"]
    group = weight.group // weight.packing
    if group % step:  # a step goes through several groups
        at, mask, spread = {0: "number", 1: "column[:, None]", 2: f"(place // {group})[None, :]"}, "mask", ""
        tile = " + column[:, None] * 0 + place[None, :] * 0"
    else:
        at = {0: "number", 1: "column", 2: f"(start // {group})" if group else "0"}
        mask, spread, tile = inside, "[:, None]", " + column * 0"
    for factor, name in zip(factors, ("scale", "more"), strict=False):
        wide = "tl.float64" if factor.dtype == "f64" else "tl.float32"
        lines.append(f"{name} = ({factor.load(at, mask, offset=tile)}.to({wide})){spread}")
    if weight.more is not None:
        lines.append("scale = scale * more" if weight.form.has_factor else "zero = more")
    return lines


def _decode(number: str, form: StoredForm) -> list[str]:
    """The expressions for the values in a stored byte, which is an i32 in `number`."""
    if ELEMENT_FORMATS[form.values].packing == 1:
        return [f"widen_{form.values}({number})" if form.is_float else number]
    if form.is_float:
        return [f"widen_{form.values}({half})" for half in (number, f"{number} >> 4")]
    return [f"(({number} & 15) - 8)", f"((({number} >> 4) & 15) - 8)"]


def widen(weight: QuantizedWeight, target: Array) -> KernelLaunch:
    """The launch that writes a weight: programs go along rows of stored values."""
    packing, rank = weight.packing, target.ndim
    values = PointerOperand.of("values", weight.values, "i8")
    names = _name_operands(weight)[1:]
    factors = [PointerOperand.of(name, array) for name, array in zip(names, weight.operands[1:], strict=True)]
    output = PointerOperand.of("output", target)
    *rows, width = weight.values.shape
    block = min(power_of_two(width), LINE_ELEMENTS)
    parts = -(-width // block)
    wide = "tl.float64" if dtype_name(target) == "f64" or weight.kind == "f64" else "tl.float32"
    # positions are 64 bits wide where an operand reaches so far
    arrays = zip([output, values, *factors], [target, *weight.operands], strict=True)
    reach = next(filter(None, (index_cast([item], array.shape) for item, array in arrays)), "")
    lines = [
        "program = tl.program_id(0)",
        f"row = (program // {parts}){reach}",
        f"column = (program % {parts}) * {block} + tl.arange(0, {block})",
        f"mask = column < {width}",
    ]
    for axis, extent in reversed(list(enumerate(rows))):
        lines += [f"i{axis} = row % {extent}", f"row = row // {extent}"]
    leading = {axis: f"i{axis}" for axis in range(rank - 1)}
    at = {**leading, rank - 1: "column"}
    # a group has an even number of elements, so that both of a byte are in one
    group = {**leading, rank - 1: f"(column // {weight.group // packing})"} if weight.group else leading
    lines.append(f"number = {values.load(at, 'mask')}.to(tl.int32)")
    fixed = [{axis: subscript for axis, subscript in group.items() if axis < len(factor.strides)} for factor in factors]
    mask = "mask" if weight.group and weight.scales.shape[-1] > 1 else ""  # of one group, all columns have one address
    lines += [
        f"{x.name}_ = {x.load(subscripts, mask if subscripts else '')}"
        for x, subscripts in zip(factors, fixed, strict=True)
    ]
    zero = "" if weight.zeros is None else f" - zeros_.to({wide})"
    scale = f"scales_.to({wide})" if weight.factor is None else f"(scales_.to({wide}) * factor_)"
    for n, element in enumerate(_decode("number", weight.form)):
        result = f"(({element}.to({wide}){zero}) * {scale})"
        subscript = "column" if packing == 1 else f"(column * 2 + {n})"
        lines.append(output.store({**leading, rank - 1: subscript}, result, "mask"))
    title = f"a weight of {' x '.join(map(str, target.shape))} in groups of {weight.group}"
    grid = math.prod(rows) * parts
    return assemble("dequantize", title, [values, *factors, output], target.shape, lines, grid)
