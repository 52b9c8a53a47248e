"""The gradients of a graph's tensors as they are made, from the loss backwards, beside the graph itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from einc.core.tensor import DType, TensorDesc
from einc.errors import SourceSpan
from einc.frontend.single_equation import add_equation
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Node
from einc.ops import registry
from einc.ops.arguments import Argument
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_programs import ScalarInput


@dataclass
class Tape:
    """A graph under construction, and the gradient of each tensor so far."""

    builder: GraphBuilder
    gradients: dict[str, str]

    def accumulate(self, tensor: str, gradient: str) -> None:
        """Adds a gradient to that of a tensor; it may have other names of dimensions, but not another shape."""
        desc = self.builder.desc(tensor)
        gradient = self.fit(gradient, desc)
        before = self.gradients.get(tensor)
        if before is not None:
            labels = tuple(f"i{axis}" for axis in range(desc.rank))
            total = build_equation(
                [(desc, labels), (desc, labels)],
                list(zip(labels, desc.dims, strict=True)),
                make_step("add", ScalarInput(0), ScalarInput(1)),
                None,
            )
            (gradient,) = self.builder.apply(total, (before, gradient), (f"{tensor}.gradient",))
        self.gradients[tensor] = gradient

    def fit(self, name: str, desc: TensorDesc) -> str:
        """The tensor with the names of dimensions and the element type of `desc`."""
        present = self.builder.desc(name)
        if present == desc:
            return name
        assert present.shape == desc.shape, f"{name} is {present}, and the gradient is {desc}"
        labels = tuple(f"i{axis}" for axis in range(desc.rank))
        function = "copy" if present.dtype is desc.dtype else f"cast:{desc.dtype.value}"
        copy = build_equation(
            [(present, labels)],
            list(zip(labels, desc.dims, strict=True)),
            make_step(function, ScalarInput(0)),
            None,
        )
        return self.builder.apply(copy, (name,))[0]


@dataclass
class NodeGradient:
    """A node whose gradients are being made: those of its outputs (None: 0), and which inputs have one."""

    tape: Tape
    node: Node
    outputs: tuple[str | None, ...]
    needs: tuple[bool, ...]

    @property
    def operator(self) -> Operator:
        return self.node.operator

    @property
    def builder(self) -> GraphBuilder:
        return self.tape.builder

    @property
    def span(self) -> SourceSpan | None:
        return self.node.span

    @cached_property
    def gradient(self) -> str:
        """The gradient of the first output."""
        name = self.outputs[0]
        assert name is not None
        return name

    def name_of(self, k: int) -> str:
        """The preferred name of the gradient of input k."""
        return f"{self.node.inputs[k]}.gradient"

    def put(self, k: int, gradient: str) -> None:
        """Adds to the gradient of input k."""
        self.tape.accumulate(self.node.inputs[k], gradient)

    def desc(self, name: str) -> TensorDesc:
        return self.builder.desc(name)

    def write(self, text: str, name: str | None = None, **values: str | bool | int | float) -> str:
        """The result of an index equation. A value that is a string is a tensor of the graph."""
        taken = {key: (value, self.desc(value)) if isinstance(value, str) else value for key, value in values.items()}
        return add_equation(text, taken, self.builder, name or self.builder.unique_name(self.name_of(0)))

    def call(self, function: str, *arguments: str | int | float, **keywords: Argument) -> str:
        """The first result of an operator of the library."""
        operands: list[Argument] = [self.desc(x) if isinstance(x, str) else x for x in arguments]
        operator = registry.call(function, operands, keywords)
        return self.apply(operator, *(x for x in arguments if isinstance(x, str)))[0]

    def apply(self, operator: Operator, *inputs: str, names: Sequence[str] = ()) -> tuple[str, ...]:
        return self.builder.apply(operator, inputs, names, self.span)

    def widen(self, name: str) -> str:
        """The tensor in f32 at least: sums of 16-bit floats would lose too much."""
        narrow = self.desc(name).dtype in (DType.F16, DType.BF16)
        return self.call("cast", name, dtype="f32") if narrow else name
