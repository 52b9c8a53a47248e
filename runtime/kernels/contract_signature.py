"""Invocations of the kernel `contract`: attributes and operands held against each other, and what follows of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runtime.dtypes import Array, compute
from runtime.errors import PlanFault
from runtime.kernels import indices
from runtime.kernels.base import Invocation, dtype_name

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product of operands, summed over the indices that `output` lacks, times `scale`; computed as `kind`.

    `spelled` is the map that makes it where nothing is summed, and else the reduce.
    """

    joined: indices.Joined
    output: Names
    result: Array
    kind: str
    scale: float
    spelled: Invocation[Array]

    @property
    def sums(self) -> bool:
        return len(self.output) < len(self.joined.extents)

    @staticmethod
    def parse(invocation: Invocation[Array]) -> Contraction:
        invocation.allow("equation", "scale")
        source, inputs, result = invocation.attribute("equation", str), invocation.inputs, invocation.output
        scale = invocation.attribute("scale", float) if "scale" in invocation.attributes else 1.0
        if not math.isfinite(scale):
            raise PlanFault(f"the kernel attribute 'scale' is {scale}")
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
        attributes = {"program": indices.product_program(len(inputs), scale), "indices": source}
        sums = {"aggregation": "sum"} if len(equation.output) < len(joined.extents) else {}
        spelled = replace(invocation, name="reduce" if sums else "map", attributes={**attributes, **sums})
        return Contraction(joined, equation.output, result, kinds[0], scale, spelled)


def smallest_pair(operands: Sequence[Names], output: Names, extents: Mapping[str, int]) -> tuple[int, int, Names]:
    """The two operands, of more, whose product is smallest, once what nobody else needs is summed; and its indices."""

    def result(one: int, other: int) -> Names:
        needed = {*output, *(name for k, names in enumerate(operands) if k not in (one, other) for name in names)}
        return tuple(name for name in dict.fromkeys([*operands[one], *operands[other]]) if name in needed)

    def size(pair: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return math.prod(extents[name] for name in result(*pair)), pair

    pair = min(itertools.combinations(range(len(operands)), 2), key=size)
    return *pair, result(*pair)
