"""The definitions in the model language that come with einc: what they mean, and plans that compute it."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from einc.api import Graph
from einc.core.tensor import DType, TensorDesc
from einc.errors import ModelError
from einc.frontend import build
from einc.frontend.parser import parse
from einc.frontend.shared_blocks import describe_definition, list_definitions, list_library, show_definition
from einc.ops import registry
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import compiled
from tests.support.definition_oracle import random_array
from tests.support.graph_interpreter import interpret
from tests.support.library_cases import CASES
from tests.support.sampling import one_in

TOLERANCE = {"f64": 1e-9, "f32": 1e-5, "f16": 1e-2}


def arrays_of(name: str, dtype: str):
    graph = build(CASES[name].text(dtype), "m.ein")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    arrays = {}
    for tensor in graph.tensors:
        if tensor.kind.value == "input":
            draw = CASES[name].draws.get(tensor.name)
            drawn = draw(rng) if draw else random_array(tensor.desc, rng)
            arrays[tensor.name] = drawn.astype(tensor.desc.dtype.numpy())
    return graph, arrays


def require_close(result, name: str, arrays, dtype: str) -> None:
    wide = [array.astype("f8") if array.dtype.kind == "f" else array for array in arrays.values()]
    expected = CASES[name].meaning(*wide)
    assert result.shape == expected.shape
    assert np.abs(result.astype("f8") - expected).max() <= TOLERANCE[dtype] * max(1, np.abs(expected).max())


def test_every_definition_has_a_case() -> None:
    assert {name.split(" ")[0] for name in CASES} == set(list_library())
    assert not set(list_library()) & set(registry.list_names())


@pytest.mark.parametrize("name", CASES)
def test_a_definition_means_what_numpy_says(name: str) -> None:
    graph, arrays = arrays_of(name, "f64")
    require_close(interpret(graph, arrays)["y"], name, arrays, "f64")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "sites"), one_in(3, CASES, [1, 2, 3, 5, 8]))
def test_plans_compute_it_on_several_sites(name: str, sites: int) -> None:
    for dtype in ("f32", "f16"):
        _, arrays = arrays_of(name, dtype)
        session = Session(compiled(CASES[name].text(dtype), sites))
        require_close(session.run(arrays)["y"], name, arrays, dtype)


@pytest.mark.parametrize("name", list_definitions())
def test_a_definition_is_shown_as_a_text_of_its_own(name: str) -> None:
    text = show_definition(name)
    parse(text, "m.ein")
    call, about = describe_definition(name)
    assert call.removeprefix("aggregate ").startswith(f"{name}(")
    assert len(about) > 20


def test_an_error_in_a_call_is_shown_at_the_call() -> None:
    text = 'model m\ndim n = 4\ninput x : f32[n]\n\noutput y = cumsum(x, "rows")\n'
    with pytest.raises(ModelError) as caught:
        build(text, "m.ein")
    shown = caught.value.render()
    assert "m.ein:5:12: cumsum: there is no dimension 'rows' among n" in shown
    assert "library/scans.ein:" in shown


def test_names_of_the_model_do_not_reach_a_definition() -> None:
    """A model may have a dim called `k`, `i` or `h`, and a block called as one that a definition calls."""
    text = 'model m\ndim k = 3\ndim i = 7\ninput x : f32[k, i]\noutput y = cumsum(x, "i")\n'
    assert build(text, "m.ein").nodes[0].operator.outputs[0].shape == (3, 7)


def test_a_block_of_the_model_comes_before_the_library() -> None:
    text = "model m\ndim n = 4\ninput x : f32[n]\nblock flip(x) {\n    return -x\n}\noutput y = flip(x)\n"
    assert build(text, "m.ein").nodes[0].operator.title == "neg"


def test_definitions_are_called_from_python() -> None:
    graph = Graph()
    x = graph.insertTensor(TensorDesc(("n", "c", "h", "w"), (2, 3, 5, 4), DType.F32), "x")
    k = graph.insertWeight(TensorDesc(("o", "c", "r", "s"), (2, 3, 3, 3), DType.F32), "k")
    y = graph.call("conv2d", x, k, padding=1, name="y")
    z = graph.equation("z[n, c, h, w] = cumsum(y, over)[n, c, h, w] * 2.0", y=y, over="h")
    assert (y.name, y.desc.shape, y.desc.dims) == ("y", (2, 2, 5, 4), ("n", "c", "h", "w"))
    assert z.desc.shape == y.desc.shape
    hidden, cells = graph.call("lstm", *(
        graph.insertTensor(TensorDesc(tuple("abc"[: len(shape)]), shape, DType.F32), name)
        for name, shape in {"s": (2, 5, 3), "w": (16, 3), "u": (16, 4), "p": (16,), "q": (16,)}.items()
    ), name="hidden")  # fmt: skip
    decayed = graph.equation("h[n, t, i] = 0.5 * h[n, t - 1, i, outside = 0] + x[n, t, i]", x=hidden)
    assert (hidden.name, hidden.desc.shape, cells.desc.shape) == ("hidden", (2, 5, 4), (2, 5, 4))
    assert (decayed.name, decayed.desc.shape) == ("h", (2, 5, 4))
    with pytest.raises(ModelError, match="block 'conv2d' needs an argument for 'kernel'"):
        graph.call("conv2d", x)


MINE = """# A running mean
block running_mean(x, over) {
    y[..., over: i] = sum[k <= i](x[..., over: k])
    n[i = extent(x, over)] = cast(i + 1, "f32")
    z[..., over: i] = y[..., over: i] / n[i]
    return z
}
"""


def test_a_file_of_blocks_is_used(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "mine.ein").write_text('use "parts/more.ein"\n' + MINE)
    (tmp_path / "parts" / "more.ein").write_text("block twice(x) {\n    return x + x\n}\n")
    text = 'model m\nuse "mine.ein"\ndim n = 5\ninput x : f32[n]\noutput y = twice(running_mean(x, "n"))\n'
    file = tmp_path / "m.ein"
    graph = build(text, str(file))
    x = np.arange(1.0, 6.0, dtype=np.float32) ** 2
    assert np.allclose(interpret(graph, {"x": x})["y"], 2 * np.cumsum(x) / np.arange(1, 6))


BAD_USES = {
    "/etc/passwd": "expected a file of blocks beside this one or below",
    "../mine.ein": "expected a file of blocks beside this one or below",
    "mine.txt": "expected a file of blocks beside this one or below",
    "none.ein": "cannot be read: No such file",
    "params.ein": "a file that is used has blocks and aggregates only",
    "twice.ein": "block 'a' is defined already",
    "folder.ein": "cannot be read: Is a directory",
    "binary.ein": "is no text in UTF-8",
    "circle.ein": "",
}


@pytest.mark.parametrize("name", BAD_USES)
def test_what_is_wrong_with_a_used_file_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / "params.ein").write_text("param n = 3\n")
    (tmp_path / "twice.ein").write_text("block a(x) {\n return x\n}\nblock a(x) {\n return x\n}\n")
    (tmp_path / "folder.ein").mkdir()
    (tmp_path / "binary.ein").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "circle.ein").write_text('use "circle.ein"\nblock f(x) {\n return -x\n}\n')
    text = f'model m\nuse "{name}"\ndim n = 4\ninput x : f32[n]\noutput y = x + x\n'
    if not BAD_USES[name]:
        assert build(text, str(tmp_path / "m.ein")).outputs == ("y",)
        return
    with pytest.raises(ModelError, match=BAD_USES[name]):
        build(text, str(tmp_path / "m.ein"))


def test_functions_of_shapes_are_numbers_and_names() -> None:
    text = (
        "model m\ndim rows = 3\ninput x : f32[rows, 4]\nblock f(x) {\n"
        "    y[d : i = extent(x, -1) + rank(x)] = x[0, i % extent(x, 1)]\n    return y\n}\n"
        "block g(x) {\n    d = dimension(x, 0)\n    y[d: i, j = 2] = x[i, j]\n    return y\n}\n"
        "output a = f(x)\noutput b = g(x)\n"
    )
    graph = build(text, "m.ein")
    shapes = {node.name: node.operator.outputs[0] for node in graph.nodes}
    assert str(shapes["a"]) == "f32[d=6]"
    assert str(shapes["b"]) == "f32[rows=3, j=2]"


def test_parameters_of_blocks_have_defaults() -> None:
    text = (
        "model m\ndim n = 3\ninput x : f32[n]\nblock scaled(x, by = 2.0, plus = by + 1.0) {\n"
        "    return x * by + plus\n}\noutput y = scaled(x)\noutput z = scaled(x, plus=0.0, by=3.0)\n"
    )
    graph = build(text, "m.ein")
    x = np.ones(3, np.float32)
    result = interpret(graph, {"x": x})
    assert result["y"][0] == 5
    assert result["z"][0] == 3


@pytest.mark.parametrize("sites", [1, 3])
def test_elements_at_computed_positions_are_read_first(sites: int) -> None:
    """A position at data whose own position is a remainder, or outside: it becomes a tensor before it is used."""
    text = (
        "model m\ndim n = 9\ndim t = 5\ninput x : f32[n]\ninput ids : i64[t]\n"
        "output y[i = 5] = x[ids[(i + 1) % 5]]\noutput z[i = 7] = x[ids[i - 1, outside = 0] + 1]\n"
    )
    x, ids = np.arange(9, dtype=np.float32), np.array([3, 0, 7, 1, 2])
    result = Session(compiled(text, sites)).run({"x": x, "ids": ids})
    assert result["y"].tolist() == x[np.roll(ids, -1)].tolist()
    assert result["z"].tolist() == x[np.pad(ids, 1) + 1].tolist()
