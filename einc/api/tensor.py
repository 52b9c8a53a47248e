"""Tensors of a graph under construction, with Python's operators and slices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from einc.api.arguments import Number
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError, UsageError


class TensorGraph(Protocol):
    """What a tensor asks of the graph that it is in; `operators.GraphOperators` has all of it."""

    def unary(self, x: Tensor, function: str) -> Tensor: ...
    def binary(self, a: Tensor | Number, b: Tensor | Number, function: str) -> Tensor: ...
    def matmul(self, a: Tensor, b: Tensor) -> Tensor: ...
    def cut(self, x: Tensor, key: Any) -> Tensor:
        """What `x[key]` means."""

    def _find_name(self, key: str) -> str:
        """The present name of the tensor that was first called `key`."""


def _write_binary(function: str) -> Callable[[Tensor, Tensor | Number], Tensor]:
    """The method of a tensor for an operator of Python."""
    return lambda tensor, operand: tensor.graph.binary(tensor, operand, function)


def _write_reversed(function: str) -> Callable[[Tensor, Number], Tensor]:
    """The same where the tensor is on the right of a number."""
    return lambda tensor, operand: tensor.graph.binary(operand, tensor, function)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A tensor of a graph: what `insertTensor` and the operators return.

    `+ - * / // % ** @ < <= > >= & | ~` and slices add operators to the graph. Dimensions are matched by position from
    the last one backwards, as in numpy; numbers take the tensor's element type. `==` compares nothing but the objects,
    so that tensors can be keys: `graph.binary(a, b, "eq")` compares elements.
    """

    graph: TensorGraph
    key: str
    desc: TensorDesc

    __array_ufunc__ = None
    """Tells numpy to leave operators to this class."""
    __iter__ = None

    @property
    def name(self) -> str:
        """The name in the graph and in the plan; `save` may change it."""
        return self.graph._find_name(self.key)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.shape

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return self.desc.dims

    @property
    def dtype(self) -> str:
        return self.desc.dtype.value

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"'{self.name}' has no value while the graph is built, so Python cannot decide by it",
            hint="graph.where(condition, a, b) chooses element by element",
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Tensor:
        return self.graph.cut(self, key)

    def __neg__(self) -> Tensor:
        return self.graph.unary(self, "neg")

    def __abs__(self) -> Tensor:
        return self.graph.unary(self, "abs")

    def __invert__(self) -> Tensor:
        return self.graph.unary(self, "not")

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matmul(self, other)

    __add__, __radd__ = _write_binary("add"), _write_reversed("add")
    __sub__, __rsub__ = _write_binary("sub"), _write_reversed("sub")
    __mul__, __rmul__ = _write_binary("mul"), _write_reversed("mul")
    __truediv__, __rtruediv__ = _write_binary("div"), _write_reversed("div")
    __floordiv__, __rfloordiv__ = _write_binary("floordiv"), _write_reversed("floordiv")
    __mod__, __rmod__ = _write_binary("mod"), _write_reversed("mod")
    __pow__, __rpow__ = _write_binary("pow"), _write_reversed("pow")
    __lt__, __le__ = _write_binary("lt"), _write_binary("le")
    __gt__, __ge__ = _write_binary("gt"), _write_binary("ge")
    __and__, __or__ = _write_binary("and"), _write_binary("or")


def read_slices(key: Any, desc: TensorDesc) -> tuple[list[tuple[int, int]], list[int]]:
    """What `x[key]` keeps: the first position and the one after the last of every dimension, and the dimensions that
    an integer drops.

    Raises OperatorError for anything but integers, slices of step 1 and one `...`.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if dots:
        parts[dots[0] : dots[0] + 1] = [slice(None)] * (desc.rank - len(parts) + 1)
    if len(parts) > desc.rank or len(dots) > 1:
        raise OperatorError(f"{len(parts)} positions for the {desc.rank} dimensions of {desc}")
    parts += [slice(None)] * (desc.rank - len(parts))
    bounds, dropped = [], []
    for at, (part, extent) in enumerate(zip(parts, desc.shape, strict=True)):
        if isinstance(part, slice):
            bounds.append(_read_slice(part, at, extent, desc))
        else:
            position = _read_position(part, desc)
            if not -extent <= position < extent:
                raise OperatorError(f"there is no position {position} in dimension {at} of {desc}")
            bounds.append((position % extent, position % extent + 1))
            dropped.append(at)
    return bounds, dropped


def _read_slice(part: slice, at: int, extent: int, desc: TensorDesc) -> tuple[int, int]:
    for value in (part.start, part.stop, part.step):
        if value is not None:
            _read_position(value, desc)
    start, stop, step = part.indices(extent)
    if step != 1:
        raise OperatorError(f"a slice of {desc} has step 1, not {step}", hint="an index equation can reorder elements")
    if start >= stop:
        raise OperatorError(f"the slice {start}:{stop} of dimension {at} of {desc} has no elements")
    return start, stop


def _read_position(value: Any, desc: TensorDesc) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        hint = "graph.where chooses by a condition, graph.embedding by computed indices"
        raise OperatorError(f"positions of {desc} are integers and slices, not {value!r:.60}", hint=hint)
    return operator.index(value)
