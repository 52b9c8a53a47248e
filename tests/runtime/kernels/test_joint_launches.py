"""Sources of launches that run several tasks, in numpy: every access is inside an operand, and the results are those of
the CPU's kernels one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import GatedInvocations, Invocation
from einc_runtime.kernels.triton.joint_launches import build_joint_launch, can_join
from einc_runtime.kernels.triton.launches import LaunchSequence, as_layout
from einc_runtime.kernels.triton.quantized import build_stored_gated
from einc_runtime.plan.schema import Block
from tests.support.triton_in_numpy import Arena, run

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """For each test by itself, whichever others run before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(7))


def normal(*shape, dtype="f4"):
    return RNG.normal(0, 1, shape).astype(dtype)


class Case:
    """Parts over arrays by name; arrays that a part makes are zeros at first."""

    def __init__(self, arrays, parts, kept):
        self.arrays, self.parts, self.kept = arrays, parts, kept

    def invocations(self, of):
        return [
            Invocation(
                name, attributes, [of[x] for x in reads], [of[x] for x in writes],
                [Block.whole(self.arrays[x].shape) for x in reads], [Block.whole(self.arrays[x].shape) for x in writes],
            )
            for name, attributes, reads, writes in self.parts
        ]  # fmt: skip

    def expected(self):
        held = {name: array.copy() for name, array in self.arrays.items()}
        for invocation in self.invocations(held):
            kernel = registry.prepare(invocation, "numpy")
            kernel.bind(np.empty(kernel.scratch, np.uint8))()
        return held

    def launched(self, kind):
        arena = Arena()
        placed = {name: arena.place(array, output=True) for name, array in self.arrays.items()}
        for name, array in placed.items():
            arena.readable[array.pointer : array.pointer + self.arrays[name].nbytes] = True
        assert can_join(self.invocations(placed), self.kept)
        layouts = self.invocations({name: as_layout(array) for name, array in placed.items()})
        sequence = build_joint_launch(kind, layouts, self.kept, "sm_90")
        assert sequence is not None
        assert len(sequence.steps) == 1
        status = run(sequence, arena)
        return {name: arena.fetch(array) for name, array in placed.items()}, status

    def agrees(self, kind, tolerance=1e-6):
        results, status = self.launched(kind)
        assert not status
        expected = self.expected()
        made = [name for (_, _, _, writes), kept in zip(self.parts, self.kept, strict=True) if kept for name in writes]
        for name in made:
            np.testing.assert_allclose(results[name].astype("f8"), expected[name].astype("f8"), atol=tolerance)
        return results


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(("norm", "kept"), [("rmsnorm", True), ("layernorm", False)])
def test_rows(dtype, norm, kept):
    """A sum of three copies over the first of them, a residual with a vector, and a norm."""
    arrays = {name: normal(5, 3, 70, dtype=dtype) for name in ("a", "b", "c", "x", "r", "y")}
    arrays |= {"v": normal(70, dtype=dtype), "g": normal(70, dtype=dtype), "beta": normal(70, dtype=dtype)}
    add = {"program": "t0 = add x0 x1; t1 = add t0 x2", "indices": "i j k, i j k, i j k -> i j k"}
    residual = {"program": "t0 = add x0 x1; t1 = mul t0 x2", "indices": "i j k, i j k, k -> i j k"}
    vectors = ["g"] if norm == "rmsnorm" else ["g", "beta"]
    parts = [
        ("map", add, ["a", "b", "c"], ["a"]),
        ("map", residual, ["x", "a", "v"], ["r"]),
        (norm, {"eps": 1e-5, "offset": 1.0}, ["r", *vectors], ["y"]),
    ]
    Case(arrays, parts, [False, kept, True]).agrees("rows", 4e-6 if dtype == "f4" else 4e-3)


ROPE = {"theta": 500.0, "scaling": "none"}


def places(positions, count=4, kept=True, rows=20, turns=None):
    new, heads, width = normal(3, count, 10), 3, 10
    arrays = {
        "q": normal(5, count, 6), "rq": np.zeros((5, count, 6), "f4"), "k": new, "rk": np.zeros_like(new),
        "v": normal(3, count, width), "keys": normal(heads, rows, width), "values": normal(heads, rows, width),
        "positions": np.array(positions), "turns": np.array(positions if turns is None else turns),
    }  # fmt: skip
    turned = "positions" if turns is None else "turns"
    lens = {"cache_lens": [8, rows - 8], "new_lens": [1, count - 1], "in_place": True}
    parts = [
        ("rope", ROPE, ["q", turned], ["rq"]),
        ("rope", ROPE, ["k", turned], ["rk"]),
        ("append", lens, ["keys", "rk", "positions"], ["keys"]),
        ("append", lens, ["values", "v", "positions"], ["values"]),
    ]
    return Case(arrays, parts, [True, kept, True, True])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("positions", [[7, 0, 11, 3], [0, 5, 5, 5], [2, 6, 5, 6]])
