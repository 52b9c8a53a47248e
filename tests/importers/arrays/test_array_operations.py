"""Operations on arrays as statements of the language: they compute what numpy does, on one and on several sites."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, divide_extent, make_extent
from einc.importers.arrays.moving import arrange, reshape, shape_of, slice_axis, take
from einc.importers.arrays.naming import RESERVED_WORDS
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import layer_norm, rms_norm
from einc.importers.arrays.values import UnsupportedError
from einc_runtime.execution.session import Session
from tests.support.array_program_cases import CASES, run_program, write_program
from tests.support.compiled_plans import compiled
from tests.support.graph_interpreter import interpret
from tests.support.sampling import one_in


def require_equal(result, expected) -> None:
    expected = np.asarray(expected)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.astype("f8"), expected.astype("f8"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_means_what_numpy_says(name: str) -> None:
    case = CASES[name]
    arrays = case.draw()
    program = write_program(case.build, arrays)
    graph = build(program.text(), "case.ein")
    values = dict(program.weights)
    for k, array in enumerate(arrays):
        desc = next(tensor.desc for tensor in graph.tensors if tensor.name == f"x{k}")
        values[f"x{k}"] = array.astype(desc.dtype.numpy())
    (result,) = interpret(graph, values).values()
    require_equal(result, case.meaning(*arrays))


@pytest.mark.parametrize(("name", "sites"), one_in(8, CASES, [1, 3]))
def test_plans_compute_an_operation_on_several_sites(name: str, sites: int) -> None:
    case = CASES[name]
    arrays = case.draw()
    require_equal(run_program(write_program(case.build, arrays), arrays, sites), case.meaning(*arrays))


def test_extents_divide_for_every_value_of_the_params_or_not_at_all() -> None:
    batch, rows = Extent.param("batch", 12), Extent.param("rows", 3)
    assert divide_extent(batch * rows * 4, rows * 2) == batch * 2
    assert divide_extent(batch, batch) == make_extent(1)
    assert divide_extent(batch, make_extent(4)) is None  # 12 of 4 is no property of `batch`
    assert divide_extent(batch, rows) is None
    assert divide_extent(make_extent(12), batch) is None
    assert divide_extent(batch + 1, make_extent(0)) is None


def test_extents_of_params_are_expressions_of_the_text() -> None:
    """A text of any batch, whose shapes are computed from the shape of its input."""
    program = ArrayProgram("flexible")
    batch = program.param("batch", 4)
    x = program.input("x", [batch, 6, 5], ElementType.F32)
    rows = apply(program, "mul", take(program, shape_of(program, x), program.constant(0), 0), 3)
    assert rows.extents == (batch * 3,)
    y = reshape(program, x, [*rows.extents, -1])
    assert y.shape == (batch * 3, make_extent(10))
    ramp = arrange(program, 1, rows.extents[0])
    y = apply(program, "mul", y, reshape(program, cast(program, ramp, ElementType.F32), [-1, 1]))
    program.output("y", slice_axis(program, y, 0, 2, -1))
    for count in (4, 3):
        x_elements = np.random.default_rng(count).standard_normal((count, 6, 5)).astype("f4")
        session = Session(compiled(program.text(), 3, batch=count))
        for name, weight in program.weights.items():
            session.load(name, weight)
        expected = x_elements.reshape(3 * count, 10) * np.arange(1, 3 * count + 1)[:, None]
        require_equal(next(iter(session.run({"x": x_elements}).values())), expected[2:-1])


def test_extents_are_sums_of_products() -> None:
    a, b = Extent.param("a", 5), Extent.param("b", 3)
    assert (a + b) * (a - b) == a * a - b * b
    assert (6 * a * b) // (2 * b) == 3 * a
    assert ((a + 1) // 2).text == "((a + 1) // 2)"
    assert ((a + 1) // 2).value == 3
    assert (a * b - 2 * a + 1).text == "-2 * a + a * b + 1"
    assert choose_smaller(a, a + 1) == a
    assert choose_larger(a, 2 * b).text == "max([a, 2 * b])"
    assert (a - a).is_number


def test_known_elements_become_numbers_or_weights() -> None:
    program = ArrayProgram("constants")
    x = program.input("x", [2, 3], ElementType.F32)
    folded = apply(program, "add", program.constant(np.float32(1.5)), 1)
    y = apply(program, "mul", x, folded)
    program.output("y", apply(program, "add", y, program.constant(np.arange(3, dtype="f4"), hint="ramp")))
    assert "x * 2.5" in program.text()
    assert list(program.weights) == ["ramp"]
    assert "weight ramp : f32[3]" in program.text()


def test_outputs_keep_their_names_where_no_input_has_them() -> None:
    program = ArrayProgram("names")
    x = program.input("x", [3], ElementType.F32)
    first = apply(program, "neg", x, hint="scores")
    second = apply(program, "exp", first, hint="Top")
    saved = [program.output(name, array) for name, array in [("scores", second), ("Top", first), ("x", first)]]
    assert saved == ["scores", "Top", "x_2"]
    results = interpret(build(program.text(), "names.ein"), {"x": np.ones(3, "f4")})
    np.testing.assert_allclose(results["scores"], np.exp(-np.ones(3)), rtol=1e-6)


def test_what_does_not_fit_is_an_error() -> None:
    program = ArrayProgram("faults")
    x, y = (program.input("x", shape, ElementType.F32) for shape in ([2, 3], [2, 4]))
    for build_wrong, message in (
        (lambda: apply(program, "add", x, y), "do not broadcast"),
        (lambda: apply(program, "addd", x, x), "there is no function 'addd'"),
        (lambda: reshape(program, x, [4, -1]), r"\[2, 3\] does not become"),
        (lambda: take(program, x, program.constant(0), 2), "axis 2"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            build_wrong()


def test_the_page_shows_the_text_that_its_program_makes(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "adding-a-graph-importer.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n|\n)+)", page, re.DOTALL)
    exec(example[0], {})
    assert capsys.readouterr().out.strip() == re.sub("(?m)^    ", "", example[1]).strip()


def test_norms_without_vectors_store_none() -> None:
    program = ArrayProgram("plain")
    x = program.input("x", (3, 5), ElementType.F32)
    bias = program.weight("bias", (5,), ElementType.F32, "bias")
    program.output("y", rms_norm(program, layer_norm(program, x, None, None, 1e-5), None, 1e-5))
    program.output("z", layer_norm(program, x, None, bias, 1e-5))
    assert program.weights == {}
    rows = np.arange(15, dtype="f4").reshape(3, 5) ** 2
    centred = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    values = interpret(build(program.text(), "plain.ein"), {"x": rows, "bias": np.ones(5, "f4")})
    require_equal(values["y"], centred)
    require_equal(values["z"], centred + 1)


def test_no_tensor_is_called_like_a_word_of_the_language() -> None:
    grammar = (Path(__file__).parents[3] / "grammars" / "ein.lark").read_text()
    words = re.findall(r'^_?[A-Z]+: "([a-z]+)"', grammar, re.MULTILINE)
    assert {"identity", "scan", "from"} <= set(words) <= RESERVED_WORDS
