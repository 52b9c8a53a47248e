"""`einc import onnx`: a model text and its weights from an ONNX file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from einc.cli.options import PARAM_VALUE
from einc.errors import Diagnostic, ModelError, UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.disk import make_directory

if TYPE_CHECKING:
    from einc.importers.onnx.graphs import GraphRequest


@command(
    "onnx",
    "einc import onnx resnet50.onnx",
    "einc import onnx encoder.onnx -o encoder --dim batch=8 --dim sequence=128",
    "einc import onnx resize.onnx --value 'sizes=[1, 3, 64, 64]'",
    short_help="Make a model and its weights from an ONNX file.",
)
@click.argument("file", metavar="FILE")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="DIR",
    help="The folder for the model and its weights; it is made where it is missing.  [default: the file's name]",
)
@click.option("--dim", "dims", type=PARAM_VALUE, multiple=True, help="Make a named dimension a number.")
@click.option("--value", "values", type=PARAM_VALUE, multiple=True, help="Give the elements of an input now, as JSON.")
@json_option
def onnx_command(file: str, target: str | None, dims: Any, values: Any, as_json: bool) -> None:
    """Make a model text and its weights from an ONNX file of opset 7 or later, with its external data.

    The folder has model.ein and model.safetensors. Dimensions with names become dims of the text, which -D changes.
    Nothing in the file is executed. What is not supported is one error with the operator and its node.
    """
    from einc.importers.onnx.files import read_onnx
    from einc.importers.onnx.graphs import import_graph
    from einc.importers.weight_files import TEXT_FILE, WEIGHT_FILE, describe_weight, write_weights

    files.require_present(file)
    name = os.path.splitext(os.path.basename(file))[0]
    folder = target or name
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError("expected a folder", where=folder, hint="name one with -o")
    text_file, weight_file = (os.path.join(folder, part) for part in (TEXT_FILE, WEIGHT_FILE))
    request = _read_request(dims, values)
    with show_phases() as phase:
        phase("reading the graph")
        with files.reading(file):
            model = read_onnx(file)
        phase("writing the text")
        graph = import_graph(model, name, request)
        phase("checking the model")
        _check_text(graph.text, file)
        phase("storing the weights")
        weights = [describe_weight(stored, array) for stored, array in graph.weights.items()]
        make_directory(folder)
        output.require_outputs([text_file, weight_file], [file])
        output.write_file(weight_file, lambda stream: write_weights(stream, weights))
        output.write_text(text_file, graph.text)
    for note in graph.notes:
        output.note(f"einc: {note}")
    if as_json:
        names = {"inputs": dict(graph.inputs), "outputs": dict(graph.outputs)}
        output.say_json({"model": text_file, "weights": weight_file, **names, "notes": list(graph.notes)})
        return
    for kind, renamed in (("input", graph.inputs), ("output", graph.outputs)):
        for name, spelled in renamed.items():
            if name != spelled:
                output.note(f"einc: {kind} {name} is {spelled} in the text")
    output.note(f"{text_file}: {len(graph.inputs)} inputs, {len(graph.weights)} stored tensors")


def _read_request(dims: Any, values: Any) -> GraphRequest:
    import numpy as np

    from einc.importers.onnx.graphs import GraphRequest
    from einc_runtime.strict_json import parse_json

    numbers = {}
    for name, text in dims:
        if not text.isdecimal() or not 1 <= int(text) < 2**31:
            raise UsageError(f"--dim {name}={text}: expected a whole number of at least 1")
        numbers[name] = int(text)
    elements = {}
    for name, text in values:
        try:
            elements[name] = np.asarray(parse_json(text.encode()))
            if elements[name].dtype.kind not in "bif":
                raise ValueError
        except (ValueError, OverflowError):
            raise UsageError(f"--value {name}={text[:60]}: expected a number, or lists of numbers as JSON") from None
    return GraphRequest(numbers, elements)


def _check_text(text: str, where: str) -> None:
    """Raises ModelError if the text is no valid model."""
    from einc.frontend import build

    try:
        build(text, "model.ein")
    except ModelError as error:
        problems = [Diagnostic(f"{where}: what it says makes no model: {d.message}") for d in error.diagnostics]
        raise ModelError(problems) from None
