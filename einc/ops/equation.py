"""The tensor-relational core: a join of indexed tensors, then an aggregation over the indices the result lacks.

Contractions, elementwise operators with broadcasting, reductions, transposes and diagonals are all index equations;
`elementwise` and `shorthands` only define how calls become one. Every index is shardable at any position: if the result
has it, its intervals tile the output, and if not, they make partial results (paper, Section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops.arguments import drop_item
from einc.ops.base import (
    Attributes,
    Labels,
    Operator,
    Restriction,
    describe_product,
    find_product_precision,
    find_vector_precision,
)
from einc.ops.dequantize import Dequantize
from einc.ops.derived import DerivedMappedOperator
from einc.ops.functions import AGGREGATIONS, count_operations
from einc.ops.quantized_product import make_quantized_product
from einc.ops.scalar import compose, exchange_inputs, make_step, merge_inputs, parse_program, resolve_program
from einc.ops.windows import Windows, compose_box, list_boxes, normalize_windows, read_equation
from einc_runtime.plan.index_equations import MAX_INDICES, IndexEquation, format_windows
from einc_runtime.plan.index_programs import COPY_PROGRAM
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarProgram
from einc_runtime.plan.states import IN_PLACE
from einc_runtime.plan.work import Work

MAX_FUSED_STEPS = 128
"""Fusion stops at programs of this length: longer ones only spill registers, and composing them takes long."""


@dataclass(frozen=True, slots=True)
class Equation(DerivedMappedOperator):
    """`result[...] = aggregation[...](program(operands[labels]...))`; made by `build_equation`, which checks it.

    `dims` names the dimensions of the result. `aggregation` is None if, and only if, no index is aggregated. An
    operand with a window stands for that part of its tensor: its indices count from the window's first position.
    `in_place`, the first operand is a state that the result is written over.
    """

    family: ClassVar[str] = "equation"

    operands: tuple[TensorDesc, ...]
    labels: tuple[Labels, ...]
    result: Labels
    dims: tuple[str, ...]
    program: ScalarProgram
    aggregation: str | None
    dtype: DType
    windows: Windows = ()
    in_place: bool = False

    @property
    def title(self) -> str:
        steps = [step.function for step in self.program.steps if step.function != "copy"]
        if self.is_contraction:
            return "matmul" if self._is_matmul else "contract"
        if not steps and self.aggregation is None:
            return "transpose" if self.labels != (self.result,) else "slice" if self.windows else "copy"
        more = [f"{len(steps) - 5} more"] if len(steps) > 6 else []
        joined = "+".join(steps[:5] + more if more else steps)
        if self.aggregation is None:
            return joined
        return f"{self.aggregation}({joined})" if joined else self.aggregation

    @property
    def is_contraction(self) -> bool:
        """Whether it is a product of tensors, summed over indices or not, that the kernel of products computes."""
        return self.kernel.name == "contract"

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.operands  # the base class would look for them among the fields on every call

    @property
    def attributes(self) -> Attributes:
        windows = {"windows": format_windows(self.windows)} if self.windows else {}
        return {
            "indices": str(IndexEquation(self.labels, self.result)),
            "dims": self.dims,
            "program": self.program.text,
            "aggregation": self.aggregation or "",
            **windows,
            **({IN_PLACE: True} if self.in_place else {}),
        }

    @property
    def reads(self) -> tuple[TensorType, ...]:
        return list_boxes(self.operands, self.windows)

    @property
    def part(self) -> TensorType | None:
        """What a copy reads, unless it renames dimensions or has them in another order."""
        if len(self.operands) != 1 or self.program.text != COPY_PROGRAM or self.in_place:
            return None
        return self.reads[0] if (self.result, self.dims) == (self.labels[0], self.operands[0].dims) else None

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        from einc.ops.evaluate import contract, join_and_aggregate

        if self.windows:
            boxes = zip(arrays, self.reads, strict=True)
            arrays = tuple(array[(*map(slice, box.lower, box.upper),)] for array, box in boxes)
        if self.is_contraction:
            factor = self.program.product_factor
            return (contract(arrays, self.labels, self.result, self.dtype, 1.0 if factor is None else factor),)
        dtypes = [desc.dtype for desc in self.operands]
        return (join_and_aggregate(self.program, arrays, self.labels, dtypes, self.result, self.aggregation),)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        """Operations at each element of the join: one for each step of the program, and one to aggregate. Joins that
        are aggregated and are no products have no multiply-adds, which peaks count as two: see `count_operations`.
        """
        extents = {
            name: extent
            for labels, block in zip(self.labels, function.inputs, strict=True)
            for name, extent in zip(labels, block.shape, strict=True)
        }
        steps = [step.function for step in self.program.steps if step.function != "copy"]
        if self.aggregation is None or len(self.operands) == 1 or self.is_contraction:
            return math.prod(extents.values()) * (len(steps) + (self.aggregation is not None))
        return math.prod(extents.values()) * count_operations(steps, self.aggregation)

    def work(self, function: FunctionSpec) -> Work | None:
        if not self.is_contraction or len(self.operands) != 2:
            return None
        return describe_product(self.labels, self.result, [block.shape for block in function.inputs])

    @property
    def precision(self) -> str:
        if self.is_contraction:
            return find_product_precision(*self.operands)
        return find_vector_precision(*self.operands)

    def fan_in(self, k: int) -> int:
        if self.aggregation != "sum":
            return 1
        extents = self._extents
        return math.prod(extents[name] for name in set(self.labels[k]) - set(self.result))

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """Fuses elementwise operators if the producer's result has every index of this one exactly once, any part of a
        tensor, and quantized weights into products.

        The result of a 16-bit producer is still rounded if a comparison or the like could depend on the rounding.
        """
        if producer.part is not None:
            boxes = (*self.reads[:k], compose_box(producer.part, self.reads[k]), *self.reads[k + 1 :])
            operands = (*self.operands[:k], *producer.inputs, *self.operands[k + 1 :])
            return replace(self, operands=operands, windows=normalize_windows(operands, boxes))
        if isinstance(producer, Dequantize):
            return self._join_dequantize(k, producer)
        if not isinstance(producer, Equation) or self.aggregation is not None or producer.aggregation is not None:
            return None
        if producer.in_place:
            return None
        read = self.labels[k]
        if len(set(read)) != len(read) or len(read) != len(self.result):
            return None
        if len(self.program.steps) + len(producer.program.steps) > MAX_FUSED_STEPS:
            return None
        narrow = producer.dtype in (DType.F16, DType.BF16)
        rounding = producer.dtype if narrow and self.program.is_discontinuous else None
        renamed = dict(zip(producer.result, read, strict=True))
        inner = tuple(tuple(renamed[name] for name in labels) for labels in producer.labels)
        operands = self.operands[:k] + producer.operands + self.operands[k + 1 :]
        boxes = self.reads[:k] + producer._find_boxes_behind(self.reads[k]) + self.reads[k + 1 :]
        return replace(
            self,
            operands=operands,
            labels=self.labels[:k] + inner + self.labels[k + 1 :],
            program=compose(self.program, k, producer.program, rounding),
            windows=normalize_windows(operands, boxes),
        )

    def exchange(self) -> Operator | None:
        """A product of two operands is that of the second with the first."""
        if not self.is_contraction or len(self.operands) != 2:
            return None
        return replace(
            self,
            operands=self.operands[::-1],
            labels=self.labels[::-1],
            program=exchange_inputs(self.program),
            windows=self.windows[::-1],
        )

    def _join_dequantize(self, k: int, producer: Dequantize) -> Operator | None:
        """The product with a weight as it is stored; None where no kernel reads it so."""
        if not self.is_contraction or len(self.operands) != 2 or k != 1:
            return None
        factor, labels = self.program.product_factor, (self.labels[0], self.labels[1])
        return make_quantized_product(
            self.operands[0], producer, labels, self.result, self.dims, 1.0 if factor is None else factor, self.reads
        )

    def merge(self, first: int, second: int) -> Operator | None:
        """Elementwise operators read a tensor once; the kernel of a contraction takes two operands even if they are
        equal."""
        if self.aggregation is not None or self.labels[first] != self.labels[second]:
            return None
        if self.reads[first] != self.reads[second]:
            return None
        return replace(
            self,
            operands=drop_item(self.operands, second),
            labels=drop_item(self.labels, second),
            program=merge_inputs(self.program, first, second),
            windows=drop_item(self.windows, second) if self.windows else (),
        )

    def restrict(self, box: TensorType) -> Restriction | None:
        """The part of the result needs the same part of every operand, and all of what is aggregated."""
        if self.in_place:
            return None
        boxes = self._find_boxes_behind(box)
        operands = tuple(replace(operand, shape=part.shape) for operand, part in zip(self.operands, boxes, strict=True))
        return Restriction(replace(self, operands=operands, windows=()), boxes)

    def _find_boxes_behind(self, box: TensorType) -> tuple[TensorType, ...]:
        """The parts of the operands' tensors from which the part `box` of the result is computed."""
        chosen = dict(zip(self.result, zip(box.lower, box.upper, strict=True), strict=True))
        boxes = []
        for labels, window in zip(self.labels, self.reads, strict=True):
            ranges = [chosen.get(name, (0, extent)) for name, extent in zip(labels, window.shape, strict=True)]
            boxes.append(compose_box(window, TensorType(tuple(lo for lo, _ in ranges), tuple(up for _, up in ranges))))
        return tuple(boxes)

    @property
    def _extents(self) -> dict[str, int]:
        """The extent of every index, in the order of first appearance."""
        return {
            name: extent
            for labels, shape in zip(self.labels, self._shapes, strict=True)
            for name, extent in zip(labels, shape, strict=True)
        }

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [box.shape for box in self.reads] if self.windows else [desc.shape for desc in self.operands]

    @property
    def _is_matmul(self) -> bool:
        if len(self.labels) != 2 or min(map(len, self.labels)) < 2:
            return False
        (*batch, i, j), (*_, j2, k) = self.labels
        shared = tuple(batch)
        return j == j2 and self.result == (*shared, i, k) and self.labels[1] in ((*shared, j, k), (j, k))


