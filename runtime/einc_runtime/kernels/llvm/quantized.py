"""Products with quantized weights as machine code.

With few rows, a weight is read once as it is stored, and widened in registers on its way to the sums: the time is that
of reading it. With more rows, parts of it are widened by machine code and multiplied as the kernel `contract` does it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, address, dtype_name
from einc_runtime.kernels.calls.quantized import DequantizeCall, QuantizedContractCall, QuantizedWeight
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import QuantizedArguments
from einc_runtime.kernels.llvm.contract import build_contract, prepare_copy
from einc_runtime.kernels.llvm.few_rows import MAX_ROWS, MIN_ROWS_PANEL_NARROW
from einc_runtime.kernels.llvm.gemm import count_packed
from einc_runtime.kernels.llvm.quantized_code import (
    BLOCK,
    MAX_TENSOR_ROWS,
    PAIRS_BLOCK,
    TABLES_BLOCK,
    WeightForm,
    emit_product,
    emit_widening,
)
from einc_runtime.kernels.matrices import are_mergeable, view_as_matrices
from einc_runtime.kernels.numpy import quantized as in_numpy
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.plan.index_equations import Names

if TYPE_CHECKING:
    from concurrent.futures import Future

    from einc_runtime.kernels.llvm.row_panels_code import PanelForm


def build_dequantize(invocation: Invocation[Array]) -> Kernel:
    call = DequantizeCall.parse(invocation)
    if not compiler.is_worthwhile(call.target.size, invocation.repetitions):
        return in_numpy.build_dequantize(invocation)
    run = prepare_widening(call.weight, call.target)
    return Kernel(lambda _: run, nanoseconds=call.target.size / 4)


def build_quantized_contract(invocation: Invocation[Array]) -> Kernel:
    call = QuantizedContractCall.parse(invocation)
    size = call.count(call.labels)
    if not compiler.is_worthwhile(size, invocation.repetitions):
        return in_numpy.build_product(call, in_numpy.prepare_widening, build_contract)
    _, rows, _, _ = call.groups
    direct = _build_direct_product(call) if call.count(rows) <= MAX_ROWS else None
    return direct or in_numpy.build_product(call, prepare_widening, build_contract)


def prepare_widening(weight: QuantizedWeight, target: Array) -> Run:
    """The call that writes a weight to a dense array."""
    form = _find_form(weight, dtype_name(target))
    names = tuple(map(str, range(target.ndim)))
    start = target.ndim - 1 if weight.group else weight.scales.ndim
    rows, row = names[:start], names[start:]
    arrays = [NamedArray(names[: array.ndim], array) for array in (*_list_arrays(weight), target)]
    names_in_row = [row[: len(x.names) - start] for x in arrays]
    if form is None or not all(
        are_mergeable(x, rows) and are_mergeable(x, r) for x, r in zip(arrays, names_in_row, strict=True)
    ):
        return in_numpy.prepare_widening(weight, target)
    if any(array.strides[-1] != array.itemsize for array in (weight.values, target) if array.shape[-1] > 1):
        return in_numpy.prepare_widening(weight, target)
    values, scales, *zeros = [
        view_as_matrices(x, (), rows, r) for x, r in zip(arrays[:-1], names_in_row[:-1], strict=True)
    ]
    output = view_as_matrices(arrays[-1], (), rows, row)
    arguments = QuantizedArguments[int](
        rows=len(output),
        width=values.shape[1],
        values=address(values),
        row_step=values.strides[0],
        **_name_scales(scales, zeros[0] if zeros else weight.factor),
        target=address(output),
        target_row=output.strides[0],
    )
    return compiler.CompiledCall(emit_widening(form), arguments, output, *weight.operands)


def _find_form(weight: QuantizedWeight, widened: str) -> WeightForm | None:
    """What machine code is for; None where there is none for it."""
    known = weight.kind != "f64" and widened in compiler.COMPILED_FLOATS
    halves = weight.packing == 2 and weight.zeros is None and weight.group == BLOCK // 2
    has_factor = weight.factor is not None
    if not known or (weight.group % BLOCK and not halves) or (has_factor and weight.operands[2].ndim):
        return None
    storage = weight.form.values if weight.form.is_float else "i8"
    return WeightForm(weight.packing, weight.group, weight.kind, weight.zeros is not None, widened, storage, has_factor)


def _list_arrays(weight: QuantizedWeight) -> list[Array]:
    """Its values, scales, and zero points if it has any."""
    return [weight.values, weight.scales, *([weight.zeros] if weight.zeros is not None else [])]


def _name_scales(scales: Array, zeros: Array | None) -> dict[str, int]:
    """The arguments that are addresses of scales and of zero points, and the bytes between rows and between groups; of
    zero points, or of a factor, which has no dimensions."""
    named: dict[str, int] = {}
    for name, array in (("scale", scales), ("zero", zeros)):
        steps = (0, 0, 0) if array is None else (address(array), *(array.strides[-2:] or (0, 0)))
        named |= dict(zip((f"{name}s", f"{name}_row", f"{name}_step"), steps, strict=True))
    return named


def _build_direct_product(call: QuantizedContractCall) -> Kernel | None:
    """The product of a few rows, which reads the weight once; None where its memory or types do not suit."""
    result, source = call.result, call.tensor.array
    form = _find_form(call.weight, dtype_name(source))
    batch, rows, columns, summed = call.groups
    kept = (*batch, *columns)
    weight_arrays = [NamedArray(call.labels[: array.ndim], array) for array in _list_arrays(call.weight)]
    if (
        form is None
        or not _is_dense(weight_arrays[0].array)
        or call.labels[: len(kept)] != kept
        or dtype_name(result.array) not in compiler.COMPILED_FLOATS
    ):
        return None
    inner = [tuple(name for name in summed if name in operand.names) for operand in weight_arrays]
    if not call.weight.group and weight_arrays[1].names != kept:
        return None
    if not all(
        are_mergeable(x, columns) and are_mergeable(x, names) for x, names in zip(weight_arrays, inner, strict=True)
    ):
        return None
    values, scales, *zeros = [
        view_as_matrices(operand, batch, columns, names) for operand, names in zip(weight_arrays, inner, strict=True)
    ]
    count, depth = call.count(rows), call.count(summed)
    pairs = _multiplies_pairs(form, scales)
    tables = _uses_tables(form, values, scales, count)
    block = PAIRS_BLOCK if pairs else TABLES_BLOCK if tables else BLOCK
    narrow = source.dtype if pairs else np.dtype(np.float32)
    direct = are_mergeable(result, rows) and are_mergeable(result, columns)
    panel = None if tables else _find_panel(form, result if direct else None, call.groups, count)
    measuring = ScratchAllocator()
    laid = measuring.take(
        (count, -(-depth // block) * block) if panel is None else (1, count_packed(panel.width, count, depth)), narrow
    )
    aligned = call.tensor.align((*batch, *rows, *summed))
    straight = NamedArray((*batch, *rows, *summed), aligned)
    dense = are_mergeable(straight, rows) and are_mergeable(straight, summed)
    dense = dense and _is_dense(aligned)
    copied = None if dense else measuring.take(aligned.shape, narrow)
    if copied is not None:
        form = form._replace(widened=dtype_name(source) if pairs else "f32")
    held = (
        None if direct else measuring.take([call.extents[n] for n in (*batch, *rows, *columns)], np.dtype(np.float32))
    )
    kind = dtype_name(result.array) if direct else "f32"
    factor = struct.unpack("<i", struct.pack("<f", call.scale))[0]
    code = (
        _begin_pairs(form, count, kind, factor) if pairs
        else _begin_tables(form, count, kind, factor, depth) if tables
        else emit_product(form, count, kind, factor) if panel is None
        else _begin_panel(form, panel._replace(result=kind), factor)
    )  # fmt: skip

    def bind(memory: Array) -> Run:
        calls: list[Resolved] = []
        tensor, target = straight, result
        if copied is not None:
            tensor = NamedArray(straight.names, copied.of(memory))
            calls.append(prepare_copy(aligned, tensor.array, call.repetitions))
        if held is not None:
            target = NamedArray((*batch, *rows, *columns), held.of(memory))
        left, output = view_as_matrices(tensor, batch, rows, summed), view_as_matrices(target, batch, rows, columns)
        laid_out = laid.of(memory)
        for position in np.ndindex(*output.shape[:-2]):
            a, c, b = left[position], output[position], values[position]
            each = [array[position] for array in (scales, *zeros)]
            arguments = QuantizedArguments[int](
                rows=len(b),
                width=b.shape[1],
                values=address(b),
                row_step=b.strides[0],
                **_name_scales(each[0], each[1] if zeros else call.weight.factor),
                target=address(c),
                target_row=c.strides[0],
                target_column=c.strides[1],
                tensor=address(a),
                tensor_step=a.strides[0],
                laid=address(laid_out),
                laid_step=laid_out.strides[0],
            )
            calls.append((compiler.CompiledCall(code, arguments, a, c, b, laid_out, *call.weight.operands), []))
        if held is not None:
            calls.append(prepare_copy(target.align(result.names), result.array, call.repetitions))
        return make_runner(calls)

    elements = call.count(call.labels)
    stored = elements / call.weight.packing
    return Kernel(bind, measuring.size, max(stored / 12, elements * (count + 2) / 30), is_stream=True)


def _multiplies_pairs(form: WeightForm, scales: Array) -> bool:
    """Whether the processor multiplies pairs of bf16, and the tensor and the weight are such that it can."""
    kinds = form.packing == 2 and not form.zeros and form.kind == form.widened == "bf16"
    grouped = form.group in (BLOCK, 2 * BLOCK) or (form.group > 0 and form.group % PAIRS_BLOCK == 0)
    return kinds and grouped and _is_dense(scales) and compiler.multiplies_bf16()


def _uses_tables(form: WeightForm, values: Array, scales: Array, count: int) -> bool:
    """Whether a few rows are multiplied by values of 4 bits that are looked up in tables of bytes."""
    suits = form.packing == 2 and values.shape[-1] % 4 == 0 and (not form.group or _is_dense(scales))
    return suits and count <= MAX_TENSOR_ROWS and compiler.looks_up_bytes()


def _is_dense(array: Array) -> bool:
    """Whether neighbours along the last axis are side by side."""
    return array.shape[-1] == 1 or array.strides[-1] == array.itemsize


def _find_panel(form: WeightForm, result: NamedArray | None, groups: tuple[Names, ...], count: int) -> PanelForm | None:
    """The panel of `count` rows; None where elements of the weight stay in registers, or where neighbours of the
    result, which is None if it is copied later, are not those of the weight's rows."""
    if compiler.has_wide_registers() or not MIN_ROWS_PANEL_NARROW["f32"] <= count <= MAX_ROWS:
        return None
    from einc_runtime.kernels.llvm.quantized_panels_code import suits_panels
    from einc_runtime.kernels.llvm.row_panels_code import PanelForm

    batch, rows, columns, _ = groups
    is_dense = result is None or view_as_matrices(result, batch, rows, columns).strides[-1] == result.array.itemsize
    return PanelForm("quantized", "f32", count, compiler.find_registers()) if is_dense and suits_panels(form) else None


def _begin_panel(form: WeightForm, panel: PanelForm, factor: int) -> Future[compiler.Compiled]:
    from einc_runtime.kernels.llvm.quantized_panels_code import WeightPanelForm, emit_panel_product

    return emit_panel_product(WeightPanelForm(form, panel, factor))


def _begin_tables(form: WeightForm, count: int, kind: str, factor: int, depth: int) -> Future[compiler.Compiled]:
    from einc_runtime.kernels.llvm.quantized_tables_code import TablesForm, emit_tables_product

    return emit_tables_product(TablesForm(form, count, kind, factor, depth % TABLES_BLOCK == 0))


def _begin_pairs(form: WeightForm, count: int, kind: str, factor: int) -> Future[compiler.Compiled]:
    from einc_runtime.kernels.llvm.quantized_pairs_code import PairsForm, emit_pairs_product

    return emit_pairs_product(PairsForm(form.group, count, kind, factor))
