"""Invocations of the kernel `contract`: attributes and operands held against each other, and what follows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.bundle import Attribute
from runtime.dtypes import Array, compute
from runtime.errors import PlanFault
from runtime.kernels import indices
from runtime.kernels.base import dtype_name, factor, single, text

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product of operands, summed over the indices that `output` lacks, times `scale`; computed as `kind`.

    `program` are the attributes of the map that makes it where nothing is summed, and of the reduce with a sum.
    """

    joined: indices.Joined
    output: Names
    result: Array
    kind: str
    scale: float
    program: dict[str, Attribute]

    @property
    def sums(self) -> bool:
        return len(self.output) < len(self.joined.extents)

    @staticmethod
    def parse(attributes: Mapping[str, Attribute], inputs: Sequence[Array], outputs: Sequence[Array]) -> Contraction:
        allowed = ("equation", "scale")
        result = single(outputs)
        source, scale = text(attributes, allowed, "equation"), factor(attributes, allowed)
        equation = indices.parse(source)
        joined = indices.join(equation, inputs, result)
        known = {name for names in joined.inputs for name in names}
        for name in equation.output:
            if name not in known:
                raise PlanFault(f"index '{name}' of a contraction's result is in none of its operands")
        kinds = sorted({compute(dtype_name(array)) for array in (*inputs, result)})
        if len(kinds) != 1 or kinds == ["bool"]:
            raise PlanFault(f"a contraction of {' and '.join(kinds)} is not defined")
        if scale != 1 and kinds[0] not in ("f32", "f64"):
            raise PlanFault(f"a contraction of {kinds[0]} has no scale")
        program: dict[str, Attribute] = {"program": indices.product_program(len(inputs), scale), "indices": source}
        return Contraction(joined, equation.output, result, kinds[0], scale, program)