def build_equation(
    inputs: Sequence[tuple[TensorDesc, tuple[str, ...]]],
    result: Sequence[tuple[str, str]],
    program: ScalarProgram,
    aggregation: str | None,
    windows: Windows = (),
) -> Equation:
    """The operator of an index equation.

    `inputs` are tensors with one index name per dimension; a name may occur in several tensors, and twice in one.
    `result` pairs index names with the names of the result's dimensions. `program` has one input per tensor. `windows`
    are within the tensors. Raises OperatorError, whose `argument` is the number of the input at fault, if there is one.
    """
    if not inputs:
        raise OperatorError("an index equation needs at least one tensor")
    if program.arity != len(inputs):
        raise OperatorError(f"the join expression reads {program.arity} tensors, not {len(inputs)}")
    operands = tuple(desc for desc, _ in inputs)
    boxes = list_boxes(operands, windows)
    parts = [replace(desc, shape=box.shape) for desc, box in zip(operands, boxes, strict=True)]
    extents = _bind([(part, labels) for part, (_, labels) in zip(parts, inputs, strict=True)])
    names = tuple(name for name, _ in result)
    gone = [name for name in extents if name not in names]
    _check_result(names, gone, extents, aggregation)
    program, types = resolve_program(program, [desc.dtype for desc, _ in inputs])
    if gone and types[-1] is DType.BOOL:
        raise OperatorError(f"{aggregation} does not take bool", hint='convert it: cast(x, "i32")')
    return Equation(
        operands,
        tuple(labels for _, labels in inputs),
        names,
        tuple(dim for _, dim in result),
        program,
        aggregation if gone else None,
        types[-1],
        normalize_windows(operands, boxes),
    )