@pytest.mark.parametrize("kept", [True, False])
def test_places(positions, kept):
    """Of equal places the last row counts; rotated keys go to the cache, and to a buffer of theirs if it is needed."""
    results = places(positions, kept=kept).agrees("places", 2e-6)
    assert results["rk"].any() == kept


def test_rows_that_do_not_lie_at_their_positions():
    """As in caches that lie in blocks."""
    places([7, 0, 11, 3], turns=[2, 9, 4, 17], kept=False).agrees("places", 2e-6)


@pytest.mark.parametrize("positions", [[8, 0, 1, 2], [0, -1, 1, 2], [0, 1, 2, 12]])
def test_wrong_places_are_told(positions):
    assert places(positions).launched("places")[1] == 1


@pytest.mark.parametrize(("dtype", "kind"), [("f4", "f32"), ("f2", "f16")])
def test_products(dtype, kind):
    """Two of one operand, of which the second writes heads first."""
    arrays = {"x": normal(3, 90, dtype=dtype), "w": normal(40, 90, dtype=dtype), "u": normal(2, 24, 90, dtype=dtype),
              "p": np.zeros((3, 40), dtype), "q": np.zeros((2, 3, 24), dtype)}  # fmt: skip
    one = {"equation": "t d, f d -> t f", "scale": 1.0}
    other = {"equation": "t d, h e d -> h t e", "scale": 0.5}
    parts = [("contract", one, ["x", "w"], ["p"]), ("contract", other, ["x", "u"], ["q"])]
    Case(arrays, parts, [True, True]).agrees("products", 2e-5 if kind == "f32" else 6e-2)


def test_products_of_many_rows_have_no_such_kernel():
    x, w, y = (as_layout(Arena().place(normal(*shape))) for shape in ((17, 30), (20, 30), (17, 20)))
    part = Invocation("contract", {"equation": "t d, f d -> t f", "scale": 1.0}, [x, w], [y])
    assert build_joint_launch("products", [part, part], [True, True], "sm_90") is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
@pytest.mark.parametrize("stored", ["f8e4m3", "i8", "i4x2"])
def test_two_products_with_stored_weights_and_the_map_of_both(stored, places):
    """silu(gate) * up without the rounding of either; what the CPU computes one by one, in f32."""
    rng = np.random.default_rng(5)
    depth, columns, group = 96, 70, 32
    packed = depth // 2 if stored == "i4x2" else depth
    arrays = {"x": normal(5, depth)}
    for name in ("gate", "up"):
        values = rng.integers(0, 120, (columns, packed), np.uint8)
        arrays[name] = values.view(storage_dtype(stored))
        arrays[f"{name} scales"] = (rng.random((columns, depth // group)) / 60).astype("f4")
        if stored != "f8e4m3":
            arrays[f"{name} zeros"] = rng.integers(-7, 7, (columns, depth // group)).astype("i1")
    weights = {name: [key for key in arrays if key.startswith(name)] for name in ("gate", "up")}
    results = {name: np.zeros((5, columns), "f4") for name in ("gate", "up", "y")}
    program = "t0 = silu x0; t1 = mul t0 x1" if places == (0, 1) else "t0 = silu x1; t1 = mul t0 x0"
    operands = ["gate", "up"] if places == (0, 1) else ["up", "gate"]
    product, joined = (
        {"equation": "t k, n k -> t n", "group": group},
        {"program": program, "indices": "t n, t n -> t n"},
    )
    for name in ("gate", "up"):
        inputs = [arrays["x"], *(arrays[key] for key in weights[name])]
        bind(Invocation("quantized_contract", product, inputs, [results[name]]))
    bind(Invocation("map", joined, [results[name] for name in operands], [results["y"]]))
    arena = Arena()
    placed = {name: as_layout(arena.place(array)) for name, array in arrays.items()}
    middle = {name: as_layout(arena.place(results[name])) for name in ("gate", "up")}
    target = arena.place(np.zeros((5, columns), "f4"), output=True)
    parts = [
        Invocation(
            "quantized_contract", product, [placed["x"], *(placed[key] for key in weights[name])], [middle[name]]
        )
        for name in ("gate", "up")
    ]
    then = Invocation("map", joined, [middle[name] for name in operands], [as_layout(target)])
    pair = GatedInvocations(*parts, then, places)
    call = build_stored_gated(pair)
    run(LaunchSequence((call,)), arena)
    np.testing.assert_allclose(arena.fetch(target), results["y"], rtol=2e-5, atol=2e-5)
    wrong = Invocation("map", {**joined, "indices": "t n, t n -> n t"}, then.inputs, [as_layout(target).T])
    assert build_stored_gated(replace(pair, then=wrong)) is None


def bind(invocation):
    kernel = registry.prepare(invocation, "numpy")
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
