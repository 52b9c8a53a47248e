"""Mixed precision: weights of f32, and products of 16-bit floats, as `torch.autocast` has them.

Products of matrices, convolutions, experts and attention read 16-bit floats. What is elementwise, and what only moves,
has 16 bits where all that it reads has. Sums, norms, softmax, losses and everything else are computed as the model
says. Weights of 16 bits become f32 that is rounded where the model reads it, so that an optimizer adds small steps to
f32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError, UsageError
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, Node, TensorKind, updates_state
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.equation import Equation
from einc.ops.functions import fit_literal
from einc.ops.index_operator import IndexOperator
from einc_runtime.plan.scalar_programs import ScalarLiteral, ScalarProgram

PRECISIONS = {"bf16": DType.BF16, "f16": DType.F16}
"""Types that products may have."""
_MOVING_FAMILIES = frozenset(("reshape", "rope"))
_WIDE_FUNCTIONS = frozenset(("exp", "expm1", "log", "log1p", "log2", "pow", "rsqrt"))
"""Functions that magnify the rounding of what they read, and are computed in f32."""


def mix_precision(graph: Graph, precision: str, weights: Collection[str]) -> Graph:
    """The graph with products in the type `precision` of PRECISIONS, and with those of `weights` that have 16 bits in
    f32. Outputs have the types that they had. Raises UsageError for another type."""
    if precision not in PRECISIONS:
        raise UsageError(f"there is no mixed precision '{precision:.40}'", hint="it is bf16 or f16")
    return _Mixing(graph, PRECISIONS[precision]).build(weights)


class _Mixing:
    """A graph under construction, the names that tensors have in it, and the casts of each."""

    def __init__(self, graph: Graph, narrow: DType) -> None:
        self._graph, self._narrow = graph, narrow
        self._builder = GraphBuilder(graph.name)
        self._casts: dict[tuple[str, DType], str] = {}

    def build(self, weights: Collection[str]) -> Graph:
        builder, table = self._builder, self._graph.tensor_table()
        for tensor in self._graph.tensors:
            if tensor.name in weights and tensor.desc.dtype in (DType.F16, DType.BF16):
                tensor = replace(tensor, desc=replace(tensor.desc, dtype=DType.F32))
            if tensor.kind is not TensorKind.VALUE:
                builder.declare(tensor)
        for node in self._graph.nodes:
            self._add(node, [table[name].desc for name in node.inputs])
        for name in self._graph.outputs:
            dtype = table[name].desc.dtype
            if builder.desc(name).dtype is not dtype:
                cast = self._cast(name, dtype)
                builder.rename(cast, name)  # the one that it is made of gets the name of the cast
            builder.save(name)
        return builder.build()

    def _add(self, node: Node, descs: Sequence[TensorDesc]) -> None:
        operator, inputs = node.operator, list(node.inputs)
        if not updates_state(operator):
            narrowed = self._narrow_operator(operator, inputs, descs)
            if narrowed is not None:
                operator = narrowed
                descs = operator.inputs
        inputs = [self._cast(name, desc.dtype) for name, desc in zip(inputs, descs, strict=True)]
        self._builder.apply(operator, inputs, node.outputs, node.span)

    def _narrow_operator(
        self, operator: Operator, inputs: Sequence[str], descs: Sequence[TensorDesc]
    ) -> Operator | None:
        """The operator on 16-bit floats, where it is a product, or where all that it reads has them already."""
        floats = [k for k, desc in enumerate(descs) if desc.dtype is DType.F32]
        present = [self._builder.desc(inputs[k]).dtype for k in floats]
        follows = is_elementwise(operator) and all(dtype is self._narrow for dtype in present)
        if not floats or not (_is_product(operator) or follows):
            return None
        narrow = tuple(replace(d, dtype=self._narrow) if k in floats else d for k, d in enumerate(descs))
        computed = _find_scalar(operator)
        try:
            for operand in [x for step in computed[0].steps for x in step.operands] if computed else ():
                if isinstance(operand, ScalarLiteral) and isinstance(operand.value, float):
                    fit_literal(operand.value, self._narrow)
            return registry.restore(operator.family, narrow, operator.attributes)
        except OperatorError:  # it names types itself, or numbers that 16 bits have no room for
            return None

    def _cast(self, name: str, dtype: DType) -> str:
        if self._builder.desc(name).dtype is dtype:
            return name
        key = name, dtype
        if key not in self._casts:
            operator = registry.call("cast", [self._builder.desc(name)], {"dtype": dtype.value})
            (self._casts[key],) = self._builder.apply(operator, (name,), (f"{name}.{dtype.value}",))
        return self._casts[key]


def _is_product(operator: Operator) -> bool:
    """A product that is one number is no matrix: it may be a loss."""
    is_matrix_product = isinstance(operator, Equation | IndexOperator) and operator.is_contraction
    return (is_matrix_product and operator.outputs[0].rank > 0) or operator.family == "attention"


def is_elementwise(operator: Operator, *, wide: bool = False) -> bool:
    """Whether it computes each element of few others, or only moves them; without `wide`, by functions that 16 bits
    are enough for."""
    computed = _find_scalar(operator)
    if computed is None:
        return operator.family in _MOVING_FAMILIES
    scalar, aggregation = computed
    return not aggregation and (wide or _WIDE_FUNCTIONS.isdisjoint(step.function for step in scalar.steps))


def _find_scalar(operator: Operator) -> tuple[ScalarProgram, str] | None:
    """What an index equation or an index program computes of each index vector, and how it aggregates."""
    if isinstance(operator, Equation):
        return operator.program, operator.aggregation or ""
    return (operator.scalar, operator.program.aggregation) if isinstance(operator, IndexOperator) else None
