"""Adding tensors and operators to the graph, within the limits of the language, and reporting what operators refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.frontend import limits
from einc.frontend.expressions import Application, Several, Tensor, Value
from einc.frontend.findings import Findings
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, TensorKind
from einc.ops import registry
from einc.ops.arguments import Argument
from einc.ops.base import Operator
from einc.ops.equation import index_equation
from einc.ops.scalar import ScalarInput, single


class Assembly:
    """The graph under construction. Parts of a statement are named after it: `y.1`, `y.2`."""

    def __init__(self, name: str, dtype: DType | None, findings: Findings) -> None:
        self._builder = GraphBuilder(name)
        self._dtype = dtype
        self._findings = findings
        self._declared: set[str] = set()  # the inputs and weights
        self._saved: set[str] = set()
        self._renamed: dict[str, str] = {}  # the present names of tensors that have been renamed
        self._nodes = 0
        self._statement = ""
        self._parts = 0

    def start(self, statement: str) -> tuple[str, int]:
        """Names parts after another statement from now on; returns what `resume` needs to go back."""
        before = self._statement, self._parts
        self._statement, self._parts = statement, 0
        return before

    def resume(self, before: tuple[str, int]) -> None:
        self._statement, self._parts = before

    def element_type(self, name: str) -> str:
        """What a name of an element type stands for: `--dtype` replaces all floating ones. Other words stay."""
        if self._dtype is None or name not in _DTYPES or not DType(name).is_float:
            return name
        return self._dtype.value

    def declare(self, kind: TensorKind, name: str, desc: TensorDesc, stored: str | None, span: SourceSpan) -> Tensor:
        """Adds an input or weight whose name is new."""
        self._check_size(desc, span)
        self._check_name(name, span)
        self._declared.add(name)
        if kind is TensorKind.INPUT:
            return Tensor(self._builder.input(name, desc, span), desc)
        return Tensor(self._builder.weight(name, desc, stored, span), desc)

    def call(self, application: Application) -> Tensor | Several:
        """Applies an operator of the library."""
        given = (*application.arguments, *application.keywords.values())
        tensors = tuple(argument for argument in given if isinstance(argument, Tensor))
        try:
            operator = registry.call(
                application.function,
                [self._argument(argument) for argument in application.arguments],
                {name: self._argument(argument) for name, argument in application.keywords.items()},
            )
        except OperatorError as error:
            raise self._findings.fail(error.message, application.span_of(error.argument), error.hint) from None
        return self._add(operator, tensors, application.wishes, application.syntax.span)

    def equation(
        self,
        operator: Operator,
        inputs: Sequence[Tensor],
        wishes: tuple[str, ...],
        span: SourceSpan,
    ) -> Tensor:
        """Applies the operator of an index equation."""
        result = self._add(operator, tuple(inputs), wishes, span)
        assert isinstance(result, Tensor)
        return result

    def save(self, tensor: Tensor, name: str, span: SourceSpan) -> bool:
        """Saves a tensor under a name; False where an input or weight has the name.

        A computed tensor is renamed. An input or weight, and a tensor that is saved already, is copied: outputs are
        computed tensors, and each has one name.
        """
        if name in self._declared:
            return False
        if tensor.name in self._declared or tensor.name in self._saved:
            tensor = self._copy(tensor, name, span)
        self._saved.add(tensor.name)
        self._rename(tensor.name, name)
        self._builder.save(name)
        return True

    def build(self) -> Graph:
        return self._builder.build()

    def _copy(self, tensor: Tensor, name: str, span: SourceSpan) -> Tensor:
        now = Tensor(self._renamed.get(tensor.name, tensor.name), tensor.desc)
        labels = tuple(f"i{k}" for k in range(tensor.desc.rank))
        result = list(zip(labels, tensor.desc.dims, strict=True))
        operator = index_equation([(tensor.desc, labels)], result, single("copy", ScalarInput(0)), None)
        return self.equation(operator, (now,), (f"{name}.copy",), span)

    def _rename(self, tensor: str, name: str) -> None:
        """Gives a computed tensor a name; another one that has it becomes `name.before`."""
        now = self._renamed.get(tensor, tensor)
        if now == name:
            return
        if self._builder.unique(name) != name:
            holder = next((old for old, new in self._renamed.items() if new == name), name)
            self._renamed[holder] = self._builder.rename(name, self._builder.unique(f"{name}.before"))
        self._renamed[tensor] = self._builder.rename(now, name)

    def _add(
        self, operator: Operator, inputs: tuple[Tensor, ...], wishes: tuple[str, ...], span: SourceSpan
    ) -> Tensor | Several:
        self._nodes += 1
        if self._nodes > limits.NODES:
            message = f"the model has more than {limits.NODES:,} operators, the most that are allowed"
            raise self._findings.fail(message, span)
        for desc in operator.outputs:
            self._check_size(desc, span)
        parts = [self._part() for _ in operator.outputs[len(wishes) :]]
        wishes = (*wishes[: len(operator.outputs)], *parts)
        for wish in wishes:
            self._check_name(wish, span)
        names = self._builder.apply(operator, [tensor.name for tensor in inputs], wishes, span)
        tensors = tuple(Tensor(name, desc) for name, desc in zip(names, operator.outputs, strict=True))
        return tensors[0] if len(tensors) == 1 else Several(tensors, first_alone=True)

    def _part(self) -> str:
        self._parts += 1
        return f"{self._statement}.{self._parts}"

    def _argument(self, value: Value) -> Argument:
        """An argument as operators get it: tensors by their types; element types follow `--dtype`."""
        if isinstance(value, Tensor):
            return value.desc
        return self.element_type(value) if isinstance(value, str) else value

    def _check_size(self, desc: TensorDesc, span: SourceSpan) -> None:
        if desc.rank > limits.RANK:
            message = f"this tensor has {desc.rank:,} dimensions; at most {limits.RANK} are allowed"
            raise self._findings.fail(message, span)
        if math.prod(desc.shape) * desc.dtype.itemsize >= limits.INTEGER:
            raise self._findings.fail(f"this tensor is too large: {desc} has 2**63 bytes or more", span)

    def _check_name(self, name: str, span: SourceSpan) -> None:
        if len(name) > limits.FULL_NAME_CHARACTERS:
            message = (
                f"with the names of the blocks around it, this has a name of {len(name):,} characters; "
                f"at most {limits.FULL_NAME_CHARACTERS:,} are allowed"
            )
            raise self._findings.fail(message, span)


_DTYPES = frozenset(dtype.value for dtype in DType)
