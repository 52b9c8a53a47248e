"""Products whose rows or results are views are computed in the order in which they are read.

Modules make queries, keys and values by one product, and read the heads through views: a part of the columns, divided
into heads, with the heads in front. Each view would be a copy in a plan. Here a product has the indices that its reader
wants, `q[heads, tokens, d] = x[tokens, r] * w[heads, d, r]`, with the same weight under another shape; and a product
that reads heads through views reads them as they lie, `y[tokens, n] = a[heads, tokens, d] * w[n, heads, d]`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.extents import Extent, multiply_extents
from einc.importers.arrays.moving import reshape, transpose
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.repeats import Statement
from einc.importers.arrays.scalar_forms import SCALAR_FORMS
from einc.importers.arrays.values import Array
from einc.importers.arrays.views import Factor, View, add_views


def order_products(program: ArrayProgram) -> None:
    """Rewrites the products that read views of computed arrays, and then those that are read through views alone."""
    program.prune()
    _read_as_they_lie(program)
    program.prune()
    _write_as_read(program)


@dataclass(frozen=True, slots=True)
class _Product:
    """Rows [..., k] times a weight: [n, k], or [k, n] if it is `turned`."""

    rows: Array
    weight: Array
    turned: bool


def _find_product(program: ArrayProgram, array: Array) -> _Product | None:
    """The product with a weight that made an array."""
    origin = program.origins.get(array.name)
    if origin is None or origin.operation not in ("multiply_rows", "matmul"):
        return None
    rows, weight = origin.arguments[:2]
    turned = origin.operation == "matmul"
    transposed = program.find_origin(weight, "transpose") if turned else None
    if transposed is not None and weight.rank == 2:
        weight, turned = transposed[0], False
    if rows.rank < 2 or weight.rank != 2 or not program.is_weight(weight) or array.type.is_widened:
        return None
    return _Product(rows, weight, turned)


# ---- products that read views ----


def _read_as_they_lie(program: ArrayProgram) -> None:
    """Products and functions of elements that read a view read its source, and become views themselves."""
    readers = _count_readers(program)
    views: dict[str, View] = {}
    kept: list[Statement] = []
    for statement in program.statements:
        added = _read_source(program, statement, views, readers)
        kept += added or [statement]
        for part in added or [statement]:
            add_views([part], program.origins, views)
    program.statements = kept


def _count_readers(program: ArrayProgram) -> Counter[str]:
    readers = Counter(name for statement in program.statements for name in set(statement.operands))
    readers.update(program.output_names)
    return readers


def _read_source(
    program: ArrayProgram, statement: Statement, views: dict[str, View], readers: Counter[str]
) -> list[Statement]:
    """What computes the result of a statement from the source of the view that it reads; nothing where it cannot."""
    origin = program.origins.get(statement.names[0])
    if origin is None or len(statement.names) > 1:
        return []
    product = _find_product(program, origin.result)
    read = [operand for operand in statement.operands if operand in views and readers[operand] == 1]
    if len(read) != 1 or not _is_whole(views[read[0]]):
        return []
    view = views[read[0]]
    if product is not None and product.rows.name == read[0]:
        return program.rewrite(origin.result, lambda: _multiply_source(program, origin.result, product, view))
    if origin.operation in SCALAR_FORMS:
        arguments = origin.arguments
        broadcast = [operand for operand in arguments if isinstance(operand, Array) and operand.name != read[0]]
        last = view.groups[-1] if view.groups else ()
        fits = last == (Factor(view.source.rank - 1, (), view.source.shape[-1]),)
        if fits and all(operand.rank <= 1 for operand in broadcast):
            return program.rewrite(origin.result, lambda: _apply_to_source(program, origin.result, arguments, view))
    return []


def _is_whole(view: View) -> bool:
    """Whether a view has all elements of its source."""
    return view.counts == view.source.shape


def _multiply_source(program: ArrayProgram, result: Array, product: _Product, view: View) -> Array | None:
    """The product of the source of its rows, summed over the dimensions that the view joins, as a view."""
    source, joined = view.source, view.groups[-1]
    summed = [factor.dim for factor in joined]
    other_factors = [factor for group in view.groups[:-1] for factor in group]
    if len(summed) < 2 or any(factor.key for factor in joined) or any(f.dim in summed for f in other_factors):
        return None
    if Extent.number(1) in source.shape:
        return None
    extents = [source.shape[dim] for dim in summed]
    weight = program.divide_weight(product.weight, 0, None, extents, axis=0 if product.turned else 1)
    if weight is None:
        return None
    leading = [dim for dim in range(source.rank) if dim not in summed]
    shape = (*(source.shape[dim] for dim in leading), result.shape[-1])
    named = name_dimensions(shape)
    indices = {dim: named[k] for k, dim in enumerate(leading)} | {dim: f"r{k}" for k, dim in enumerate(summed)}
    of_source = ", ".join(indices[dim] for dim in range(source.rank))
    of_summed = [indices[dim] for dim in summed]
    of_weight = ", ".join([*of_summed, named[-1]] if product.turned else [named[-1], *of_summed])
    hint = program.names.bases[result.name]
    text = f"{{0}}[{of_source}] * {{1}}[{of_weight}]"
    computed = program.equation(hint, named, text, [source, weight], shape, result.type)
    return _view_again(program, computed, leading, view, result)


def _view_again(program: ArrayProgram, computed: Array, leading: Sequence[int], view: View, result: Array) -> Array:
    """The dimensions of what was computed, which are `leading` ones of a view's source and a last one, as the view."""
    in_source = sorted(
        (factor for group in view.groups[:-1] for factor in group), key=lambda factor: (factor.dim, factor.key)
    )
    in_view = [factor for group in view.groups[:-1] for factor in group]
    divided = reshape(program, computed, [*(factor.size for factor in in_source), computed.shape[-1]])
    order = [in_source.index(factor) for factor in in_view]
    turned = transpose(program, divided, [*order, len(order)])
    return reshape(program, turned, result.shape)


