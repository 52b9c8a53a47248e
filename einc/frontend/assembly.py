"""Adding tensors, operators and outputs to the graph, within the limits of the language.

What operators refuse is reported here, at the argument at fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from einc.core.tensor import DType, TensorDesc
from einc.errors import SourceSpan
from einc.frontend import constants, limits
from einc.frontend.context import LoweringContext, SavedOutput
from einc.frontend.expressions import EvaluatedCall, MultipleResults, TensorValue, Value
from einc.frontend.findings import AlreadyReported
from einc.frontend.parameters import DTYPE_NAMES
from einc.graph.builder import GraphBuilder
from einc.graph.graph import TensorKind
from einc.ops import registry
from einc.ops.arguments import Argument
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_programs import ScalarInput


def resolve_dtype(context: LoweringContext, name: str) -> str:
    """The element type that a name stands for: `--dtype` replaces all floating ones. Other words stay as they are."""
    if context.dtype is None or name not in DTYPE_NAMES or not DType(name).is_float:
        return name
    return context.dtype.value


def declare_tensor(
    context: LoweringContext, kind: TensorKind, name: str, desc: TensorDesc, stored: str | None, span: SourceSpan
) -> TensorValue:
    """Adds an input, weight or state whose name is new."""
    _check_size(context, desc, span)
    _check_name(context, name, span)
    context.declared.add(name)
    if kind is TensorKind.STATE:
        return TensorValue(context.builder.state(name, desc, span), desc)
    if kind is TensorKind.INPUT:
        return TensorValue(context.builder.input(name, desc, span), desc)
    return TensorValue(context.builder.weight(name, desc, stored, span), desc)


def apply_operator(context: LoweringContext, call: EvaluatedCall) -> TensorValue | MultipleResults:
    """Applies an operator of the library to the arguments of a call."""
    operands = (*call.arguments, *call.keywords.values())
    tensors = [argument for argument in operands if isinstance(argument, TensorValue)]
    with context.findings.locate_errors(call.span_of):
        operator = registry.call(
            call.function,
            [_convert_argument(context, argument) for argument in call.arguments],
            {name: _convert_argument(context, argument) for name, argument in call.keywords.items()},
        )
    return _add_node(context, operator, tensors, call.result_names, call.syntax.span)


def apply_equation(
    context: LoweringContext,
    operator: Operator,
    inputs: Sequence[TensorValue],
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    result = _add_node(context, operator, inputs, result_names, span)
    assert isinstance(result, TensorValue)
    return result


def apply_equations(
    context: LoweringContext,
    operator: Operator,
    inputs: Sequence[TensorValue],
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> tuple[TensorValue, ...]:
    """Applies the operator of a recurrence, or of an aggregation of several values: it has a result for each."""
    results = _add_node(context, operator, inputs, result_names, span)
    return (results,) if isinstance(results, TensorValue) else tuple(map(_require_tensor, results.values))


def _require_tensor(value: Value) -> TensorValue:
    assert isinstance(value, TensorValue)
    return value


def collect_outputs(context: LoweringContext) -> None:
    """Notes what the outputs of the present scope stand for at its end; reports what cannot be saved."""
    for syntax in context.scope.outputs:
        with suppress(AlreadyReported):
            name = context.scope.full_name(syntax.text)
            if name in context.outputs:
                raise context.findings.fail(f"'{name}' is saved already", syntax.span)
            value = context.look_up(syntax)
            if not isinstance(value, TensorValue):
                described = constants.describe_value(value)
                raise context.findings.fail(f"expected a tensor, found {described}", syntax.span)
            context.outputs[name] = SavedOutput(syntax, name, value)


def save_outputs(context: LoweringContext) -> None:
    """Saves the collected outputs in the graph, each under its name; does nothing if there are errors.

    A computed tensor is renamed. An input or weight, and a tensor that is saved already, is copied, because outputs
    are computed tensors and each has one name.
    """
    if context.findings:
        return
    saved: set[str] = set()
    current: dict[str, str] = {}  # the present names of tensors that have been renamed
    for output in context.outputs.values():
        tensor, name, span = output.tensor, output.name, output.syntax.span
        if name in context.declared:
            context.findings.add(
                f"'{name}' names an input or weight, so no output can have this name",
                span,
                f"save it under another name: `output y = {output.syntax.text}`",
            )
            continue
        if tensor.name in context.declared or tensor.name in saved:
            source = TensorValue(current.get(tensor.name, tensor.name), tensor.desc)
            tensor = _copy_tensor(context, source, name, span)
        saved.add(tensor.name)
        _rename_tensor(context.builder, current, tensor.name, name)
        context.builder.save(name)


def _copy_tensor(context: LoweringContext, tensor: TensorValue, name: str, span: SourceSpan) -> TensorValue:
    labels = tuple(f"i{k}" for k in range(tensor.desc.rank))
    result = list(zip(labels, tensor.desc.dims, strict=True))
    operator = build_equation([(tensor.desc, labels)], result, make_step("copy", ScalarInput(0)), None)
    return apply_equation(context, operator, (tensor,), (f"{name}.copy",), span)


def _rename_tensor(builder: GraphBuilder, current: dict[str, str], tensor: str, name: str) -> None:
    """Gives a computed tensor a name; another tensor that has it becomes `name.before`."""
    now = current.get(tensor, tensor)
    if now == name:
        return
    if builder.unique_name(name) != name:
        holder = next((old for old, new in current.items() if new == name), name)
        current[holder] = builder.rename(name, builder.unique_name(f"{name}.before"))
    current[tensor] = builder.rename(now, name)


def _add_node(
    context: LoweringContext,
    operator: Operator,
    inputs: Sequence[TensorValue],
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue | MultipleResults:
    """Adds an operator to the graph. Results without a preferred name are parts of the statement."""
    context.node_count += 1
    if context.node_count > limits.NODES:
        message = f"the model has more than {limits.NODES:,} operators, the most that are allowed"
        raise context.findings.fail(message, span)
    for desc in operator.outputs:
        _check_size(context, desc, span)
    names = [*result_names[: len(operator.outputs)]]
    while len(names) < len(operator.outputs):
        context.part_count += 1
        names.append(f"{context.statement}.{context.part_count}")
    for name in names:
        _check_name(context, name, span)
    with context.findings.locate_errors(span):  # about a state
        outputs = context.builder.apply(operator, [tensor.name for tensor in inputs], names, span)
    tensors = tuple(TensorValue(name, desc) for name, desc in zip(outputs, operator.outputs, strict=True))
    return tensors[0] if len(tensors) == 1 else MultipleResults(tensors, first_stands_for_all=True)


def _convert_argument(context: LoweringContext, value: Value) -> Argument:
    """An argument in the form that operators take: tensors by their types, element types as `--dtype` has them."""
    if isinstance(value, TensorValue):
        return value.desc
    return resolve_dtype(context, value) if isinstance(value, str) else value


def _check_size(context: LoweringContext, desc: TensorDesc, span: SourceSpan) -> None:
    if desc.rank > limits.RANK:
        message = f"this tensor has {desc.rank:,} dimensions; at most {limits.RANK} are allowed"
        raise context.findings.fail(message, span)
    if math.prod(desc.shape) * desc.dtype.itemsize >= limits.INTEGER_BOUND:
        raise context.findings.fail(f"this tensor is too large: {desc} has 2**63 bytes or more", span)


def _check_name(context: LoweringContext, name: str, span: SourceSpan) -> None:
    if len(name) > limits.FULL_NAME_CHARACTERS:
        message = (
            f"with the names of the blocks around it, this has a name of {len(name):,} characters; "
            f"at most {limits.FULL_NAME_CHARACTERS:,} are allowed"
        )
        raise context.findings.fail(message, span)
