"""ONNX's own tests of its operators, and models of its package: imported, and computed on one and on three sites.

`left_out.txt` names the tests that are left out, with the reason; one of them that passes is a failure, too.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test import loader

from einc.errors import ModelError
from tests.support.onnx_cases import import_model, import_with, require_close, run_graph, to_arrays

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NODE_TESTS = {case.name: case for case in loader.load_model_tests(kind="node")}
LEFT_OUT = dict(
    line.split("  ", 1)
    for line in (Path(__file__).parent / "left_out.txt").read_text().splitlines()
    if not line.startswith("#")
)
FOLDERS = [
    case for kind in ("simple", "pytorch-converted", "pytorch-operator") for case in loader.load_model_tests(kind=kind)
]
LIGHT = sorted((Path(loader.DATA_DIR) / "light").glob("*.onnx"))


def test_at_most_350_are_left_out() -> None:
    assert len(NODE_TESTS) >= 1884
    assert len(LEFT_OUT) <= 350
    assert set(LEFT_OUT) <= set(NODE_TESTS)


@pytest.mark.parametrize("name", sorted(set(NODE_TESTS) - set(LEFT_OUT)))
def test_an_operator_computes_what_onnx_says(name: str) -> None:
    case = NODE_TESTS[name]
    for inputs, outputs in case.data_sets:
        feeds = dict(zip([info.name for info in case.model.graph.input], to_arrays(inputs), strict=False))
        graph = import_with(case.model, feeds)
        for sites in (1, 3):
            results = run_graph(graph, feeds, sites)
            for info, expected in zip(case.model.graph.output, to_arrays(outputs), strict=True):
                require_close(results[info.name], expected, case.rtol, case.atol)


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_is_left_out_is_an_error(name: str) -> None:
    case = NODE_TESTS[name]
    inputs = [info.name for info in case.model.graph.input]
    try:
        feeds = dict(zip(inputs, to_arrays(case.data_sets[0][0]), strict=False))
    except (TypeError, ValueError):
        feeds = {}
    with pytest.raises((ModelError, KeyError)):
        import_with(case.model, feeds)


@pytest.mark.parametrize("case", FOLDERS, ids=lambda case: case.name)
def test_a_model_of_the_package_computes_what_it_says(case) -> None:
    """Those of sequences, strings and gradients are refused."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    refused = ("sequence", "strnorm", "gradient")
    data = sorted(folder.glob("test_data_set_*"))
    values = {info.name for info in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in values]
    if any(word in case.name for word in refused):
        with pytest.raises(ModelError):
            import_model(model)
        return
    for files in data:
        feeds = dict(zip(names, _read(files, "input"), strict=False))
        graph = import_with(model, feeds)
        for sites in (1, 3):
            results = run_graph(graph, feeds, sites)
            for info, expected in zip(model.graph.output, _read(files, "output"), strict=True):
                require_close(results[info.name], expected, 1e-3, 1e-5)


def _read(folder: Path, kind: str) -> list[np.ndarray]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [numpy_helper.to_array(onnx.load_tensor(folder / f"{kind}_{k}.pb")) for k in range(count)]


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_a_light_model_equals_onnx_runtime(path: Path) -> None:
    """Their weights are constants; here each tensor is drawn anew, so that results depend on every one."""
    import onnxruntime

    model = onnx.load(path)
    draw_weights(model, 7)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (info,) = runtime.get_inputs()
    feeds = {info.name: np.random.default_rng(1).standard_normal(info.shape).astype("f4")}
    (expected,) = runtime.run(None, feeds)
    assert expected.std() > 0
    graph = import_model(model)
    for sites in (1, 3):
        (result,) = run_graph(graph, feeds, sites).values()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result / scale, expected / scale, rtol=1e-3, atol=1e-4)


def draw_weights(model: onnx.ModelProto, seed: int) -> None:
    """Replaces the constant tensors that the nodes ConstantOfShape make by drawn ones, of a variance that keeps."""
    rng = np.random.default_rng(seed)
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in known:
            kept.append(node)
            continue
        shape = tuple(int(extent) for extent in known[node.input[0]])
        fan_in = int(np.prod(shape[1:])) or 1
        elements = rng.standard_normal(shape) * (1.5 / fan_in) ** 0.5 if len(shape) > 1 else 0.5 + rng.random(shape)
        model.graph.initializer.append(numpy_helper.from_array(elements.astype("f4"), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
