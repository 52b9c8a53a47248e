"""From the graph of an ONNX model to a model text: node by node, with functions in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einc.errors import Diagnostic, ModelError
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.projections import order_products
from einc.importers.arrays.unmerging import keep_apart
from einc.importers.arrays.values import Array, Elements, UnsupportedError
from einc.importers.lifting import lift
from einc.importers.onnx.files import OnnxFile, read_tensor
from einc.importers.onnx.functions import STANDARD, bind_attributes, find_definition
from einc.importers.onnx.nodes import OnnxNode, read_element_type
from einc.importers.onnx.registry import ONNX_OPERATORS
from einc.importers.onnx.scans import scan
from einc_runtime.text import did_you_mean, escape_text

MAX_NODES = 100_000
"""Nodes of a model, with those of the functions that it calls."""
MAX_CALL_DEPTH = 30
"""Functions that call each other."""
DEFAULT_EXTENT = 8
"""What a dimension without a number is, until a user says something else; a batch is 1."""
REFUSED = {
    "Loop": "control flow", "SequenceMap": "control flow",
    "StringNormalizer": "strings", "TfIdfVectorizer": "strings", "RegexFullMatch": "strings", "StringConcat": "strings",
    "StringSplit": "strings", "LabelEncoder": "strings", "SequenceConstruct": "sequences", "SequenceEmpty": "sequences",
    "SequenceAt": "sequences", "SequenceInsert": "sequences", "SequenceErase": "sequences",
    "SequenceLength": "sequences", "SplitToSequence": "sequences", "ConcatFromSequence": "sequences",
    "Optional": "optional values", "OptionalGetElement": "optional values", "OptionalHasElement": "optional values",
    "RandomNormal": "random numbers", "RandomNormalLike": "random numbers", "RandomUniform": "random numbers",
    "RandomUniformLike": "random numbers", "Multinomial": "random numbers", "Bernoulli": "random numbers",
    "NonZero": "shapes that depend on data", "Unique": "shapes that depend on data",
    "NonMaxSuppression": "shapes that depend on data", "ImageDecoder": "images in files",
}  # fmt: skip
"""Operators that the language has nothing for, with what they need."""


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A text, the arrays to be stored beside it, and the names that inputs and outputs have in the text."""

    text: str
    weights: Mapping[str, Elements]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """What a user says about a model: extents of named dimensions, and elements of inputs that are known."""

    dimensions: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Elements] = field(default_factory=dict)


def import_graph(file: OnnxFile, name: str, request: GraphRequest | None = None) -> ImportedGraph:
    """Raises ModelError for what is wrong, or not supported."""
    return _GraphImport(file, name, request or GraphRequest()).run()


