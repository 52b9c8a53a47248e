"""Repeated statements become a block and a repeat, which compute the same; what differs between them stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.products import matmul
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import compiled

Layer = Callable[[ArrayProgram, Array, Array, Array], Array]


def write_layer(program: ArrayProgram, x: Array, up: Array, down: Array) -> Array:
    hidden = apply(program, "silu", matmul(program, x, up, "up"), hint="gate")
    return apply(program, "add", x, matmul(program, hidden, down, "down"), hint="sum")


def make_program(count: int, names: Sequence[str], save_all: bool = False) -> ArrayProgram:
    """A model of layers whose weights are called by names with `{}` for the number of the layer."""
    program = ArrayProgram("layers")
    x = apply(program, "mul", program.input("rows", [5, 4], ElementType.F32), 0.5)
    for layer in range(count):
        up, down = (
            program.weight(f"{role}_{layer}", shape, ElementType.F32, names[layer % len(names)].format(layer, role))
            for role, shape in (("up", (4, 6)), ("down", (6, 4)))
        )
        x = write_layer(program, x, up, down)
        if save_all:
            program.output(f"h{layer}", x)
    program.output("y", apply(program, "exp", x))
    return program


def run(program: ArrayProgram, sites: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(0, 0.5, (4, 6) if "up" in name else (6, 4)).astype("f4") for name in program.stored}
    x = rng.standard_normal((5, 4)).astype("f4")
    with Session(compiled(program.text(), sites)) as session:
        session.load_weights(weights)
        result = session.run({"rows": x})["y"]
    h = x * 0.5
    for up, down in zip(program.stored[::2], program.stored[1::2], strict=True):
        hidden = h @ weights[up]
        h = h + (hidden / (1 + np.exp(-hidden))) @ weights[down]
    np.testing.assert_allclose(result, np.exp(h), rtol=1e-4)
    return result


@pytest.mark.parametrize(("names", "call"), [
    (["layers.{}.{}"], "x = layer(x, i)"),
    (["h.1{}.{}"], "x = layer(x, i + 10)"),
    (["even.{}.{}", "odd.{}.{}"], "(x, 2 * i, 2 * i + 1)"),
])  # fmt: skip
def test_layers_are_repeated(names: list[str], call: str) -> None:
    program = make_program(6, names)
    text = program.text()
    assert text.count("silu(") == len(names)
    assert f"repeat {6 // len(names)} as i {{ " in text
    assert call in text
    for sites in (1, 3):
        run(program, sites)


@pytest.mark.parametrize("names", [["layers.{}.{}"], ["a.{}.{}", "b.{}.{}", "c.{}.{}", "d.{}.{}", "e.{}.{}"]])
def test_what_differs_stays_as_it_is(names: list[str]) -> None:
    """Values of each layer that are saved, and names that do not count."""
    program = make_program(5, names, save_all=len(names) == 1)
    assert "repeat" not in program.text()
    run(program, 2)