def _apply_to_source(program: ArrayProgram, result: Array, arguments: Sequence[Any], view: View) -> Array | None:
    """A function of elements of a view's source, and of what is added along the last dimension, as a view."""
    source = view.source
    operands = [source if isinstance(operand, Array) and operand.rank > 1 else operand for operand in arguments]
    origin = program.origins[result.name]
    computed = apply(program, origin.operation, *operands, hint=program.names.bases[result.name])
    return _view_again(program, computed, range(source.rank - 1), view, result)


# ---- products that are read through views ----


def _write_as_read(program: ArrayProgram) -> None:
    """Products, also with a bias, whose only readers are views are written as these views, one by one."""
    readers = _count_readers(program)
    views: dict[str, View] = {}
    add_views(program.statements, program.origins, views)
    used = set(program.output_names)
    for statement in program.statements:
        view = views.get(statement.names[0])
        if view is None or view.source.name in views:  # a view that is no view of the product, but of its view
            used.update(statement.operands)
    by_source: dict[str, list[str]] = {}
    for name, view in views.items():
        if name in used:
            by_source.setdefault(view.source.name, []).append(name)
    written: dict[str, list[Statement]] = {}
    ordered_rows: dict[tuple[object, ...], Array] = {}
    for source, names in by_source.items():
        if source in used or source not in program.origins:
            continue
        parts = _find_parts(program, program.origins[source].result, readers)
        if parts is None:
            continue
        rows = dict(ordered_rows)
        statements = {}
        for name in names:
            result = program.origins[name].result
            part = functools.partial(_multiply_part, program, *parts, views[name], result, rows)
            statements[name] = program.rewrite(result, part)
        if all(statements.values()):
            written |= statements
            ordered_rows = rows
    program.statements = [part for s in program.statements for part in written.get(s.names[0], [s])]


def _find_parts(program: ArrayProgram, source: Array, readers: Counter[str]) -> tuple[_Product, Array | None] | None:
    """The product that an array is, and the bias that was added to it."""
    product = _find_product(program, source)
    if product is not None:
        return product, None
    operands = program.find_origin(source, "add")
    for summed, bias in (operands[:2], operands[1::-1]) if operands is not None else ():
        if isinstance(summed, Array) and isinstance(bias, Array) and readers[summed.name] == 1:
            product = _find_product(program, summed)
            if product is not None and bias.shape == source.shape[-1:] and program.is_weight(bias):
                return product, bias
    return None


def _multiply_part(
    program: ArrayProgram,
    product: _Product,
    bias: Array | None,
    view: View,
    result: Array,
    ordered_rows: dict[tuple[object, ...], Array],
) -> Array | None:
    """The part of a product that a view reads, with the dimensions of the view; `ordered_rows` has the rows that other
    parts read, in their orders."""
    last = view.source.rank - 1
    columns = sorted((f for f in view.order if f.dim == last), key=lambda factor: factor.key)
    if any(len({factor.dim == last for factor in group}) > 1 for group in view.groups):
        return None
    if any(len(group) > 1 for group in view.groups if group and group[0].dim == last):
        return None
    rows = [group for group in view.groups if group and group[0].dim != last]
    if view.counts[:last] != view.source.shape[:last] or any(factor.key for group in rows for factor in group):
        return None
    if len(set(result.dims)) < result.rank or not columns or any(not group for group in view.groups):
        return None
    start, sizes = view.starts[last], [factor.size for factor in columns]
    if product.turned and (start or view.counts[last] != view.source.shape[last]):
        return None
    weight = program.divide_weight(product.weight, start, view.counts[last], sizes, axis=1 if product.turned else 0)
    divided_bias = None if bias is None else program.divide_weight(bias, start, view.counts[last], sizes, axis=0)
    if weight is None or (bias is not None and divided_bias is None):
        return None
    order = [factor.dim for group in rows for factor in group]
    missing = [dim for dim in range(last) if dim not in order]  # of extent 1
    sizes_of_rows = [multiply_extents(factor.size for factor in group) for group in rows]
    key = (product.rows.name, *missing, *order, *(size.text for size in sizes_of_rows))
    if key not in ordered_rows:
        turned = transpose(program, product.rows, [*missing, *order, last])
        ordered_rows[key] = reshape(program, turned, [*sizes_of_rows, turned.shape[-1]])
    indices = name_dimensions(result.shape)
    of_columns = {group[0]: index for group, index in zip(view.groups, indices, strict=True) if group[0].dim == last}
    of_rows = [index for group, index in zip(view.groups, indices, strict=True) if group[0].dim != last]
    column_indices = [of_columns[factor] for factor in columns]
    of_weight = ["r0", *column_indices] if product.turned else [*column_indices, "r0"]
    hint = program.names.bases[result.name]
    text = f"{{0}}[{', '.join([*of_rows, 'r0'])}] * {{1}}[{', '.join(of_weight)}]"
    operands = [ordered_rows[key], weight]
    computed = program.equation(hint, indices, text, operands, result.shape, result.type, result.dims)
    if divided_bias is None:
        return computed
    text = f"{{0}}[{', '.join(indices)}] + {{1}}[{', '.join(column_indices)}]"
    return program.equation(hint, indices, text, [computed, divided_bias], result.shape, result.type, result.dims)