class _GraphImport:
    """One import: the program that grows, and the arrays that the names of the graph stand for."""

    def __init__(self, file: OnnxFile, name: str, request: GraphRequest) -> None:
        self.file = file
        self.request = request
        self.program = ArrayProgram(name)
        self.program.lift = lift
        self.dimensions: dict[str, Extent] = {}
        self.origins: dict[int, tuple[str, ...]] = {}
        self.opsets = {entry.domain: int(entry.version) for entry in file.model.opset_import}
        self.functions = {(entry.domain, entry.name): entry for entry in file.model.functions}
        self.named: set[str] = set()
        self.nodes = 0

    def run(self) -> ImportedGraph:
        graph = self.file.model.graph
        if graph.sparse_initializer:
            raise self._fail("sparse tensors are not supported")
        scope: dict[str, Array] = {}
        for tensor in graph.initializer:
            scope[tensor.name] = self._guard(lambda t=tensor: self._read_initializer(t))
        inputs = {}
        for info in graph.input:
            if info.name in scope:
                continue
            if info.name in self.request.values:
                type_ = self._guard(lambda i=info: read_element_type(i.type.tensor_type.elem_type))
                scope[info.name] = self.program.constant(np.asarray(self.request.values[info.name]), type_, info.name)
                continue
            array = self._guard(lambda i=info: self._declare_input(i))
            scope[info.name] = array
            if array.known is not None:
                continue
            self.origins[id(array)] = (info.name,)
            inputs[info.name] = array.name
        unknown = sorted(set(self.request.values) - {info.name for info in graph.input})
        if unknown:
            names = [info.name for info in graph.input]
            raise self._fail(f"there is no input '{escape_text(unknown[0])}'", did_you_mean(unknown[0], names))
        self._walk(graph.node, scope, self.opsets, 0)
        outputs = {}
        for info in graph.output:
            if info.name not in scope:
                raise self._fail(f"output '{escape_text(info.name)}' is computed by no node")
            outputs[info.name] = self._guard(lambda i=info: self.program.output(i.name, scope[i.name]))
        unused = sorted(set(self.request.dimensions) - set(self.dimensions))
        if unused:
            hint = did_you_mean(unused[0], list(self.dimensions))
            raise self._fail(f"no input has a dimension '{escape_text(unused[0])}'", hint)
        program = self.program
        keep_apart(program)
        order_products(program)
        return ImportedGraph(program.text(), program.weights, inputs, outputs, tuple(program.notes))

    def _fail(self, message: str, hint: str | None = None) -> ModelError:
        return ModelError([Diagnostic(f"{self.file.where}: {message}", hint=hint)])

    def _guard(self, make: Any) -> Any:
        """What `make` returns; its errors get the file."""
        try:
            return make()
        except UnsupportedError as error:
            raise self._fail(error.message, error.hint) from None

    def _read_initializer(self, tensor: Any) -> Array:
        elements = read_tensor(tensor, self.file.folder)
        return self.program.constant(elements, read_element_type(tensor.data_type), tensor.name)

    def _declare_input(self, info: Any) -> Array:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(
                f"input '{escape_text(info.name)}' is no tensor but a {kind or 'value without type'}"
            )
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedError(f"input '{escape_text(info.name)}' has no shape")
        shape = [self._read_dimension(info.name, axis, dim) for axis, dim in enumerate(tensor.shape.dim)]
        type_ = read_element_type(tensor.elem_type)
        if any(extent.value == 0 for extent in shape):  # a run gives nothing
            return self.program.constant(np.zeros([extent.value for extent in shape], type_.numpy), type_, info.name)
        return self.program.input(info.name, shape, type_)

    def _read_dimension(self, name: str, axis: int, dim: Any) -> Extent:
        if dim.HasField("dim_value") and dim.dim_value != -1:  # -1 is an extent that is not known
            if dim.dim_value < -1:
                raise UnsupportedError(f"dimension {axis} of input '{escape_text(name)}' is {dim.dim_value}")
            return Extent.number(dim.dim_value)
        key = dim.dim_param or f"{name}_{axis}"
        if key not in self.dimensions:
            if key in self.request.dimensions:
                self.dimensions[key] = Extent.number(self.request.dimensions[key])
            else:
                default = 1 if "batch" in key.lower() or (axis == 0 and not dim.dim_param) else DEFAULT_EXTENT
                self.dimensions[key] = self.program.param(key, default)
        return self.dimensions[key]

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _walk(self, nodes: Sequence[Any], scope: dict[str, Array], opsets: Mapping[str, int], depth: int) -> None:
        for node in nodes:
            self.nodes += 1
            if self.nodes > MAX_NODES:
                raise self._fail(f"more than {MAX_NODES:,} nodes")
            label = escape_text(node.name or (node.output[0] if node.output else ""))
            operator = escape_text(f"{node.domain}.{node.op_type}" if node.domain not in STANDARD else node.op_type)
            try:
                results = self._convert(node, scope, opsets, depth)
            except UnsupportedError as error:
                raise _located(error, f"{self.file.where}: node '{label}' ({operator}): ") from None
            except (ArithmeticError, AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
                problem = f"its inputs and attributes do not fit together: {escape_text(str(error))[:200]}"
                raise self._fail(f"node '{label}' ({operator}): {problem}") from error
            origins = tuple(dict.fromkeys(
                origin for name in node.input if name in scope for origin in self.origins.get(id(scope[name]), ())
            ))  # fmt: skip
            for name, array in zip(node.output, results, strict=False):
                if name and array is not None:
                    scope[name] = array
                    if id(array) not in self.origins and array.name not in self.named:
                        self.program.prefer_name(array, name)
                        self.named.add(array.name)
                    self.origins.setdefault(id(array), origins)

    def _convert(
        self, node: Any, scope: dict[str, Array], opsets: Mapping[str, int], depth: int
    ) -> Sequence[Array | None]:
        if depth > MAX_CALL_DEPTH:
            raise UnsupportedError(f"functions call each other more than {MAX_CALL_DEPTH} deep")
        missing = [name for name in node.input if name and name not in scope]
        if missing:
            raise UnsupportedError(f"input '{escape_text(missing[0])}' is computed by no earlier node")
        arrays = tuple(scope[name] if name else None for name in node.input)
        function = self.functions.get((node.domain, node.op_type))
        if function is not None:
            return self._call(function, node, arrays, depth)
        if node.domain not in STANDARD and node.op_type not in ONNX_OPERATORS:
            return self._expand(node, arrays, opsets, depth)
        if node.op_type in ("If", "Scan") and node.domain in STANDARD:
            return self._unfold(node, arrays, scope, opsets, depth)
        if node.op_type in REFUSED:
            raise UnsupportedError(f"it needs {REFUSED[node.op_type]}, which einc does not have")
        if node.op_type == "Constant":
            return [self._read_constant(node)]
        if node.op_type not in ONNX_OPERATORS:
            return self._expand(node, arrays, opsets, depth)
        opset = self._find_version(node, opsets)
        attributes = {attribute.name: self._read_attribute(attribute) for attribute in node.attribute}
        origins = tuple(self.origins.get(id(array), ()) for array in arrays)
        results = ONNX_OPERATORS[node.op_type](
            OnnxNode(self.program, node.op_type, opset, arrays, attributes, tuple(node.output), origins)
        )
        return [results] if isinstance(results, Array) else results

    def _find_version(self, node: Any, opsets: Mapping[str, int]) -> int:
        """The version of the operators that a node means."""
        names = (node.domain, *STANDARD) if node.domain in STANDARD else (node.domain,)
        return next((opsets[name] for name in names if name in opsets), 1)

    def _read_attribute(self, attribute: Any) -> Any:
        from onnx import AttributeProto

        kinds = AttributeProto
        if attribute.type == kinds.FLOAT:
            return attribute.f
        if attribute.type == kinds.INT:
            return attribute.i
        if attribute.type == kinds.STRING:
            return attribute.s
        if attribute.type == kinds.TENSOR:
            return read_tensor(attribute.t, self.file.folder)
        if attribute.type == kinds.FLOATS:
            return list(attribute.floats)
        if attribute.type == kinds.INTS:
            return list(attribute.ints)
        if attribute.type == kinds.STRINGS:
            return list(attribute.strings)
        raise UnsupportedError(f"attribute '{escape_text(attribute.name)}' of a kind that is not supported")

    def _read_constant(self, node: Any) -> Array:
        (attribute,) = node.attribute
        if attribute.name in ("value_string", "value_strings", "sparse_value"):
            raise UnsupportedError(f"constants of the kind '{attribute.name}' are not supported")
        value = self._read_attribute(attribute)
        if attribute.name == "value":
            return self.program.constant(value, read_element_type(attribute.t.data_type), node.output[0])
        type_ = ElementType.F32 if "float" in attribute.name else ElementType.I64
        return self.program.constant(np.asarray(value, type_.numpy), type_, node.output[0])

    # -- graphs in nodes -------------------------------------------------------------------------------------------

    def _unfold(
        self, node: Any, arrays: Sequence[Array | None], scope: dict[str, Array], opsets: Mapping[str, int], depth: int
    ) -> Sequence[Array | None]:
        """Control flow that is known now: the branch that is taken, or each step of a scan."""
        graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
        numbers = {part.name: self._read_attribute(part) for part in node.attribute if part.name not in graphs}

        def run(graph: Any, inputs: Sequence[Array]) -> list[Array]:
            inner = dict(scope)
            for tensor in graph.initializer:
                inner[tensor.name] = self._read_initializer(tensor)
            inner |= {info.name: array for info, array in zip(graph.input, inputs, strict=True)}
            self._walk(graph.node, inner, opsets, depth + 1)
            return [inner[info.name] for info in graph.output]

        if node.op_type == "If":
            condition = arrays[0].scalar if arrays[0] is not None else None
            if condition is None:
                raise UnsupportedError("control flow that depends on data is not supported")
            return run(graphs["then_branch" if condition else "else_branch"], [])
        if self._find_version(node, opsets) < 9:
            raise UnsupportedError("scans of opset 8, over batches, are not supported", "convert the model to opset 9")
        return scan(self.program, run, graphs["body"], [array for array in arrays if array is not None], numbers)

    # -- functions -------------------------------------------------------------------------------------------------

    def _expand(
        self, node: Any, arrays: Sequence[Array | None], opsets: Mapping[str, int], depth: int
    ) -> Sequence[Array | None]:
        """A node whose operator ONNX defines by others."""
        definition = find_definition(node, arrays, opsets)
        if definition is None:
            known = did_you_mean(node.op_type, list(ONNX_OPERATORS))
            how = "docs/adding-a-graph-importer.md says how an operator is added"
            raise UnsupportedError("this operator is not supported", known or how)
        function, defaults = definition
        return self._call(function, node, arrays, depth, defaults)

    def _call(
        self, function: Any, node: Any, arrays: Sequence[Array | None], depth: int, defaults: Sequence[Any] = ()
    ) -> Sequence[Array | None]:
        """A function of the model or of ONNX: its nodes, with the attributes of the call."""
        inner = {name: array for name, array in zip(function.input, arrays, strict=False) if array is not None}
        opsets = {**self.opsets, **{entry.domain: int(entry.version) for entry in function.opset_import}}
        attributes = {attribute.name: attribute for attribute in (*defaults, *function.attribute_proto)}
        attributes |= {attribute.name: attribute for attribute in node.attribute}
        nodes = [bind_attributes(part, attributes) for part in function.node]
        self._walk(nodes, inner, opsets, depth + 1)
        return [inner.get(name) for name in function.output]


def _located(error: UnsupportedError, start: str) -> UnsupportedError:
    """The error with what is before its message; errors of nodes in functions keep the innermost node."""
    if " (" in error.message and error.message.startswith(start.split(": node")[0]):
        return error
    error.message = start + error.message
    error.diagnostics = (Diagnostic(error.message, hint=error.hint),)
    error.args = (error.message,)
    return error
