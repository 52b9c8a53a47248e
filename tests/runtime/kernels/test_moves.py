"""Many copies as one call: the same bytes as numpy's assignments and no others, and numpy where it is faster."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.moves import MAX_CHEAP_ROWS, MIN_MOVES, compile_moves
from einc_runtime.kernels.registry import prepare
from tests.support.property_examples import examples

pytestmark = pytest.mark.skipif(
    not compiler.is_available(), reason="llvmlite is not installed, or not for this processor"
)
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)


@st.composite
def layouts(draw):
    """Slices of equal shape of two arrays, each dimension at an offset of its own."""
    shape = [draw(st.integers(1, 5)) for _ in range(draw(st.integers(0, 3)))] + [draw(st.integers(64, 90))]
    sides = []
    for _ in range(2):
        before = [draw(st.integers(0, 2)) for _ in shape]
        after = [draw(st.integers(0, 2)) for _ in shape]
        sides.append(
            (
                tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True)),
                tuple(slice(b, b + n) for b, n in zip(before, shape, strict=True)),
            )
        )
    return sides


@examples(60)
@given(
    st.lists(layouts(), min_size=MIN_MOVES, max_size=9), st.sampled_from(["f4", "f2", "?", "i8", BF16]), st.integers(0)
)
def test_every_piece_is_copied_and_nothing_else_changes(pieces, dtype, seed):
    rng = np.random.default_rng(seed)

    def room(shape):
        return rng.integers(0, 2, (*shape, np.dtype(dtype).itemsize), dtype="u1").view(dtype)[..., 0]

    sources = [room(shape) for (shape, _), _ in pieces]
    targets = [room(shape) for _, (shape, _) in pieces]
    expected = [target.copy() for target in targets]
    for before, source, ((_, here), (_, there)) in zip(expected, sources, pieces, strict=True):
        before[there] = source[here]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)
        run = compile_moves(
            [source[here] for source, ((_, here), _) in zip(sources, pieces, strict=True)],
            [target[there] for target, (_, (_, there)) in zip(targets, pieces, strict=True)],
            1,
        )
    assert isinstance(run, compiler.CompiledCall)
    run()
    for target, before in zip(targets, expected, strict=True):
        assert target.tobytes() == before.tobytes()


def test_numpy_copies_few_or_short_rows(always, monkeypatch):
    whole = [np.ones((6, 40), "f4") for _ in range(MIN_MOVES)]
    narrow = [array[:, :15] for array in whole]
    empty = [array[:0] for array in whole]
    turned = [np.ones((40, 6), "f4").T for _ in range(MIN_MOVES)]
    room = [np.zeros((6, 40), "f4") for _ in range(MIN_MOVES)]
    assert compile_moves(whole, room, 1) is not None
    assert compile_moves(whole[1:], room[1:], 1) is None
    assert compile_moves([*whole[1:], empty[0]], [*room[1:], room[0][:0]], 1) is None
    many = [np.ones((MAX_CHEAP_ROWS + 1, 40), "f4")[:, :15] for _ in range(MIN_MOVES)]
    assert compile_moves(narrow, [array[:, :15] for array in room], 1) is not None
    assert compile_moves(many, [np.zeros_like(array) for array in many], 1) is None
    assert compile_moves(turned, room, 1) is None
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", MIN_MOVES * 240 + 1)
    assert compile_moves(whole, room, 1) is None


def test_small_copies_that_come_often_are_compiled(monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 1000)
    monkeypatch.setattr(compiler, "INVOCATION", 0)
    x = np.ones((10, 10), "f4")

    def run(repetitions):
        attributes = {"program": "t0 = exp x0", "indices": "i j -> i j"}
        kernel = prepare(Invocation("map", attributes, [x], [np.empty_like(x)], repetitions=repetitions))
        return kernel.bind(np.empty(kernel.scratch + 64, np.uint8))

    assert not isinstance(run(1), compiler.CompiledCall)
    assert not isinstance(run(9), compiler.CompiledCall)
    assert isinstance(run(10), compiler.CompiledCall)
