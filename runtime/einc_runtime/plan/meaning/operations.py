"""Proves of every operation of a plan that its kernel, blocks, types and aggregations follow from what it is, when the
plan is read.

Work is linear in the number of functions. What equal operations have in common, as the layers of a model do, is derived
once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module

import msgspec

from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.terms import Application, Interval, OperatorMeaning, TensorForm, block_of
from einc_runtime.plan.reproducible import ATTRIBUTE, ORDERLESS, require_order
from einc_runtime.plan.scalar_functions import STORED_ELEMENT_TYPES
from einc_runtime.plan.schema import Attribute, Block, Bundle, Operation, Tensor
from einc_runtime.text import did_you_mean, escape_text

_FAMILIES_BY_FILE = {
    "attention": ("attention",),
    "custom": ("custom",),
    "equations": ("equation",),
    "index": ("index",),
    "moves": ("append", "reshape"),
    "quantized": ("dequantize", "quantized_experts", "quantized_product", "rounded_product"),
    "recurrence": ("recurrence",),
    "rows": ("rope", "rows", "topk"),
}
"""The families that each file of this folder describes, by functions of their names."""


def _describe(application: Application, file: str, family: str) -> OperatorMeaning:
    """What a family is. Its file is loaded when the family is first used: a plan has few of them."""
    describe = getattr(import_module(f"einc_runtime.plan.meaning.{file}"), family)
    meaning: OperatorMeaning = describe(application)
    return meaning


FAMILIES: Mapping[str, Callable[[Application], OperatorMeaning]] = {
    family: partial(_describe, file=file, family=family)
    for file, families in _FAMILIES_BY_FILE.items()
    for family in families
}

QUANTIZED_FAMILIES = frozenset(_FAMILIES_BY_FILE["quantized"])
"""Families that read the values of quantized weights."""

FunctionBlocks = tuple[tuple[Block, ...], tuple[Block, ...]]
"""What a function reads of each input, and writes of each output."""

_encode = msgspec.msgpack.Encoder(order="sorted").encode


Derived = tuple[str, Operation, tuple[TensorForm, ...], OperatorMeaning, bytes]
"""Where an operation stands, itself, its inputs, what it means, and what equal ones have in common."""


def require_labels(bundle: Bundle) -> list[Derived]:
    """What all operations mean. Raises PlanFault, naming the part, where an operation's kernel, its attributes, the
    types of its results, its indices or its aggregations are not what its family says."""
    derived = list(_derive_all(bundle))
    for where, operation, _, meaning, _ in derived:
        _require_labels(operation, [_form_of(bundle.tensors[t]) for t in operation.outputs], meaning, where)
        if ATTRIBUTE in meaning.attributes:
            require_order(meaning.kernel, f"{where}.kernel")
    return derived


def require_blocks(derived: Sequence[Derived]) -> None:
    """The same for the blocks of functions, as many as the intervals of indices ask for."""
    blocks: dict[bytes, list[FunctionBlocks]] = {}
    for where, operation, inputs, meaning, key in derived:
        if meaning.require_functions is not None:
            try:
                meaning.require_functions(list(_cuts_of(operation)) * operation.replicas, operation.functions)
            except PlanFault as fault:
                raise PlanFault(fault.message, where=f"{where}.{fault.where} ('{operation.name}')") from None
            continue
        key = _encode([key, [index.intervals for index in operation.indices]])
        if key not in blocks:
            blocks[key] = _derive_blocks(meaning, inputs, list(_cuts_of(operation)))
        _require_blocks(operation, blocks[key], where)


def _derive_all(bundle: Bundle) -> Iterator[Derived]:
    meanings: dict[bytes, OperatorMeaning] = {}
    for i, operation in enumerate(bundle.operations):
        inputs = tuple(_form_of(bundle.tensors[position]) for position in operation.inputs)
        key = _encode([operation.family, operation.attributes, [[t.dims, t.shape, t.dtype] for t in inputs]])
        if key not in meanings:
            meanings[key] = _derive(operation, inputs, f"operations[{i}]")
        meaning = _restrict(meanings[key], operation) if bundle.reproducible else meanings[key]
        yield f"operations[{i}]", operation, inputs, meaning, key


def _form_of(tensor: Tensor) -> TensorForm:
    return TensorForm(tensor.dims, tensor.shape, tensor.dtype)


def _derive(operation: Operation, inputs: tuple[TensorForm, ...], where: str) -> OperatorMeaning:
    make = FAMILIES.get(operation.family)
    if make is None:
        message = f"there is no operator family '{escape_text(operation.family, 40)}'"
        hint = did_you_mean(operation.family, tuple(FAMILIES)) or "compile the model with this version of einc"
        raise PlanFault(message, where=f"{where}.family", hint=hint)
    applied = Application(operation.family, inputs, operation.attributes)
    try:
        plain = all(tensor.dtype in STORED_ELEMENT_TYPES for tensor in inputs)
        applied.require(plain or operation.family in QUANTIZED_FAMILIES, f"of {', '.join(map(str, inputs))}")
        return make(applied)
    except PlanFault as fault:  # its message may have parts of attributes, which can be long
        raise PlanFault(escape_text(fault.message, 400), where=f"{where} ('{operation.name}')") from None


def _restrict(meaning: OperatorMeaning, operation: Operation) -> OperatorMeaning:
    """What a reproducible plan says of an operation: its kernel has an attribute more, and indices whose cuts make
    partial outputs may be whole."""
    outputs = list(zip(meaning.aggregations, meaning.outputs, strict=False))
    indices = list(meaning.indices)
    for position, (derived, stated) in enumerate(zip(meaning.indices, operation.indices, strict=False)):
        lacking = any(name not in ORDERLESS and all(axis.index != position for axis in axes) for name, axes in outputs)
        if (lacking or position in meaning.partial) and stated.cuts == ():
            indices[position] = replace(derived, cuts=())
    return replace(meaning, attributes={**meaning.attributes, ATTRIBUTE: True}, indices=tuple(indices))


def _require_labels(operation: Operation, outputs: Sequence[TensorForm], meaning: OperatorMeaning, where: str) -> None:
    """The kernel, its attributes, the types of outputs, the indices and the aggregations are those of the meaning."""
    require = partial(_require_equal, family=operation.family)
    require(operation.kernel, meaning.kernel, f"{where}.kernel")
    _require_attributes(operation, meaning.attributes, f"{where}.kernel_attributes")
    require(list(map(str, outputs)), list(map(str, meaning.results)), f"{where}.outputs")
    indices = [(index.name, index.extent, index.cuts) for index in operation.indices]
    require(indices, [(index.name, index.extent, index.cuts) for index in meaning.indices], f"{where}.indices")
    require(operation.aggregations, meaning.aggregations, f"{where}.aggregations")
    require(operation.joint_aggregations, meaning.joint_aggregations, f"{where}.joint_aggregations")


def _require_equal(stated: object, expected: object, where: str, family: str) -> None:
    if stated != expected:
        message = (
            f"{escape_text(str(stated), 100)}, where {family} with its attributes has {escape_text(str(expected), 100)}"
        )
        raise PlanFault(message, where=where)


def _require_attributes(operation: Operation, expected: Mapping[str, Attribute], where: str) -> None:
    """Equal values of other types, such as 1 and true, are different."""
    for name in sorted({*operation.kernel_attributes, *expected}):
        stated, meant = operation.kernel_attributes.get(name), expected.get(name)
        if _encode(stated) != _encode(meant):
            values = ("nothing" if value is None else escape_text(repr(value), 60) for value in (stated, meant))
            message = f"{next(values)}, where {operation.family} with its attributes has {next(values)}"
            raise PlanFault(message, where=f"{where}['{name}']")


def _cuts_of(operation: Operation) -> itertools.product[tuple[Interval, ...]]:
    """The intervals of each function: the last index runs fastest."""
    return itertools.product(*(index.intervals for index in operation.indices))


def _derive_blocks(
    meaning: OperatorMeaning, inputs: Sequence[TensorForm], cuts: Sequence[tuple[Interval, ...]]
) -> list[FunctionBlocks]:
    sides = [
        [(axes, tensor.shape) for axes, tensor in zip(side, tensors, strict=True)]
        for side, tensors in ((meaning.inputs, inputs), (meaning.outputs, meaning.results))
    ]
    return [
        (
            tuple([block_of(axes, shape, chosen) for axes, shape in sides[0]]),
            tuple([block_of(axes, shape, chosen) for axes, shape in sides[1]]),
        )
        for chosen in cuts
    ]


def _require_blocks(operation: Operation, expected: Sequence[FunctionBlocks], where: str) -> None:
    for f, function in enumerate(operation.functions):
        inputs, outputs = expected[f % len(expected)]
        for field, stated, meant in (("inputs", function.inputs, inputs), ("outputs", function.outputs, outputs)):
            if stated != meant:
                k = next(k for k in range(len(stated)) if stated[k] != meant[k])
                message = f"{stated[k]}, where its intervals and {operation.family} give {meant[k]}"
                raise PlanFault(message, where=f"{where}.functions[{f}].{field}[{k}] ('{operation.name}')")