def _bind(inputs: Sequence[tuple[TensorDesc, Labels]]) -> dict[str, int]:
    """The extent of every index, which must be the same wherever the index occurs."""
    extents: dict[str, tuple[int, str]] = {}
    for k, (desc, labels) in enumerate(inputs):
        if len(labels) != desc.rank:
            raise OperatorError(
                f"{len(labels)} indices for a tensor of {desc.rank} dimensions, {desc}",
                argument=k,
                hint="write one index per dimension",
            )
        for name, dim, extent in zip(labels, desc.dims, desc.shape, strict=True):
            if not name.isidentifier():
                raise OperatorError(f"{name!r} is no name of an index", argument=k, hint="use letters, digits and _")
            known, where = extents.setdefault(name, (extent, f"dimension '{dim}' of operand {k + 1}"))
            if known != extent:
                raise OperatorError(
                    f"index '{name}' is {known} ({where}) but dimension '{dim}' of operand {k + 1} is {extent}",
                    argument=k,
                    hint="one index stands for one extent; use another name if the two are not the same",
                )
    if len(extents) > MAX_INDICES:
        raise OperatorError(f"an index equation of {len(extents)} indices; at most {MAX_INDICES} are supported")
    return {name: extent for name, (extent, _) in extents.items()}


def _check_result(names: Labels, gone: Sequence[str], extents: Mapping[str, int], aggregation: str | None) -> None:
    for name in names:
        if name not in extents:
            raise OperatorError(
                f"index '{name}' of the result stands in no tensor on the right",
                hint="its extent is unknown; index a tensor with it",
            )
        if names.count(name) > 1:
            raise OperatorError(f"index '{name}' stands twice in the result", hint="each may stand there once")
    if aggregation is not None and aggregation not in AGGREGATIONS:
        raise OperatorError(f"there is no aggregation {aggregation!r}", hint="use one of " + ", ".join(AGGREGATIONS))
    if gone and aggregation is None:
        raise OperatorError(
            f"index '{gone[0]}' is missing from the result", hint=f"aggregate over it: sum[{', '.join(gone)}](...)"
        )


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The equation with these attributes; raises OperatorError if they are not those of an equation."""
    indices, program = attributes.get("indices"), attributes.get("program")
    dims, aggregation = attributes.get("dims"), attributes.get("aggregation")
    if not (
        isinstance(indices, str)
        and isinstance(program, str)
        and isinstance(dims, tuple)
        and isinstance(aggregation, str)
    ):
        raise OperatorError("an equation has the attributes indices, dims, program and aggregation")
    equation, windows = read_equation(attributes, [desc.shape for desc in inputs])
    labels, result = equation.inputs, equation.output
    if len(labels) != len(inputs) or len(result) != len(dims):
        raise OperatorError(f"indices {indices[:80]!r} do not fit {len(inputs)} tensors and {len(dims)} dimensions")
    operator = build_equation(
        list(zip(inputs, labels, strict=True)),
        [(name, str(dim)) for name, dim in zip(result, dims, strict=True)],
        parse_program(program, len(inputs)),
        aggregation or None,
        windows,
    )
    return replace(operator, in_place=True) if attributes.get(IN_PLACE) is True else operator


def build_assignment(desc: TensorDesc) -> Equation:
    """The operator that writes its second operand over its first, a state; what computes the second can be fused."""
    labels = tuple(f"i{axis}" for axis in range(desc.rank))
    result = tuple(zip(labels, desc.dims, strict=True))
    operator = build_equation([(desc, labels)] * 2, result, make_step("copy", ScalarInput(1)), None)
    return replace(operator, in_place=True)


FAMILIES = {Equation.family: restore}
