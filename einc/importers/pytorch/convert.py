"""Walks a graph and adds what its nodes compute to a program of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from einc.errors import Diagnostic, ModelError
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.projections import order_products
from einc.importers.arrays.single_batches import drop_single_batches
from einc.importers.arrays.unmerging import keep_apart
from einc.importers.arrays.values import Array, UnsupportedError, show_shape
from einc.importers.lifting import lift
from einc.importers.pytorch.archive import SCALAR_TYPES, Elements, ExportArchive
from einc.importers.pytorch.aten import find_operator
from einc.importers.pytorch.aten.complex_numbers import ComplexArray, call_complex, find_parts
from einc.importers.pytorch.aten.table import Call, refuse_extent
from einc.importers.pytorch.exported import (
    PLAIN_KINDS,
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedTensor,
    Placeholder,
    Size,
    read_graph,
    read_nested_graph,
    read_plain,
)
from einc.importers.pytorch.in_place import SharedElements, is_in_place, name_without_writing, read_operator
from einc.importers.pytorch.node_names import find_line, find_name
from einc.importers.pytorch.stored_weights import ExportedWeights
from einc.importers.pytorch.symbols import find_symbol, read_extent
from einc_runtime.text import escape_text

MAX_KNOWN = 2**16
"""Elements of a buffer whose values einc looks at, so that what is computed from it is computed once."""
_HOW_TO_ADD = (
    "compute the same by operators that einc has (docs/importing.md), or add this one (docs/adding-a-graph-importer.md)"
)
_OF_DATA = "u"
"""What torch calls symbols whose values follow from elements of tensors begins so."""
_EXTENT_OF_A_PARAM = 8  # what a dynamic dimension is by default, if the file says nothing


_TRANSPARENT = frozenset(
    f"torch.ops.higher_order.{name}" for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast")
)


@dataclass(frozen=True, slots=True)
class ConvertedModule:
    """A model text, the weights that belong beside it by their names in the archive, and those that are new.

    `dims` are the dynamic dimensions, each with its largest extent, if it has one.
    """

    text: str
    stored: tuple[str, ...]
    weights: Mapping[str, Elements]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    dims: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class TextNames:
    """Names that a text is to have: `weights` lie in files of their own, each under this name as `storage` says, and
    not in the archive; `outputs` are called so, by number where that is ""; dimensions of these `extents` have names.
    `dims` are what dynamic dimensions are called, by input and axis, with their extents in the text."""

    weights: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    extents: Mapping[int, str] = field(default_factory=dict)
    dims: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    storage: ExportedWeights = field(default_factory=ExportedWeights)


def convert_archive(archive: ExportArchive, name: str, names: TextNames | None = None) -> ConvertedModule:
    """The model of an archive. Raises ReadError for a broken one, and ModelError for what einc cannot say."""
    graph = read_graph(archive.document, archive.path)
    return _Conversion(archive, graph, name, names or TextNames()).run()


class _Conversion:
    def __init__(self, archive: ExportArchive, graph: ExportedGraph, name: str, names: TextNames) -> None:
        self._archive = archive
        self._graph = graph
        self._names = names
        self._program = ArrayProgram(name, names.extents, names.storage.format_storage)
        self._program.lift = lift
        self._symbols: dict[str, Extent] = {}
        self._values: dict[str, Any] = {}
        self._weights: dict[str, Array] = {}
        self._shared = SharedElements(_find_last_reads(graph))

    def run(self) -> ConvertedModule:
        inputs = []
        for placeholder in self._graph.placeholders:
            if placeholder.kind == "ignored":
                continue
            array = self._read_placeholder(placeholder)
            self._values[placeholder.name] = array
            inputs += [array.name] if placeholder.kind == "input" and isinstance(array, Array) else []
        self._convert_nodes(self._graph.nodes, self._graph.outputs)
        outputs = self._write_outputs()
        program = self._program
        drop_single_batches(program)
        keep_apart(program)
        order_products(program)
        text = program.text()
        return ConvertedModule(
            text, tuple(program.stored), program.weights, tuple(inputs), tuple(outputs), tuple(program.notes),
            program.largest,
        )  # fmt: skip

    # ---- what the graph starts from ----

    def _read_placeholder(self, placeholder: Placeholder) -> Array | ComplexArray:
        value = self._graph.tensors.get(placeholder.name)
        if value is None:
            raise self._problem(f"the input {placeholder.name} has no type")
        type_ = self._read_type(value, placeholder.name)
        if value.is_complex:
            return self._read_complex(placeholder, type_)
        if placeholder.kind == "input":
            shape = self._read_shape(value, placeholder.name)
            return self._program.input(placeholder.name, shape, type_)
        if (in_files := self._names.weights.get(placeholder.stored)) is not None:
            return self._declare_weight(in_files, self._read_shape(value, placeholder.name), type_)
        tensor = self._archive.tensors.get(placeholder.stored)
        if tensor is None:
            raise self._problem(f"there are no elements of the weight {placeholder.stored}")
        if tensor.type is not type_ or list(tensor.shape) != [size.as_int for size in value.sizes]:
            raise self._problem(f"the weight {placeholder.stored} has another type or shape than the graph says")
        known = placeholder.kind == "constant" or (placeholder.kind == "buffer" and not type_.is_float)
        if known and tensor.size <= MAX_KNOWN:
            elements = self._archive.read_tensor(placeholder.stored)
            return self._program.constant(elements, type_, placeholder.stored)
        return self._declare_weight(placeholder.stored, tuple(map(make_extent, tensor.shape)), type_)

    def _read_complex(self, placeholder: Placeholder, type_: ElementType) -> ComplexArray:
        """A buffer of complex numbers, as of rotary positions: both parts are constants."""
        if placeholder.kind not in ("buffer", "constant") or placeholder.stored not in self._archive.tensors:
            kind = "input" if placeholder.kind == "input" else "parameter"
            hint = "give its real and its imaginary part, as torch.view_as_real does"
            raise self._problem(f"the {kind} {placeholder.stored or placeholder.name} has complex numbers", hint)
        elements = self._archive.read_tensor(placeholder.stored)
        parts = zip((elements[..., 0], elements[..., 1]), ("real", "imag"), strict=True)
        return ComplexArray(
            *(self._program.constant(part, type_, f"{placeholder.stored}_{name}") for part, name in parts)
        )

    def _declare_weight(self, stored: str, shape: tuple[Extent, ...], type_: ElementType) -> Array:
        """The weight of this name in files."""
        if stored not in self._weights:
            self._weights[stored] = self._names.storage.declare(self._program, stored, shape, type_)
        return self._weights[stored]

    def _read_type(self, value: ExportedTensor, name: str) -> ElementType:
        if value.type is None:
            raise self._problem(f"{name} has an element type (number {value.dtype}) that einc does not have")
        return value.type

    def _read_shape(self, value: ExportedTensor, name: str) -> tuple[Extent, ...]:
        return tuple(self._read_size(size, f"{name}_dim{axis}") for axis, size in enumerate(value.sizes))

    def _read_size(self, size: Size, hint: str) -> Extent:
        if size.as_int is not None:
            return make_extent(size.as_int)
        if size.as_expr is None:
            raise self._problem(f"the extent of {hint} is missing")
        expression = size.as_expr.expr_str.strip()
        symbol = find_symbol(expression)
        if symbol is not None and symbol.startswith(_OF_DATA):
            raise refuse_extent(f"the extent {symbol}")
        if symbol is not None and symbol not in self._symbols:
            value = (size.as_expr.hint or {}).get("as_int")
            lowest = max(2, self._graph.lowest.get(symbol, 2))
            likely = value if isinstance(value, int) and value >= 1 else max(_EXTENT_OF_A_PARAM, lowest)
            name, default = self._names.dims.get(hint, (hint, likely))
            self._symbols[symbol] = self._program.param(name, likely, default, self._graph.highest.get(symbol))
        return read_extent(expression, self._symbols)

    # ---- nodes ----

    def _convert_nodes(self, nodes: Sequence[ExportedNode], results: Sequence[Argument]) -> None:
        """Converts what the results need; what is left out may assert something that the export knew."""
        needed = _find_needed(nodes, results)
        for position, node in enumerate(nodes):
            if nodes is self._graph.nodes:
                self._shared.position = position
            if position in needed:
                self._convert(node)

    def _convert(self, node: ExportedNode) -> None:
        if node.target in _TRANSPARENT:
            self._convert_nested(node)
            return
        target = name_without_writing(node.target) if is_in_place(node.target) else node.target
        operator = find_operator(target)
        try:
            inputs = {argument.name: self._read_argument(argument.arg) for argument in node.inputs}
            if any(find_parts(value) for value in inputs.values()):
                name, function = read_operator(target), operator.call if operator is not None else None
                results = self._run(node, lambda call, arguments: call_complex(name, call, function, arguments), inputs)
            elif operator is None:
                raise self._refuse(node, "einc has no such operator", _HOW_TO_ADD)
            else:
                results = self._run(node, operator.call, inputs)
        except UnsupportedError as error:
            raise self._refuse(node, error.message, error.hint) from None
        self._bind(node, results)
        read = _list_names([argument.arg for argument in node.inputs])
        self._shared.add(node.target, read, _list_names(node.outputs))
        if target != node.target and read:
            views = self._shared.list_views(read[0])
            if views:
                hint = "call run_decompositions() on the exported program before torch.export.save"
                raise self._refuse(node, f"it writes over a tensor that has views ({', '.join(views[:3])})", hint)
            self._values[read[0]] = self._values[_list_names(node.outputs)[0]]

    def _convert_nested(self, node: ExportedNode) -> None:
        """A part of the module that runs without gradients, or with other settings that change nothing here."""
        record = next((a.arg["as_graph"] for a in node.inputs if "as_graph" in a.arg), None)
        if not isinstance(record, dict):
            raise self._refuse(node, "it has no graph")
        try:
            graph = read_nested_graph(record.get("graph"), self._archive.path)
            given_tensors = [a.arg for a in node.inputs if {"as_tensor", "as_sym_int"} & set(a.arg)]
            operands = [self._read_argument(argument) for argument in given_tensors]
        except UnsupportedError as error:
            raise self._refuse(node, error.message, error.hint) from None
        names = _list_names(graph.inputs)
        if len(names) != len(operands):
            raise self._refuse(node, f"its graph takes {len(names)} tensors, it gets {len(operands)}")
        before, values = self._graph, dict(self._values)
        self._values.update(zip(names, operands, strict=True))
        self._graph = replace(
            before, tensors={**before.tensors, **graph.tensor_values}, sizes={**before.sizes, **graph.sym_int_values}
        )
        self._convert_nodes(graph.nodes, graph.outputs)
        results = [self._values.get(name) for name in _list_names(graph.outputs)]
        self._graph, self._values = before, values
        self._bind(node, results)

    def _run(self, node: ExportedNode, call: Any, inputs: dict[str, Any]) -> Any:
        results = [self._graph.tensors[name] for name in _list_tensors(node.outputs) if name in self._graph.tensors]
        types = tuple(self._read_type(value, node.target) for value in results)
        return call(Call(self._program, types, find_name(node)), inputs)

    def _bind(self, node: ExportedNode, results: Any) -> None:
        names = _list_names(node.outputs)
        values = list(results) if isinstance(results, tuple | list) else [results]
        if len(values) < len(names):
            raise self._refuse(node, f"it has {len(names)} results, einc computes {len(values)}")
        for name, value in zip(names, values, strict=False):
            self._check(node, name, value)
            self._values[name] = value

    def _check(self, node: ExportedNode, name: str, value: Any) -> None:
        """What a node computes must have the type and the extents that the graph says."""
        expected = self._graph.tensors.get(name)
        if isinstance(value, ComplexArray) and expected is not None and expected.is_complex:
            value = value.real
        elif isinstance(value, ComplexArray) or (expected is not None and expected.is_complex):
            raise self._refuse(node, "its result is complex, or real, against what the graph says")
        if expected is None or not isinstance(value, Array):
            return
        sizes = [size.as_int for size in expected.sizes]
        shown = show_shape(value.shape)
        wrong = len(sizes) != value.rank or any(
            size is not None and size != extent.value for size, extent in zip(sizes, value.shape, strict=True)
        )
        if wrong or value.type is not expected.type:
            of = expected.type.value if expected.type else "unknown"
            raise self._refuse(node, f"its result is {value.type.value}{shown}, the graph says {of}{sizes}")

    def _read_argument(self, argument: Argument) -> Any:
        (tag, value), *_ = [*argument.items(), ("nothing", None)]
        match tag:
            case "as_none":
                return None
            case "as_tensor":
                return self._find(value)
            case "as_tensors":
                return [self._find(item) for item in value]
            case "as_optional_tensors":
                return [self._read_argument(item) for item in value]
            case "as_optional_tensor":
                return self._read_argument(value)
            case _ if tag in PLAIN_KINDS:
                return read_plain(tag, value)
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._read_symbol(value)
            case "as_sym_ints":
                return [self._read_symbol(item) for item in value]
            case "as_scalar_type":
                if value not in SCALAR_TYPES:
                    raise UnsupportedError(f"the element type with number {value}")
                return SCALAR_TYPES[value]
            case "as_memory_format" | "as_layout" | "as_device":
                return None
        raise UnsupportedError(f"an argument of kind {escape_text(tag, 40)}")

    def _read_symbol(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise UnsupportedError("a symbolic argument that is no object")
        for tag in ("as_int", "as_float", "as_bool"):
            if tag in value:
                return read_plain(tag, value[tag])
        name = value.get("as_name")
        if name in self._values:
            return self._values[name]
        size = self._graph.sizes.get(str(name))
        if size is None:
            raise UnsupportedError(f"a number {escape_text(str(name), 40)} that the graph does not have")
        return self._read_size(size, "extent")

    def _find(self, value: Any) -> Any:
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._values:
            raise UnsupportedError(f"a tensor {escape_text(str(name), 60)} that is not there")
        return self._values[name]

    def _write_outputs(self) -> list[str]:
        names = []
        for position, argument in enumerate(self._graph.outputs):
            tensors = _list_tensors([argument])
            for name in tensors:
                array = self._values.get(name)
                if not isinstance(array, Array):
                    raise self._problem(f"the output {name} is not computed")
                preferred = self._names.outputs[position] if self._names.outputs else ""
                names.append(self._program.output(preferred or f"output{position}", array))
        if not names:
            raise self._problem("the module returns no tensor")
        return names

    # ---- errors ----

    def _problem(self, message: str, hint: str | None = None) -> ModelError:
        return ModelError([Diagnostic(f"{self._archive.path}: {escape_text(message, 300)}", hint=hint)])

    def _refuse(self, node: ExportedNode, message: str, hint: str | None = None) -> ModelError:
        """An error at a node, with the line of the module that called it."""
        operator = escape_text(node.target.removeprefix("torch.ops."), 100)
        return ModelError([Diagnostic(f"{self._archive.path}: {operator}{find_line(node)}: {message}", hint=hint)])


def _find_last_reads(graph: ExportedGraph) -> dict[str, int]:
    """For each name that a node makes, the position of the last node that reads it; what is returned is read last."""
    last = {name: -1 for node in graph.nodes for name in _list_names(node.outputs)}
    for position, node in enumerate(graph.nodes):
        last |= dict.fromkeys(_list_names([argument.arg for argument in node.inputs]), position)
    return last | dict.fromkeys(_list_names(graph.outputs), len(graph.nodes))


def _find_needed(nodes: Sequence[ExportedNode], results: Sequence[Argument]) -> set[int]:
    """The positions of the nodes that results depend on; what writes over a tensor is always one of them."""
    names, needed = set(_list_names(results)), set()
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        if is_in_place(node.target) or not names.isdisjoint(_list_names(node.outputs)):
            needed.add(position)
            names.update(_list_names([argument.arg for argument in node.inputs]))
    return needed


def _list_names(arguments: Sequence[Argument]) -> list[str]:
    names = []
    for argument in arguments:
        for tag, value in argument.items():
            if tag in ("as_optional_tensors", "as_optional_tensor"):
                names += _list_names(value if isinstance(value, list) else [value])
            elif tag in ("as_tensor", "as_tensors"):
                items = value if isinstance(value, list) else [value]
                names += [str(item.get("name")) for item in items if isinstance(item, dict)]
            elif tag in ("as_sym_int", "as_sym_float", "as_sym_bool", "as_sym_ints"):
                items = value if isinstance(value, list) else [value]
                names += [str(item["as_name"]) for item in items if isinstance(item, dict) and "as_name" in item]
    return names


def _list_tensors(arguments: Sequence[Argument]) -> list[str]:
    return [
        name
        for argument in arguments
        if {"as_tensor", "as_tensors"} & set(argument)
        for name in _list_names([argument])
    ]
