"""The kernel that multiplies each slot by the expert that it picked, against sums in f64 written down here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.dtypes import Array
from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import expert_groups
from einc_runtime.kernels.numpy import experts
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.schema import Block
from tests.support.kernel_runs import run_compiled
from tests.support.stored_experts import FORMS, StoredExperts, draw_experts

pytestmark = pytest.mark.usefixtures("provider")
TYPES = {"f32": np.dtype("f4"), "f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16), "f64": np.dtype("f8")}
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "f64": 1e-13}


def multiply(x: Array, weight: Array, picks: Array, lower: int = 0) -> Array:
    result = np.zeros((*picks.shape, weight.shape[1]))
    for token, slot in np.ndindex(*picks.shape):
        expert = picks[token, slot] - lower
        if 0 <= expert < len(weight):
            row = x[token] if x.ndim == 2 else x[token, slot]
            result[token, slot] = weight[expert].astype("f8") @ row.astype("f8")
    return result


def invoke(x: Array, weight: Array, picks: Array, target: Array, count: int, lower: int = 0, **more: Any) -> Any:
    blocks = [Block((0,) * a.ndim, a.shape) for a in (x, weight, picks, target)]
    blocks[1] = Block((lower, 0, 0), (lower + len(weight), *weight.shape[1:]))
    attributes = {"experts": count, **more}
    return Invocation("expert_matmul", attributes, [x, weight, picks], [target], blocks[:3], blocks[3:])


def draw(kind: str, tokens: int, slots: int, count: int, n: int, k: int, *, each: bool, seed: int = 3) -> list[Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, slots, k) if each else (tokens, k)).astype(TYPES[kind])
    weight = rng.standard_normal((count, n, k)).astype(TYPES[kind])
    return [x, weight, rng.integers(0, count, (tokens, slots))]


def require_close(found: Array, expected: Array, kind: str) -> None:
    assert np.abs(found.astype("f8") - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


# type, tokens, slots, experts, rows and columns of each, whether rows differ between slots
CASES = [
    ("f32", 37, 2, 8, 19, 33, False), ("f32", 5, 3, 11, 17, 70, True), ("f32", 1, 8, 128, 24, 64, False),
    ("bf16", 37, 2, 8, 19, 33, True), ("bf16", 1, 4, 9, 32, 96, True), ("bf16", 200, 2, 3, 40, 64, False),
    ("f16", 21, 2, 5, 16, 64, False), ("f16", 4, 1, 3, 1, 1, True), ("f64", 9, 2, 4, 6, 5, False),
    ("f32", 100, 2, 3, 70, 100, True), ("f32", 30, 2, 4, 37, 81, False), ("bf16", 12, 2, 5, 33, 97, False),
]  # fmt: skip


@pytest.mark.parametrize("reproducible", [False, True], ids=["fast", "reproducible"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_each_slot_is_multiplied_by_its_expert(case: Any, reproducible: bool) -> None:
    kind, tokens, slots, count, n, k, each = case
    x, weight, picks = draw(kind, tokens, slots, count, n, k, each=each)
    target = np.full((tokens, slots, n), 7, TYPES[kind])
    more = {ATTRIBUTE: True} if reproducible else {}
    require_close(run_compiled(invoke(x, weight, picks, target, count, **more)), multiply(x, weight, picks), kind)


@pytest.mark.parametrize("reproducible", [False, True], ids=["fast", "reproducible"])
@pytest.mark.parametrize("case", CASES[1::2], ids=lambda case: "-".join(map(str, case)))
def test_matrices_may_lie_transposed(case: Any, reproducible: bool) -> None:
    kind, tokens, slots, count, n, k, each = case
    x, weight, picks = draw(kind, tokens, slots, count, n, k, each=each)
    more = {"transposed": True, **({ATTRIBUTE: True} if reproducible else {})}
    lying, target = np.ascontiguousarray(weight.swapaxes(1, 2)), np.full((tokens, slots, n), 7, TYPES[kind])
    require_close(run_compiled(invoke(x, lying, picks, target, count, **more)), multiply(x, weight, picks), kind)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_part_of_the_experts_puts_out_zeros_for_the_others(kind: str) -> None:
    x, weight, picks = draw(kind, 23, 2, 9, 7, 12, each=False)
    target = np.full((23, 2, 7), 7, TYPES[kind])
    found = run_compiled(invoke(x, weight[3:7], picks, target, 9, lower=3))
    expected = multiply(x, weight[3:7], picks, lower=3)
    others = (picks < 3) | (picks >= 7)
    assert others.any()
    assert (found[others] == 0).all()
    require_close(found, expected, kind)


def invoke_stored(x: Array, weight: StoredExperts, picks: Array, target: Array, part: slice, **more: Any) -> Any:
    """The product with a part of the experts."""
    count, (values, *beside) = len(weight.wide), (array[part] for array in weight.operands)
    made = invoke(x, values, picks, target, count, part.start, group=weight.group, **more)
    blocks = [*made.input_blocks[:2], *(Block((0,) * array.ndim, array.shape) for array in (*beside, picks))]
    return replace(made, inputs=[*made.inputs[:2], *beside, picks], input_blocks=blocks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "tokens", "slots", "n", "k", "each", "reproducible"), [
    ("f32", 19, 2, 7, 96, True, False), ("bf16", 5, 3, 21, 64, False, False), ("f16", 40, 2, 5, 32, True, False),
    ("bf16", 9, 2, 6, 160, False, True),
])  # fmt: skip
def test_experts_are_read_as_they_are_stored(
    form: str, kind: str, tokens: int, slots: int, n: int, k: int, each: bool, reproducible: bool
) -> None:
    weight = draw_experts(form, 6, n, k, TYPES[kind])
    x, _, picks = draw(kind, tokens, slots, 6, n, k, each=each)
    more = {ATTRIBUTE: True} if reproducible else {}
    for part in (slice(0, 6), slice(1, 4)):
        target = np.full((tokens, slots, n), 7, TYPES[kind])
        found = run_compiled(invoke_stored(x, weight, picks, target, part, **more))
        require_close(found, multiply(x, weight.wide[part], picks, lower=part.start), kind)


def test_strided_views_and_constant_weights() -> None:
    """Rows, a weight stored the other way round, picks of 32 bits, and a result with gaps."""
    rng = np.random.default_rng(5)
    x, wide = rng.standard_normal((11, 3, 48)).astype("f4")[:, :, ::2], rng.standard_normal((24, 5, 18)).astype("f4")
    weight = wide.transpose(1, 2, 0)
    weight.flags.writeable = False
    picks = rng.integers(0, 5, (3, 11)).astype("i4").T
    room = np.full((11, 3, 36), 7, "f4")
    found = run_compiled(invoke(x, weight, picks, room[:, :, ::2], 5))
    require_close(found, multiply(x, weight, picks), "f32")
    assert (room[:, :, 1::2] == 7).all()


def test_picks_change_from_run_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds of products than are kept, and more rows of an expert than are multiplied at a time."""
    monkeypatch.setattr(experts, "KEPT", 3)
    monkeypatch.setattr(experts, "EXPERT_ROWS", 4)
    x, weight, picks = draw("f32", 15, 2, 6, 18, 64, each=True)
    target = np.full((15, 2, 18), 7, "f4")
    ways = [np.full((15, 2), 5), np.arange(30).reshape(15, 2) % 6, np.minimum(np.arange(30).reshape(15, 2), 4)]
    for way in ways:
        run_compiled(invoke(x, weight, picks, target, 6), (picks, way))
        require_close(target, multiply(x, weight, way), "f32")


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_experts_have_any_number_of_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, as many as a product has, one more, and so many that they are multiplied in parts."""
    monkeypatch.setattr(expert_groups, "MAX_PANEL_ROWS", {True: 64, False: 48})
    counts = [1, 0, 2, 3, 5, 8, 9, 16, 17, 33, 70, 0]
    way = np.random.default_rng(4).permutation(np.repeat(np.arange(len(counts)), counts)).reshape(-1, 2)
    x, weight, picks = draw(kind, len(way), 2, len(counts), 21, 67, each=True)
    target = np.full((len(way), 2, 21), 7, TYPES[kind])
    run_compiled(invoke(x, weight[1:], picks, target, len(counts), 1), (picks, way))
    require_close(target, multiply(x, weight[1:], way, 1), kind)
    assert (target[way == 0] == 0).all()


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_row_has_the_same_bits_whatever_is_beside_it(tokens: int) -> None:
    x, weight, picks = draw("bf16", 60, 2, 4, 40, 96, each=False)
    whole, part = np.zeros((60, 2, 40), TYPES["bf16"]), np.zeros((tokens, 2, 40), TYPES["bf16"])
    run_compiled(invoke(x, weight, picks, whole, 4, **{ATTRIBUTE: True}))
    run_compiled(invoke(x[9 : 9 + tokens], weight, picks[9 : 9 + tokens], part, 4, **{ATTRIBUTE: True}))
    assert part.tobytes() == whole[9 : 9 + tokens].tobytes()


@pytest.mark.parametrize(("pick", "words"), [(-1, "a pick is -1; experts are 0 to 5"), (6, "a pick is 6; experts are")])
def test_a_pick_that_is_no_expert(pick: int, words: str) -> None:
    x, weight, picks = draw("f32", 4, 2, 6, 3, 5, each=False)
    picks[2, 1] = pick
    with pytest.raises(ValueFault, match=words):
        run_compiled(invoke(x, weight[:2], picks, np.zeros((4, 2, 3), "f4"), 6))
