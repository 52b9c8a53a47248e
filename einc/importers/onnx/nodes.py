"""What the conversion of an operator sees of a node: its arrays, its attributes, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, Elements, UnsupportedError

TYPE_NUMBERS = {
    1: ElementType.F32, 2: ElementType.U8, 3: ElementType.I8, 4: ElementType.U16, 5: ElementType.I16,
    6: ElementType.I32, 7: ElementType.I64, 9: ElementType.BOOL, 10: ElementType.F16, 11: ElementType.F64,
    12: ElementType.U32, 13: ElementType.U64, 16: ElementType.BF16,
}  # fmt: skip
"""Element types by their numbers in ONNX."""


def read_element_type(number: int) -> ElementType:
    if number not in TYPE_NUMBERS:
        from onnx import TensorProto

        known = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number) if known else str(number)
        raise UnsupportedError(f"elements of type {name} are not supported")
    return TYPE_NUMBERS[number]


class UnknownElementsError(UnsupportedError):
    """A shape, or another structure, depends on elements that are known only when a plan runs."""

    def __init__(self, role: str, inputs: Sequence[str]) -> None:
        names = ", ".join(inputs) or "other nodes"
        hint = f"give the elements now: --value {inputs[0]}=..." if inputs else None
        super().__init__(f"its {role} depends on the elements of {names}, which are known only in a run", hint)
        self.inputs = tuple(inputs)


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node; `inputs` are None where one is left out, `outputs` empty where one is not used.

    `origins` has the inputs of the model that each input of the node depends on.
    """

    program: ArrayProgram
    operator: str
    opset: int
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    origins: tuple[tuple[str, ...], ...] = ()

    @property
    def hint(self) -> str:
        """What the first result should be called."""
        return self.outputs[0] if self.outputs and self.outputs[0] else self.operator.lower()

    def input(self, position: int) -> Array:
        array = self.optional(position)
        if array is None:
            raise UnsupportedError(f"input {position} is missing")
        return array

    def optional(self, position: int) -> Array | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def arrays(self) -> list[Array]:
        """All inputs, of which none may be left out."""
        return [self.input(position) for position in range(len(self.inputs))]

    def wants(self, position: int) -> bool:
        """Whether something reads this output."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.attributes.get(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.attributes.get(name, default))

    def string(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int] | None:
        value = self.attributes.get(name, default)
        return None if value is None else [int(number) for number in value]

    def known(self, position: int, role: str) -> Elements:
        """The elements of an input that must be numbers which are known now."""
        numbers = self.input(position).numbers
        if numbers is None:
            raise UnknownElementsError(role, self.origins[position] if position < len(self.origins) else ())
        return numbers

    def known_ints(self, position: int, role: str) -> list[int]:
        return [int(number) for number in np.ravel(self.known(position, role))]

    def extents(self, position: int, role: str) -> tuple[Extent, ...]:
        """The elements of an input as extents, which may depend on params."""
        extents = self.input(position).extents
        if extents is None:
            raise UnknownElementsError(role, self.origins[position] if position < len(self.origins) else ())
        return extents

    def axes(self, position: int, name: str = "axes") -> list[int] | None:
        """Axes that are an attribute in older versions of an operator, and an input in newer ones."""
        if self.optional(position) is not None:
            return self.known_ints(position, name)
        return self.integers(name)


Results = Array | tuple[Array | None, ...]
Convert = Callable[[OnnxNode], Results]
