"""The graph in an archive, checked: nodes, what they read and make, inputs, weights and outputs.

The names of records and fields are those of torch's own schema (torch/_export/serde/schema.py, version 8). Fields that
are not needed here are passed over, as those that a later version adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from einc.errors import ReadError
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.values import UnsupportedError
from einc.importers.pytorch.archive import COMPLEX_TYPES, MAX_DIMENSIONS, SCALAR_TYPES
from einc_runtime.strict_json import describe_json
from einc_runtime.text import escape_text

SCHEMA_MAJOR = 8
"""That of torch 2.7 to 2.13; another one may mean something else."""
MAX_NODES = 100_000
"""The language takes 20,000 operators; many nodes are views or constants."""

_UNBOUNDED = 2**62
"""Extents have no limit from here on: torch writes 2**63 - 2 or so."""

Name = Annotated[str, msgspec.Meta(max_length=1000)]
Argument = dict[str, Any]
"""A union: one field, whose name says what the value is (`as_tensor`, `as_ints`, ...)."""


_Number = float | str  # what JSON has no number for is a word, such as Infinity
PLAIN_KINDS: dict[str, Any] = {
    "as_int": int, "as_ints": list[int], "as_int_lists": list[list[int]], "as_bool": bool, "as_bools": list[bool],
    "as_string": str, "as_float": _Number, "as_floats": list[_Number],
}  # fmt: skip
"""Arguments that are numbers and words alone."""


def read_plain(tag: str, value: Any) -> Any:
    """The numbers or words of an argument. Raises UnsupportedError for what is not as its tag says."""
    try:
        plain = msgspec.convert(value, PLAIN_KINDS[tag])
        if tag == "as_floats":
            return [float(item) for item in plain]
        return float(plain) if tag == "as_float" else plain
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"an argument of kind {tag}: {escape_text(str(error), 100)}") from None


class _SizeExpression(msgspec.Struct):
    expr_str: str
    hint: dict[str, Any] | None = None


class Size(msgspec.Struct):
    """An extent: a number, or an expression of symbols."""

    as_int: int | None = None
    as_expr: _SizeExpression | None = None


class ExportedTensor(msgspec.Struct):
    """The type and the extents of a tensor of the graph."""

    dtype: int
    sizes: Annotated[list[Size], msgspec.Meta(max_length=MAX_DIMENSIONS)]

    @property
    def is_complex(self) -> bool:
        return self.dtype in COMPLEX_TYPES

    @property
    def type(self) -> ElementType | None:
        """The element type; that of both parts of complex numbers."""
        return SCALAR_TYPES.get(self.dtype) or COMPLEX_TYPES.get(self.dtype)


class NamedArgument(msgspec.Struct):
    """An argument of an operator, by its name in the operator's schema."""

    name: Name
    arg: Argument


class ExportedNode(msgspec.Struct):
    """A call of an operator."""

    target: Name
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, Any] = {}


class GraphRecord(msgspec.Struct):
    """A graph, or a part of one, as it lies in the file."""

    nodes: Annotated[list[ExportedNode], msgspec.Meta(max_length=MAX_NODES)]
    outputs: list[Argument]
    tensor_values: dict[Name, ExportedTensor]
    sym_int_values: dict[Name, Size] = {}
    inputs: list[Argument] = []


class _Signature(msgspec.Struct):
    input_specs: list[dict[str, dict[str, Any]]]
    output_specs: list[dict[str, dict[str, Any]]]


class _GraphModule(msgspec.Struct):
    graph: GraphRecord
    signature: _Signature
    module_call_graph: list[dict[str, Any]] = []


class _Range(msgspec.Struct):
    min_val: int | None = None
    max_val: int | None = None


class _SchemaVersion(msgspec.Struct):
    major: int
    minor: int = 0


class _Document(msgspec.Struct):
    graph_module: _GraphModule
    schema_version: _SchemaVersion
    range_constraints: dict[str, _Range] = {}


@dataclass(frozen=True, slots=True)
class Placeholder:
    """An input of the graph: `kind` is `input`, or `weight`, `buffer` or `constant`, which are stored as `stored`."""

    name: str
    kind: str
    stored: str = ""


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph: nodes in order, what it takes and returns, and the types of all its tensors.

    `lowest` has for each symbol the least extent that it may have, and `highest` the largest, where there is one.
    """

    placeholders: tuple[Placeholder, ...]
    nodes: tuple[ExportedNode, ...]
    outputs: tuple[Argument, ...]
    tensors: Mapping[str, ExportedTensor]
    sizes: Mapping[str, Size]
    lowest: Mapping[str, int]
    highest: Mapping[str, int]


def read_graph(document: object, where: str) -> ExportedGraph:
    """The graph of an archive's JSON. Raises ReadError with what is wrong with it."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, dict) and version.get("major") != SCHEMA_MAJOR:
        shown = describe_json(version.get("major"))
        hint = "save the program again with torch 2.9 or later"
        raise ReadError(f"its schema has version {shown}, expected {SCHEMA_MAJOR}", where=where, hint=hint)
    try:
        module = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise ReadError(f"its graph is not valid: {escape_text(str(error), 200)}", where=where) from None
    graph, signature = module.graph_module.graph, module.graph_module.signature
    for spec in signature.output_specs:
        kind = next(iter(spec), "")
        if kind != "user_output":
            hint = "einc takes modules whose forward pass changes neither buffers nor inputs; export it in eval mode"
            raise ReadError(f"the module has an output of kind {escape_text(kind, 40)}", where=where, hint=hint)
    return ExportedGraph(
        placeholders=tuple(_read_placeholder(spec, where) for spec in signature.input_specs),
        nodes=tuple(graph.nodes),
        outputs=tuple(graph.outputs),
        tensors=graph.tensor_values,
        sizes=graph.sym_int_values,
        lowest={symbol: bounds.min_val or 0 for symbol, bounds in module.range_constraints.items()},
        highest={
            symbol: bounds.max_val
            for symbol, bounds in module.range_constraints.items()
            if bounds.max_val is not None and bounds.max_val < _UNBOUNDED
        },
    )


def read_nested_graph(record: object, where: str) -> GraphRecord:
    """The graph of a part of a module. Raises ReadError."""
    try:
        return msgspec.convert(record, GraphRecord)
    except msgspec.ValidationError as error:
        raise ReadError(f"a graph in its graph is not valid: {escape_text(str(error), 200)}", where=where) from None


_STORED_KINDS = {
    "parameter": ("weight", "parameter_name"), "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
}  # fmt: skip


def _read_placeholder(spec: dict[str, dict[str, Any]], where: str) -> Placeholder:
    (kind, fields), *_ = [*spec.items(), ("nothing", {})]
    argument = fields.get("arg")
    if kind in _STORED_KINDS:
        role, field = _STORED_KINDS[kind]
        name = argument.get("name") if isinstance(argument, dict) else None
        stored = fields.get(field)
        if isinstance(name, str) and isinstance(stored, str):
            if role == "buffer" and fields.get("persistent") is False:
                role = "constant"
            return Placeholder(name, role, stored)
    elif kind == "user_input" and isinstance(argument, dict):
        (tag, value), *_ = [*argument.items(), ("nothing", None)]
        if tag == "as_tensor" and isinstance(value, dict) and isinstance(value.get("name"), str):
            return Placeholder(value["name"], "input")
        if tag in ("as_int", "as_float", "as_bool", "as_none", "as_string"):
            return Placeholder("", "ignored")
    elif kind == "constant_input":
        return Placeholder("", "ignored")
    raise ReadError(f"an input of kind {escape_text(kind, 40)} is not supported", where=where)
