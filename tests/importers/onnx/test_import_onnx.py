"""`einc import onnx`: what the text says, what is refused, and files that nobody should trust."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from einc.cli.main import main
from einc.errors import ModelError
from einc.importers.onnx.files import read_onnx
from einc.importers.onnx.graphs import import_graph
from tests.support.onnx_cases import import_model, require_close, run_graph


def make_model(nodes, inputs, outputs=("y",), constants=None, opset=21) -> onnx.ModelProto:
    """`inputs` have their shapes, and may have a type behind them."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if "ids" in name else TensorProto.FLOAT, shape)
        for name, shape in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


RNG = np.random.default_rng(5)
WEIGHTS = {
    "table": RNG.standard_normal((11, 6)).astype("f4"),
    "up": RNG.standard_normal((6, 8)).astype("f4"),
    "bias": RNG.standard_normal(8).astype("f4"),
    "heads": np.array([0, -1, 2, 4]),
}


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each test by itself, whichever others run before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(5))


def make_small() -> onnx.ModelProto:
    """A lookup, a product with a bias, and heads, for any batch and number of tokens."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["/embed/out"]),
        helper.make_node("MatMul", ["/embed/out", "up"], ["/up/MatMul"]),
        helper.make_node("Add", ["/up/MatMul", "bias"], ["/up/Add"]),
        helper.make_node("Reshape", ["/up/Add", "heads"], ["split"]),
        helper.make_node("Transpose", ["split"], ["moved"], perm=[0, 2, 1, 3]),
        helper.make_node("Softmax", ["moved"], ["y"], axis=-1),
    ]
    return make_model(nodes, {"ids": ["batch", "tokens"]}, constants=WEIGHTS)


def compute_small(ids: np.ndarray) -> np.ndarray:
    h = WEIGHTS["table"][ids] @ WEIGHTS["up"] + WEIGHTS["bias"]
    moved = h.reshape(*ids.shape, 2, 4).transpose(0, 2, 1, 3)
    return np.exp(moved) / np.exp(moved).sum(-1, keepdims=True)


def test_a_text_reads_well_and_is_for_any_batch() -> None:
    graph = import_model(make_small())
    assert graph.text == (Path(__file__).parent / "small.ein").read_text()
    for batch, tokens in ((1, 5), (3, 2)):
        ids = RNG.integers(0, 11, (batch, tokens))
        results = run_graph(graph, {"ids": ids}, 3, batch=batch, tokens=tokens)
        require_close(results["y"], compute_small(ids), 1e-5, 1e-6)


def test_a_dimension_becomes_a_number() -> None:
    text = import_model(make_small(), batch=2).text
    assert "input ids : i64[2, tokens]" in text
    with pytest.raises(ModelError, match="no input has a dimension 'token'"):
        import_model(make_small(), token=2)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(make_small(), "small.onnx", save_as_external_data=True, location="small.data", size_threshold=0)
    assert main(["import", "onnx", "small.onnx", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document == {
        "model": "small/model.ein", "weights": "small/model.safetensors", "inputs": {"ids": "ids"},
        "outputs": {"y": "y"}, "notes": [],
    }  # fmt: skip
    ids = RNG.integers(0, 11, (2, 3))
    np.save("ids.npy", ids)
    compiled = ["compile", "small/model.ein", "--devices", "3", "-m", "host", "-D", "batch=2", "-D", "tokens=3"]
    assert main([*compiled, "-o", "small.bin"]) == 0
    assert main(["run", "small.bin", "--weights", "small", "--inputs", "ids=ids.npy", "-o", "y.npz"]) == 0
    require_close(np.load("y.npz")["y"], compute_small(ids), 1e-5, 1e-6)
    assert main(["import", "onnx", "small.onnx", "-o", "small.onnx"]) == 2
    assert main(["import", "onnx", "small.onnx", "-o", "again", "--dim", "batch=x"]) == 2
    assert main(["import", "onnx", "small.onnx", "-o", "again", "--value", "ids=[1, 'a']"]) == 2
    assert not Path("again").exists()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("NonZero", ["x"], {})], r"node 'n0' \(NonZero\): it needs shapes that depend on data"),
        ([("Nothing", ["x"], {})], r"node 'n0' \(Nothing\): this operator is not supported"),
        ([("Add", ["x", "z"], {})], r"node 'n0' \(Add\): input 'z' is computed by no earlier node"),
        ([("MatMul", ["x", "x"], {})], r"node 'n0' \(MatMul\): a matrix product of \[2, 3\] and \[2, 3\]"),
        ([("Cast", ["x"], {"to": TensorProto.FLOAT8E5M2})], "elements of type FLOAT8E5M2 are not supported"),
        ([("Reshape", ["x", "ids"], {})], "its shape depends on the elements of ids, which are known only in a run"),
        ([("Transpose", ["x"], {"perm": [0, 0]})], "is no order of 2 dimensions"),
        ([("Concat", ["x"] * 3, {"axis": 7})], "axis 7 of an array of 2 dimensions"),
        ([("Loop", ["", "", "x"], {})], "it needs control flow"),
    ],
)
def test_what_is_not_supported_names_its_node(nodes, message: str) -> None:
    made = [
        helper.make_node(operator, inputs, ["y"], name=f"n{k}", **attributes)
        for k, (operator, inputs, attributes) in enumerate(nodes)
    ]
    with pytest.raises(ModelError, match=message):
        import_model(make_model(made, {"x": [2, 3], "ids": [2]}))


def test_elements_of_an_input_can_be_given() -> None:
    model = make_model([helper.make_node("Reshape", ["x", "ids"], ["y"])], {"x": [2, 3], "ids": [2]})
    graph = import_model(model, values={"ids": np.array([3, -1])})
    x = RNG.standard_normal((2, 3)).astype("f4")
    require_close(run_graph(graph, {"x": x}, 1)["y"], x.reshape(3, 2), 0, 0)
    assert list(graph.inputs) == ["x"]


def external(location: str, **fields: int) -> onnx.ModelProto:
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4]}, constants={"w": np.zeros(4, "f4")})
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return model


def test_external_data_stays_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(64))
    (folder / "short").write_bytes(bytes(15))
    (folder / "good").write_bytes(np.arange(8, dtype="f4").tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "link", "..\\secret", "", ".", "good/../../secret"):
        with pytest.raises(ModelError, match="which is not in the model's folder"):
            import_model(external(location), str(folder))
    for model in (
        external("short"),
        external("good", offset=20),
        external("good", offset=-4),
        external("good", length=8),
    ):
        with pytest.raises(ModelError, match="expected 16 bytes at"):
            import_model(model, str(folder))
    with pytest.raises(ModelError, match="No such file"):
        import_model(external("nothing"), str(folder))
    assert list(import_model(external("good", offset=16), str(folder)).weights["w"]) == [4, 5, 6, 7]


def test_a_tensor_has_what_its_shape_says() -> None:
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4]}, constants={"w": np.zeros(4, "f4")})
    model.graph.initializer[0].dims[0] = 2**40
    with pytest.raises(ModelError, match="expected 4,398,046,511,104 bytes, found 16"):
        import_model(model)


def test_what_grows_without_end_is_refused_soon() -> None:
    """Sixty doublings of a constant, of an extent, of a text, and steps without end."""
    doubling = [helper.make_node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0) for k in range(60)]
    summing = [helper.make_node("Mul", [f"c{k}", f"c{k}"], [f"c{k + 1}"]) for k in range(60)]
    dividing = [
        part
        for k in range(60)
        for part in (
            helper.make_node("Add", [f"c{k}", f"c{k}"], [f"d{k}"]),
            helper.make_node("Div", [f"d{k}", "three"], [f"c{k + 1}"]),
        )
    ]
    constants = {"w": np.arange(2.0, dtype="f4"), "three": np.array([3])}
    shape = [helper.make_node("Shape", ["x"], ["c0"], start=0, end=1)]
    expand = [helper.make_node("Expand", ["w", "c60"], ["y"])]
    used = [helper.make_node("Add", ["x", "c60"], ["y"])]
    first = [helper.make_node("Identity", ["w"], ["c0"])]
    started = time.process_time()
    for nodes in (first + doubling + used, shape + summing + expand, shape + dividing + expand):
        with pytest.raises(ModelError):
            import_model(make_model(nodes, {"x": ["n", 2]}, constants=constants))
    assert time.process_time() - started < 20


def test_files_that_are_no_models(tmp_path: Path) -> None:
    content = make_small().SerializeToString()
    for data in (b"", b"\x00" * 100, content[: len(content) // 2], b"not a model", content[5:]):
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        with pytest.raises(ModelError):
            import_graph(read_onnx(str(path)), "m")
