"""Fewer copies: chains of reshapes, transposes and slices become the shortest chain that reads the same elements.

Modules write heads and batches as views, which cost nothing there. In a plan each is a copy, so chains are made short
before a text is written: an array that is read through one is seen as a slice of the chain's first array, whose
dimensions are divided into factors, put in another order, and multiplied.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from einc.importers.arrays.extents import Extent, divide_extent, make_extent
from einc.importers.arrays.naming import NameTable, name_dimensions
from einc.importers.arrays.repeats import Statement
from einc.importers.arrays.values import Array, normalize_axis

OPERATIONS = frozenset(("reshape", "transpose", "slice_axis"))
"""The operations whose results are views."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation (`mul`, `reshape`) that made an array, with its arguments in their order, without the program, and
    the array that it made."""

    operation: str
    arguments: tuple[Any, ...]
    result: Array


class NotComposableError(Exception):
    """A step that is no reordering of factors: what it reads is the first array of another chain."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of a dimension of the first array; `key` orders the parts of a dimension, the outermost first."""

    dim: int
    key: tuple[int, ...]
    size: Extent


@dataclass(frozen=True, slots=True)
class View:
    """An array whose dimension k has the factors `groups[k]`, the outermost first, of the array `source`.

    `starts` and `counts` are the positions of each dimension of the source that are read.
    """

    source: Array
    starts: tuple[int, ...]
    counts: tuple[Extent, ...]
    groups: tuple[tuple[Factor, ...], ...]

    @staticmethod
    def of(source: Array) -> View:
        """The array itself."""
        groups = tuple(
            () if extent == make_extent(1) else (Factor(dim, (), extent),) for dim, extent in enumerate(source.shape)
        )
        return View(source, (0,) * source.rank, source.shape, groups)

    @property
    def order(self) -> tuple[Factor, ...]:
        return tuple(itertools.chain.from_iterable(self.groups))

    def transpose(self, axes: Sequence[int]) -> View:
        """The dimensions in another order."""
        return replace(self, groups=tuple(self.groups[axis] for axis in axes))

    def reshape(self, shape: Sequence[Extent]) -> View:
        """The factors grouped to other extents, divided where an extent ends within one."""
        remaining_factors = list(self.order)[::-1]
        groups: list[tuple[Factor, ...]] = []
        for extent in shape:
            group: list[Factor] = []
            open_extent = extent
            while open_extent != make_extent(1):
                if not remaining_factors:
                    raise NotComposableError
                factor = remaining_factors.pop()
                if (quotient := divide_extent(open_extent, factor.size)) is not None:
                    group.append(factor)
                    open_extent = quotient
                    continue
                if (quotient := divide_extent(factor.size, open_extent)) is None:
                    raise NotComposableError
                group.append(Factor(factor.dim, (*factor.key, 0), open_extent))
                remaining_factors.append(Factor(factor.dim, (*factor.key, 1), quotient))
                open_extent = make_extent(1)
            groups.append(tuple(group))
        if remaining_factors:
            raise NotComposableError
        return replace(self, groups=tuple(groups))

    def slice(self, axis: int, start: int, count: int) -> View:
        """Positions along a dimension whose outermost factor is the outermost one of its dimension in the source."""
        first, *inner_factors = self.groups[axis] or (None,)
        if first is None or any(not factor.size.is_number for factor in self.groups[axis]):
            raise NotComposableError
        below = math.prod(factor.size.value for factor in inner_factors)
        parts = [factor for factor in self.order if factor.dim == first.dim]
        if start % below or count % below or first != min(parts, key=lambda factor: factor.key):
            raise NotComposableError
        if any(not factor.size.is_number for factor in parts):
            raise NotComposableError
        step = math.prod(factor.size.value for factor in parts) // first.size.value
        starts, counts = list(self.starts), list(self.counts)
        starts[first.dim] += start // below * step
        counts[first.dim] = make_extent(count // below * step)
        kept_factors = (replace(first, size=make_extent(count // below)),) if count // below > 1 else ()
        groups = (*self.groups[:axis], (*kept_factors, *inner_factors), *self.groups[axis + 1 :])
        return View(self.source, tuple(starts), tuple(counts), groups)


def shorten_views(
    statements: Sequence[Statement], outputs: Collection[str], origins: Mapping[str, Origin], names: NameTable
) -> list[Statement]:
    """The statements, of which those that only read other places are as few as they can be.

    All views of one array are written anew together, if that takes fewer statements; what other statements use keeps
    its name and its dimensions.
    """
    views: dict[str, View] = {}
    add_views(statements, origins, views)
    used = set(outputs)
    for statement in statements:
        view = views.get(statement.names[0])
        if view is None or view.source.name == statement.operands[0]:
            used.update(statement.operands)
    chains: dict[str, list[str]] = {}
    for name, view in views.items():
        chains.setdefault(view.source.name, []).append(name)
    replaced: dict[str, list[Statement]] = {}
    for chain in chains.values():
        shorter = _write_chain({name: views[name] for name in chain if name in used}, origins, names)
        if shorter is not None and sum(map(len, shorter.values())) < len(chain):
            replaced |= {name: shorter.get(name, []) for name in chain}
    return [part for statement in statements for part in replaced.get(statement.names[0], [statement])]


def add_views(statements: Sequence[Statement], origins: Mapping[str, Origin], views: dict[str, View]) -> None:
    """Adds to `views` what is a view of another array, by its name."""
    for statement in statements:
        origin = origins.get(statement.names[0])
        view = None if len(statement.names) > 1 or origin is None else _find_view(origin, statement, views)
        if view is not None:
            views[statement.names[0]] = view


def _find_view(origin: Origin, statement: Statement, views: Mapping[str, View]) -> View | None:
    """What a statement reads, as a view of the first array of its chain, or of its operand; None if it is no view."""
    array = origin.arguments[0] if origin.arguments else None
    if origin.operation not in OPERATIONS or not isinstance(array, Array) or not array.rank * origin.result.rank:
        return None
    if statement.operands != (array.name,):
        return None
    for base in (views.get(array.name), View.of(array)):
        with contextlib.suppress(NotComposableError):
            if base is not None:
                return _compose(base, origin.operation, origin.arguments, origin.result.shape)
    return None


def _write_chain(
    views: Mapping[str, View], origins: Mapping[str, Origin], names: NameTable
) -> dict[str, list[Statement]] | None:
    """The statements for each view of an array, None where one cannot be written."""
    written: dict[tuple[str, str], Array] = {}
    try:
        return {name: _write_view(view, origins[name].result, names, written) for name, view in views.items()}
    except NotComposableError:
        return None


def _compose(view: View, operation: str, arguments: Sequence[object], shape: Sequence[Extent]) -> View:
    """The view of an array that an operation makes of one that `view` describes. `shape` is that of its result."""
    if operation == "reshape":
        return view.reshape(shape)
    array = arguments[0]
    assert isinstance(array, Array)
    if operation == "transpose":
        order = arguments[1]
        assert isinstance(order, Sequence)
        return view.transpose([normalize_axis(axis, array.rank) for axis in order])
    axis, start, *options = arguments[1], arguments[2], *arguments[4:5]
    assert isinstance(axis, int)
    axis = normalize_axis(axis, array.rank)
    if options not in ([], [1]) or not shape[axis].is_number or not isinstance(start, int | Extent):
        raise NotComposableError
    begin = make_extent(start)
    if not begin.is_number or begin.value < 0:
        raise NotComposableError
    return view.slice(axis, begin.value, shape[axis].value)


def _write_view(view: View, result: Array, names: NameTable, written: dict[tuple[str, str], Array]) -> list[Statement]:
    """The statements that make an array of a view, the last one with its name; `written` has what there is already.

    Raises NotComposableError where dimensions have no names of their own.
    """
    statements: list[Statement] = []
    source = view.source
    for dim, (start, count) in enumerate(zip(view.starts, view.counts, strict=True)):
        if count != source.shape[dim]:
            if source.dims.count(source.dims[dim]) > 1:
                raise NotComposableError
            text = f"slice({{0}}, {source.dims[dim]}=[{start}, {start + count.value}])"
            shape = (*source.shape[:dim], count, *source.shape[dim + 1 :])
            source = _write(statements, written, names, source, text, shape, source.dims)
    runs = _merge(view.order)
    in_source = sorted(range(len(runs)), key=lambda k: (runs[k][0].dim, runs[k][0].key))
    if len(set(result.dims)) < result.rank:
        raise NotComposableError
    if in_source != list(range(len(runs))):
        sizes = tuple(_multiply(runs[k]) for k in in_source)
        turned = tuple(_multiply(run) for run in runs)
        axes = [in_source.index(k) for k in range(len(runs))]
        dims = list(name_dimensions(sizes))
        if turned == result.shape:  # the names of the result, in the order of the source
            dims = [result.dims[k] for k in in_source]
        if sizes != source.shape or tuple(dims) != source.dims:
            source = _write(statements, written, names, source, _say_reshape(dims, sizes), sizes, dims)
        turned_dims = [source.dims[axis] for axis in axes]
        listed = ", ".join(f'"{dim}"' for dim in turned_dims)
        source = _write(statements, written, names, source, f"transpose({{0}}, {listed})", turned, turned_dims)
    if source.shape != result.shape or source.dims != result.dims:
        text = _say_reshape(result.dims, result.shape)
        source = _write(statements, written, names, source, text, result.shape, result.dims)
    if not statements or statements[-1].names != (source.name,):
        raise NotComposableError  # it is there under another name
    statements[-1] = replace(statements[-1], names=(result.name,), targets=result.name)
    for key, array in written.items():
        if array.name == source.name:
            written[key] = replace(array, name=result.name)
    return statements


def _write(
    statements: list[Statement], written: dict[tuple[str, str], Array], names: NameTable, source: Array, text: str,
    shape: Sequence[Extent], dims: Sequence[str],
) -> Array:  # fmt: skip
    key = (source.name, text)
    if key not in written:
        name = names.take("view")
        statements.append(Statement((name,), name, text, (source.name,)))
        written[key] = Array(tuple(shape), source.type, name, tuple(dims))
    return written[key]


def _say_reshape(dims: Sequence[str], shape: Sequence[Extent]) -> str:
    return f"reshape({{0}}, {', '.join(f'{dim}={extent.text}' for dim, extent in zip(dims, shape, strict=True))})"


def _merge(order: Sequence[Factor]) -> list[list[Factor]]:
    """Neighbours that are neighbours in the source, too, in one run each."""
    in_source = sorted(order, key=lambda factor: (factor.dim, factor.key))
    behind = dict(itertools.pairwise(in_source))
    runs: list[list[Factor]] = []
    for factor in order:
        if runs and behind.get(runs[-1][-1]) == factor:
            runs[-1].append(factor)
        else:
            runs.append([factor])
    return runs


def _multiply(run: Sequence[Factor]) -> Extent:
    size = make_extent(1)
    for factor in run:
        size = size * factor.size
    return size
