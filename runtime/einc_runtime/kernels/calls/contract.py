"""Calls of the kernel `contract`, and the order of products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels import indices
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.plan.index_equations import Names, parse_index_equation


@dataclass(frozen=True, slots=True)
class ContractCall:
    """A product of operands, summed over the indices that `result` lacks, times `scale`; computed in type `kind`."""

    invocation: Invocation[Array]
    operands: tuple[NamedArray, ...]
    extents: Mapping[str, int]
    result: NamedArray
    kind: str
    scale: float

    @property
    def sums(self) -> bool:
        """Whether any index is summed."""
        return len(self.result.names) < len(self.extents)

    @property
    def narrow(self) -> str | None:
        """The type of 16-bit floats of which this is one product of matrices, not scaled; else None."""
        kinds = {dtype_name(x.array) for x in (*self.operands, self.result)}
        names = [set(x.names) for x in (*self.operands, self.result)]
        if len(self.operands) != 2 or len(kinds) != 1 or self.scale != 1 or not kinds <= {"f16", "bf16"}:
            return None
        left, right, result = names
        summed_alone = (left ^ right) - result
        return None if summed_alone or not (left & right) - result else kinds.pop()

    @property
    def as_map_or_reduce(self) -> Invocation[Array]:
        """The same as a `map` where nothing is summed, else as a `reduce`."""
        program = write_product_program(len(self.invocation.inputs), self.scale)
        attributes = {"program": program, "indices": self.invocation.attribute("equation", str)}
        if not self.sums:
            return replace(self.invocation, name="map", attributes=attributes)
        return replace(self.invocation, name="reduce", attributes={**attributes, "aggregation": "sum"})

    @staticmethod
    def parse(invocation: Invocation[Array]) -> ContractCall:
        result, scale = invocation.output, invocation.number("scale", 1.0)
        equation = parse_index_equation(invocation.attribute("equation", str))
        joined, kind = indices.join(equation, invocation.inputs, result), compute_type(dtype_name(result))
        named = NamedArray(equation.output, result)
        return ContractCall(invocation, joined.operands, joined.extents, named, kind, scale)


def choose_smallest_pair(
    operands: Sequence[Names], output: Names, extents: Mapping[str, int]
) -> tuple[int, int, Names]:
    """The positions of the two operands whose product is smallest, after summing what no other operand needs, and the
    indices of that product."""

    def result(left: int, right: int) -> Names:
        needed = {*output, *(name for k, names in enumerate(operands) if k not in (left, right) for name in names)}
        return tuple(name for name in dict.fromkeys([*operands[left], *operands[right]]) if name in needed)

    def size(pair: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return math.prod(extents[name] for name in result(*pair)), pair

    pair = min(itertools.combinations(range(len(operands)), 2), key=size)
    return *pair, result(*pair)


def write_product_program(operands: int, scale: float) -> str:
    """The scalar program that multiplies `operands` many inputs and `scale`, which is left out if it is 1."""
    factors = [*(f"x{k}" for k in range(operands)), *([] if scale == 1 else [repr(scale)])]
    steps = [f"t{k} = mul {f't{k - 1}' if k else 'x0'} {factors[k + 1]}" for k in range(len(factors) - 1)]
    return "; ".join(steps) or "t0 = copy x0"


def group_indices(a: Names, b: Names, result: Names) -> tuple[Names, Names, Names, Names]:
    """The indices of a product of two operands in four groups: batches, rows, columns, and summed."""
    both = tuple(name for name in result if name in a and name in b)
    rows, columns = (tuple(name for name in result if name not in operand) for operand in (b, a))
    return both, rows, columns, tuple(name for name in a if name in b and name not in result)
