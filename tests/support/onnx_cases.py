"""Imported ONNX models as they are run: inputs of carried types, and values that a shape depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc.errors import ModelError
from einc.importers.arrays.element_types import find_element_type
from einc.importers.onnx.files import OnnxFile
from einc.importers.onnx.graphs import GraphRequest, ImportedGraph, import_graph
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import compiled

Elements = np.ndarray[Any, np.dtype[Any]]


def import_model(
    model: Any, folder: str = "/nowhere", values: Mapping[str, Elements] | None = None, **dims: int
) -> ImportedGraph:
    return import_graph(OnnxFile(model, folder, "model.onnx"), "model", GraphRequest(dims, values or {}))


def import_with(model: Any, feeds: Mapping[str, Elements]) -> ImportedGraph:
    """The import of a model that is given the elements of those inputs that a shape depends on, as errors ask for."""
    values: dict[str, Elements] = {}
    while True:
        try:
            return import_model(model, values=values)
        except ModelError as error:
            named = re.search(r"--value (\S+)=", error.render())
            if named is None or named[1] in values:
                raise
            values[named[1]] = feeds[named[1]]


def carry(array: Elements) -> Elements:
    """The array as the type that carries its own in the language."""
    type_ = find_element_type(array.dtype)
    return array if type_ is None else array.astype(type_.carrier.numpy())


def run_graph(
    graph: ImportedGraph, feeds: Mapping[str, Elements], sites: int, **definitions: int
) -> dict[str, Elements]:
    """The outputs of the model by their names in the file."""
    session = Session(compiled(graph.text, sites, **definitions))
    session.load_weights(graph.weights)
    results = session.run({graph.inputs[name]: carry(array) for name, array in feeds.items() if name in graph.inputs})
    return {name: results[spelled] for name, spelled in graph.outputs.items()}


def require_close(result: Elements, expected: Any, rtol: float, atol: float) -> None:
    """Equal within the rounding of the expected type."""
    reference = np.asarray(expected)
    assert result.shape == reference.shape
    coarse = {"float16": 2e-3, "bfloat16": 2e-2}.get(reference.dtype.name, 0.0)
    np.testing.assert_allclose(
        result.astype("f8"), reference.astype("f8"), rtol=max(rtol, coarse), atol=max(atol, 1e-5, coarse / 2)
    )


def to_arrays(values: Sequence[Any]) -> list[Elements]:
    """Arrays of numbers, also from tensors as ONNX writes them."""
    from onnx import TensorProto, numpy_helper

    return [numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray(v) for v in values]
