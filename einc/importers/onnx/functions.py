"""Functions of ONNX models: those that define operators in ONNX's specification, and what their nodes look like in a
call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einc.importers.arrays.values import Array
from einc.importers.onnx.nodes import TYPE_NUMBERS

STANDARD = ("", "ai.onnx")
"""Names of the domain of ONNX's own operators."""


def bind_attributes(node: Any, attributes: Mapping[str, Any]) -> Any:
    """A node of a function with the attributes that the call gives."""
    from onnx import NodeProto

    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    bound = NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            bound.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes:
            copied = bound.attribute.add()
            copied.CopyFrom(attributes[attribute.ref_attr_name])
            copied.name = attribute.name
    return bound


def find_definition(node: Any, arrays: Sequence[Array | None], opsets: Mapping[str, int]) -> Any:
    """The function that defines an operator in ONNX's own specification, and the defaults of its attributes; None where
    there is none."""
    import onnx

    domain = "" if node.domain in STANDARD else node.domain
    version = opsets.get(node.domain, opsets.get("", 1))
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, max_inclusive_version=version, domain=domain)
        newest: Any = onnx.defs.get_schema(node.op_type, domain=domain)
    except onnx.defs.SchemaError:
        return None
    if newest.has_function and _describe_form(schema) == _describe_form(newest):  # only its types have changed
        schema, version = newest, max(version, *newest.function_opset_versions)
    text = None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        text = schema.get_function_with_opset_version(max(versions)) if versions else None
    if text is None and schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        types = [_describe(array) for array in arrays]
        if versions:
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), types
            )
    if text is None:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    defaults = [attribute.default_value for attribute in schema.attributes.values() if attribute.default_value.name]
    return function, defaults


def _describe_form(schema: Any) -> tuple[object, ...]:
    """What decides how a node of an operator is read: its inputs, and its attributes with their defaults."""
    defaults = {name: attribute.default_value.SerializeToString() for name, attribute in schema.attributes.items()}
    return schema.min_input, schema.max_input, defaults


def _describe(array: Array | None) -> bytes:
    """The type of an input, as ONNX writes it."""
    from onnx import TypeProto

    described = TypeProto()
    if array is not None:
        number = next(number for number, type_ in TYPE_NUMBERS.items() if type_ is array.type)
        described.tensor_type.elem_type = number
        for extent in array.shape:
            described.tensor_type.shape.dim.add().dim_value = extent.value
    serialized: bytes = described.SerializeToString()
    return serialized
