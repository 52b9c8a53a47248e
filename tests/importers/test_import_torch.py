"""Programs of torch.export: what their texts compute, errors with the line of the module, hostile files."""

from __future__ import annotations

import copy
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einc.cli.main import main
from einc.errors import EincError, ModelError, ReadError
from einc.importers.pytorch.archive import ExportArchive
from einc.importers.pytorch.convert import ConvertedModule, convert_archive
from einc.importers.pytorch.importing import TorchModel, name_dims
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import compiled
from tests.support.paced import within
from tests.support.torch_archives import CASES, list_entries, load_case, write_archive


def convert(path: Path) -> ConvertedModule:
    with ExportArchive(str(path)) as archive:
        return convert_archive(archive, "case")


@pytest.fixture
def transformer(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    documents = copy.deepcopy(dict(load_case("transformer").documents))
    return tmp_path / "model.pt2", documents


@pytest.mark.parametrize("name", CASES)
def test_texts_compute_what_torch_does(name: str, tmp_path: Path) -> None:
    case, path = load_case(name), tmp_path / "model.pt2"
    write_archive(path, list_entries(case.documents))
    assert main(["import", "torch", str(path), "-o", str(tmp_path / "made")]) == 0
    text = (tmp_path / "made" / "model.ein").read_text()
    for sites in (1, 3):
        with Session(compiled(text, sites)) as session:
            session.load_weights(str(tmp_path / "made"))
            inputs = [tensor.name for tensor in session.inputs]
            results = session.run(dict(zip(inputs, case.inputs, strict=True)))
        for result, expected in zip(results.values(), case.outputs, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_dynamic_dimensions_are_dims_of_the_text(tmp_path: Path) -> None:
    case, path = load_case("perceptron"), tmp_path / "model.pt2"
    write_archive(path, list_entries(case.documents))
    text = convert(path).text
    (declared,) = [line for line in text.splitlines() if line.startswith("dim ")]
    name = declared.split()[1]
    assert f"[{name}, 7]" in text
    rows = np.concatenate([case.inputs[0], case.inputs[0][:3]])
    changed = text.replace(declared, f"dim {name} = {len(rows)}")
    with Session(compiled(changed, 3)) as session:
        with ExportArchive(str(path)) as archive:
            session.load_weights({stored: archive.read_tensor(stored) for stored in convert(path).stored})
        (result,) = session.run({session.inputs[0].name: rows}).values()
    np.testing.assert_allclose(result[5:], case.outputs[0][:3], rtol=1e-5, atol=1e-6)


def test_masked_attention_of_grouped_heads_is_an_operator(transformer: tuple[Path, dict[str, Any]]) -> None:
    path, documents = transformer
    write_archive(path, list_entries(documents))
    text = convert(path).text
    assert text.count("attention(") == 1
    assert "causal=true" in text
    assert "rmsnorm(" in text


def test_a_missing_operator_is_an_error_with_the_line_that_called_it(transformer: tuple[Path, dict[str, Any]]) -> None:
    path, documents = transformer
    nodes = documents["model"]["graph_module"]["graph"]["nodes"]
    next(node for node in nodes if "silu" in node["target"])["target"] = "torch.ops.aten.silux.default"
    write_archive(path, list_entries(documents))
    with pytest.raises(ModelError) as caught:
        convert(path)
    message = caught.value.render()
    assert "aten.silux.default" in message
    assert 'make_torch_graphs.py", line' in message
    assert "silu(self.gate(x))" in message
    assert "docs/adding-a-graph-importer.md" in message.partition("hint")[2]
    assert "adding-a-graph-importer.md" in message


@pytest.mark.parametrize("target", ["nonzero.default", "where.default"])
def test_as_many_elements_as_data_says_are_refused_with_a_way_out(
    target: str, transformer: tuple[Path, dict[str, Any]]
) -> None:
    """The usual loop over experts: torch.where of one argument."""
    path, documents = transformer
    node = next(n for n in documents["model"]["graph_module"]["graph"]["nodes"] if "silu" in n["target"])
    node["target"] = f"torch.ops.aten.{target}"
    node["inputs"][0]["name"] = "condition" if target[0] == "w" else "self"
    write_archive(path, list_entries(documents))
    with pytest.raises(ModelError, match=r"a result whose extent is data \(positions where(.|\n)*hint: compute all"):
        convert(path)


def test_dims_are_called_as_in_python() -> None:
    """Lists and tables have the names that torch gives them; what is no `Dim` of a name has none."""

    class Module:
        def forward(self, ids: object, more: object, scale: object = None) -> None: ...

    def dim(name: str) -> object:
        return type(name, (), {})

    array = np.zeros((3, 5))
    shapes = {"ids": {0: dim("queries"), 1: 5}, "more": [(None, dim("width")), {"a": {1: dim("ids")}}]}
    dims = name_dims(Module(), (array, [array, {"a": array}]), {"scale": 2.0}, shapes)
    assert dims == {"ids_dim0": ("queries", 3), "more_0_dim1": ("width", 5)}


Change = Callable[[dict[str, Any]], object]


def change_weight(field: str, value: object) -> Change:
    def change(documents: dict[str, Any]) -> None:
        payload = documents["weights"]["config"]["table.weight"]
        (payload if field in payload else payload["tensor_meta"])[field] = value

    return change


def change_schema(documents: dict[str, Any]) -> None:
    documents["model"]["schema_version"]["major"] = 9


def drop_nodes(documents: dict[str, Any]) -> None:
    del documents["model"]["graph_module"]["graph"]["nodes"][3:5]


def change_mutation(documents: dict[str, Any]) -> None:
    specs = documents["model"]["graph_module"]["signature"]["output_specs"]
    specs[0] = {"buffer_mutation": {"arg": {"name": "x"}, "buffer_name": "y"}}


def remove_type(documents: dict[str, Any]) -> None:
    documents["model"]["graph_module"]["graph"]["tensor_values"].clear()


def change_size(documents: dict[str, Any]) -> None:
    nodes = documents["model"]["graph_module"]["graph"]["nodes"]
    argument = next(a["arg"] for node in nodes for a in node["inputs"] if "as_ints" in a["arg"])
    argument["as_ints"][0] = "p_0_bias"


FAULTS: dict[str, tuple[Change, str]] = {
    "a pickled weight": (change_weight("use_pickle", True), "'table.weight' is pickled"),
    "a huge weight": (change_weight("sizes", [{"as_int": 2**40}] * 2), "does not fit"),
    "a repeated element": (change_weight("strides", [{"as_int": 0}] * 2), ""),
    "a negative stride": (change_weight("strides", [{"as_int": -1}] * 2), "as_int"),
    "an unknown type": (change_weight("dtype", 999), "the element type with number 999"),
    "a float of 8 bits": (change_weight("dtype", 29), "the element type float8_e4m3fn"),
    "a sparse tensor": (change_weight("layout", 1), "is not dense (layout 1)"),
    "another version": (change_schema, "version 9, expected 8"),
    "missing nodes": (drop_nodes, "that is not there"),
    "a mutation": (change_mutation, "buffer_mutation"),
    "no types": (remove_type, "has no type"),
    "a word for a number": (change_size, "an argument of kind as_ints: Expected `int`, got `str`"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_errors(fault: str, transformer: tuple[Path, dict[str, Any]]) -> None:
    path, documents = transformer
    entries = list_entries(documents)
    change, message = FAULTS[fault]
    change(documents)
    changed = {**entries, "models/model.json": json.dumps(documents["model"]).encode()}
    changed["data/weights/model_weights_config.json"] = json.dumps(documents["weights"]).encode()
    write_archive(path, changed)
    if not message:
        convert(path)  # a view that repeats elements is one like any other
        return
    with pytest.raises(EincError) as caught:
        convert(path)
    assert message in caught.value.render()


def test_compressed_weights_and_other_files_are_refused(transformer: tuple[Path, dict[str, Any]]) -> None:
    path, documents = transformer
    write_archive(path, list_entries(documents), zipfile.ZIP_DEFLATED)
    with pytest.raises(ReadError, match="compressed"):
        convert(path)
    for content in (b"", b"PK\x05\x06" + b"\xff" * 18, b"no zip" * 100, b"PK\x05\x06" + b"\0" * 18):
        path.write_bytes(content)
        with pytest.raises(ReadError, match="no archive"):
            convert(path)


def test_a_file_is_read_or_refused_in_bounded_time(transformer: tuple[Path, dict[str, Any]]) -> None:
    """Bytes of the archive and values of its JSON, changed by chance."""
    path, documents = transformer
    rng = random.Random(5)
    entries = list_entries(documents)
    write_archive(path, entries)
    data = path.read_bytes()
    model = entries["models/model.json"]
    with within(seconds=60):
        for _ in range(60):
            changed = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(bytes(changed[: rng.choice([len(data), rng.randrange(len(data))])]))
            try_to_convert(path)
        for _ in range(60):
            text = bytearray(model)
            position = rng.randrange(len(text))
            text[position : position + 1] = rng.choice([b"0", b"-9", b"[]", b"null", b"{}", b'"', b"1e99", b"7"])
            write_archive(path, {**entries, "models/model.json": bytes(text)})
            try_to_convert(path)


def try_to_convert(path: Path) -> None:
    caught: EincError | None = None
    try:
        convert(path)
    except EincError as error:
        caught = error
    assert caught is None or (caught.exit_code in (65, 74) and len(caught.render()) < 3000)


def test_a_model_is_shown_without_its_weights() -> None:
    model = TorchModel("model m\n", {"w": np.zeros((3, 5), np.float32)}, ("x",), ("y",), ())
    assert (str(model), repr(model)) == ("model m\n", "<TorchModel: inputs x; 1 weight of 60 B; outputs y>")
