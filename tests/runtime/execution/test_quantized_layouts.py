"""Quantized weights from files: the layouts of compressed-tensors, GPTQ and AWQ, written here value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from einc_runtime.dtypes import Array
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.weights import read_weights
from einc_runtime.plan.schema import Tensor

ROWS, DEPTH, GROUP = 16, 64, 32


def parts(
    layout: str, bits: int, zeros: bool = True, base: str = "m", rows: str = "", count: int = ROWS
) -> list[Tensor]:
    """The tensors of a plan, as the front end declares them."""
    names = {"": ("{}", "{}_scale", "{}_zero_point")}.get(
        layout, tuple(f"{layout}:{{}}.{part}" for part in ("qweight", "scales", "qzeros"))
    )
    stored = [name.format("m") + rows for name in names]
    values = (count, DEPTH // 2, "i4x2") if bits == 4 else (count, DEPTH, "i8")
    shapes = [values, (count, DEPTH // GROUP, "f16"), (count, DEPTH // GROUP, "i8")]
    return [
        Tensor(f"w.{k}", ("n", "k"), shape[:2], shape[2], "weight", name)  # type: ignore[arg-type]
        for k, (shape, name) in enumerate(zip(shapes, stored, strict=True))
        if k < 2 or zeros
    ]


def numbers(bits: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Unsigned values [n, k], scales and unsigned zero points [n, groups], which are at least 1."""
    rng = np.random.default_rng(seed)
    limit = 1 << bits
    values = rng.integers(0, limit, (ROWS, DEPTH))
    zeros = rng.integers(1, limit, (ROWS, DEPTH // GROUP))
    return values, rng.standard_normal(zeros.shape).astype("f2"), zeros


def words(values: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Rows of values in words, one value after the other from the lowest bits, or in an order."""
    each = 32 // bits
    found = np.zeros((len(values), -(-values.shape[1] // each)), np.int64)
    for row in range(len(values)):
        for word in range(found.shape[1]):
            for place in range(each):
                column = word * each + (order[place] if order else place)
                if column < values.shape[1]:
                    found[row, word] |= int(values[row, column]) << bits * place
    return found.astype(np.uint32).view(np.int32)


def widen(arrays: dict[str, Array], bits: int) -> Array:
    """The weight of a plan's parts, element by element."""
    values, scales = arrays["w.0"], arrays["w.1"].astype("f8")
    zeros = arrays.get("w.2")
    found = np.empty((len(values), DEPTH))
    for n, k in np.ndindex(*found.shape):
        byte = int(values[n, k // 2 if bits == 4 else k])
        number = ((byte >> 4 * (k % 2)) & 15) - 8 if bits == 4 else byte
        found[n, k] = (number - (0 if zeros is None else int(zeros[n, k // GROUP]))) * scales[n, k // GROUP]
    return found


def expected(values: Array, scales: Array, zeros: Array | int) -> Array:
    spread = zeros if isinstance(zeros, int) else np.repeat(zeros, GROUP, 1)
    wide: Array = (values - spread) * np.repeat(scales.astype("f8"), GROUP, 1)
    return wide


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_stores_words_along_k_and_zero_points_less_one(bits: int) -> None:
    values, scales, zeros = numbers(bits)
    files: dict[str, Any] = {
        "m.qweight": words(values.T.T, bits).T.copy(),
        "m.scales": scales.T.copy(),
        "m.qzeros": words((zeros - 1).T, bits),
        "m.g_idx": np.arange(DEPTH, dtype="i4") // GROUP,
    }
    np.testing.assert_array_equal(
        widen(read_weights(parts("gptq", bits), files), bits), expected(values, scales, zeros)
    )
    files["m.qzeros"] = words(zeros.T, bits)
    found = widen(read_weights(parts("gptq_v2", bits), files), bits)
    np.testing.assert_array_equal(found, expected(values, scales, zeros))
    some = read_weights(parts("gptq_v2", bits, rows="[3:9]", count=6), files)
    np.testing.assert_array_equal(widen(some, bits), expected(values, scales, zeros)[3:9])


def test_an_order_by_activations_is_refused() -> None:
    values, scales, zeros = numbers(4)
    order = np.arange(DEPTH, dtype="i4") // GROUP
    files = {
        "m.qweight": words(values, 4).T,
        "m.scales": scales.T,
        "m.qzeros": words(zeros.T, 4),
        "m.g_idx": order[::-1],
    }
    with pytest.raises(ArrayFault, match="desc_act"):
        read_weights(parts("gptq", 4), files)


def test_a_zero_point_that_no_byte_holds_is_refused() -> None:
    values, scales, zeros = numbers(8)
    zeros[3, 1] = 256
    files = {"m.qweight": words(values, 8).T, "m.scales": scales.T, "m.qzeros": words((zeros - 1).T, 8)}
    with pytest.raises(ArrayFault, match="zero point of 256"):
        read_weights(parts("gptq", 8), files)


def test_awq_interleaves_columns() -> None:
    values, scales, zeros = numbers(4)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    files = {"m.qweight": words(values.T, 4, order), "m.scales": scales.T, "m.qzeros": words(zeros.T, 4, order)}
    np.testing.assert_array_equal(widen(read_weights(parts("awq", 4), files), 4), expected(values, scales, zeros))


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors_pack_rows_and_zero_points_along_rows(bits: int) -> None:
    values, scales, zeros = numbers(bits, 1)
    files: dict[str, Any] = {
        "m_packed": words(values, bits),
        "m_scale": scales,
        "m_zero_point": words(zeros.T, bits).T.copy(),
    }
    np.testing.assert_array_equal(widen(read_weights(parts("", bits), files), bits), expected(values, scales, zeros))
    without = read_weights(parts("", bits, zeros=False), files)
    np.testing.assert_array_equal(widen(without, bits), expected(values, scales, 1 << bits - 1))
    files["m_zero_point"] = (zeros - (1 << bits - 1)).astype("i1")
    np.testing.assert_array_equal(widen(read_weights(parts("", bits), files), bits), expected(values, scales, zeros))


def test_integers_of_eight_bits_and_pairs_are_read_as_they_lie() -> None:
    values, scales, _ = numbers(8, 2)
    files: dict[str, Any] = {"m": (values - 128).astype("i1"), "m_scale": scales}
    found = read_weights(parts("", 8, zeros=False), files)
    np.testing.assert_array_equal(widen(found, 8), expected(values, scales, 128))
    values, scales, _ = numbers(4, 3)
    files = {"m": (values[:, 0::2] + 16 * values[:, 1::2]).astype("u1"), "m_scale": scales}
    found = read_weights(parts("", 4, zeros=False), files)
    np.testing.assert_array_equal(widen(found, 4), expected(values, scales, 8))


def test_what_is_missing_or_of_another_shape_is_said() -> None:
    values, scales, zeros = numbers(4)
    files = {"m.qweight": words(values, 4).T[:-1], "m.scales": scales.T, "m.qzeros": words(zeros.T, 4)}
    with pytest.raises(ArrayFault, match=r"w.0.*should be"):
        read_weights(parts("gptq", 4), files)
    with pytest.raises(ArrayFault, match=r"gptq:m.qweight.*is not there"):
        read_weights(parts("gptq", 4), {"m.scales": scales.T})
