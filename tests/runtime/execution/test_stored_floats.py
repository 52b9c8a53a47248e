"""Floats of 8 and 4 bits in files, read as they are widened by their definitions."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.data.weights import read_weights
from einc_runtime.plan.schema import Tensor

SOURCE = np.random.default_rng(7)


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file of arrays with the types that it calls so."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def weight(shape: tuple[int, ...], dtype: str = "f32", stored: str = "x.weight") -> Tensor:
    return Tensor("w", tuple(f"d{n}" for n in range(len(shape))), shape, dtype, "weight", stored)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "grid", "end"),
    [
        ((300, 200), (3, 2), "_scale_inv"),  # blocks of 128, the last cut off
        ((64, 96), (2, 3), "_scale_inv"),  # of 32
        ((5, 7), (5, 1), "_scale"),  # a scale for each row
        ((5, 7), (1,), "_scale"),
        ((5, 7), (5,), "_scale"),
        ((5, 7), None, ""),
    ],
)
def test_floats_of_8_bits_are_scaled_by_blocks(
    tmp_path: Path, shape: tuple[int, int], grid: tuple[int, ...] | None, end: str
) -> None:
    values = SOURCE.normal(size=shape).astype(ml_dtypes.float8_e4m3fn)
    scales = SOURCE.uniform(0.5, 2, grid or (1,)).astype("f4")
    tensors = {"x.weight": ("F8_E4M3", values)} | ({f"x.weight{end}": ("F32", scales)} if grid else {})
    write_tensors(tmp_path / "model.safetensors", tensors)
    expected = values.astype("f4")
    for row in range(shape[0]):
        for column in range(shape[1]):
            at = (row, column)
            if grid is not None and len(grid) == 2:
                block = [128 if n == -(-extent // 128) else extent // n for n, extent in zip(grid, shape, strict=True)]
                expected[at] *= scales[row // block[0], column // block[1]]
            elif grid is not None:
                expected[at] *= scales[row if grid == (5,) else 0]
    for source in (tmp_path, tmp_path / "model.safetensors"):
        np.testing.assert_array_equal(read_weights([weight(shape)], source)["w"], expected)
    half = (2, shape[1])
    rows = read_weights([weight(half, "bf16", "x.weight[1:3]")], tmp_path)["w"]
    np.testing.assert_array_equal(rows, expected[1:3].astype(ml_dtypes.bfloat16))


def test_exponents_are_scales_too(tmp_path: Path) -> None:
    values = SOURCE.normal(size=(4, 6)).astype(ml_dtypes.float8_e5m2)
    scales = np.array([[0.25, 8.0]]).astype(ml_dtypes.float8_e8m0fnu)
    tensors = {"x.weight": ("F8_E5M2", values), "x.weight_scale_inv": ("F8_E8M0", scales)}
    write_tensors(tmp_path / "model.safetensors", tensors)
    expected = values.astype("f4") * np.repeat(np.array([[0.25, 8.0]], "f4"), 3, 1)
    np.testing.assert_array_equal(read_weights([weight((4, 6))], tmp_path)["w"], expected)


def test_scales_that_do_not_fit_are_one_error(tmp_path: Path) -> None:
    values = np.zeros((5, 7), ml_dtypes.float8_e4m3fn)
    for grid in ((3, 1), (2, 2, 2), (0, 1)):
        tensors = {"x.weight": ("F8_E4M3", values), "x.weight_scale_inv": ("F32", np.ones(grid, "f4"))}
        write_tensors(tmp_path / "model.safetensors", tensors)
        with pytest.raises(ArrayFault, match=r"'x.weight_scale_inv' has scales of \[.*, which are none of \[5, 7\]"):
            read_weights([weight((5, 7))], tmp_path)


def test_pairs_of_4_bits_have_exponents(tmp_path: Path) -> None:
    """As gpt-oss has the matrices of its experts, [experts, rows, groups, 16], in rows as a plan has them."""
    blocks = SOURCE.integers(0, 256, (2, 5, 3, 16)).astype("u1")
    exponents = SOURCE.integers(120, 134, (2, 5, 3)).astype("u1")
    tensors = {"e.up_blocks": ("U8", blocks), "e.up_scales": ("U8", exponents)}
    write_tensors(tmp_path / "model.safetensors", tensors)
    parts = [weight((2, 5, 48), "f4x2", "packed:e.up_blocks"), weight((2, 5, 3), "f8e8m0", "e.up_scales")]
    stored = read_weights([parts[0], replace(parts[1], name="s")], tmp_path)
    assert stored["w"].tobytes() == blocks.tobytes()
    assert stored["s"].tobytes() == exponents.tobytes()
    write_tensors(tmp_path / "model.safetensors", tensors | {"e.up_scales": ("U8", exponents[:, :, :2].copy())})
    with pytest.raises(ArrayFault, match="should be"):
        read_weights(parts[1:], tmp_path)


def test_floats_of_4_bits_have_the_name_of_the_whole(tmp_path: Path) -> None:
    names = ("a_blocks", "a_scales", "b_blocks", "c_blocks", "c_scales", "c")
    write_tensors(tmp_path / "model.safetensors", {name: ("U8", np.zeros((2, 1), np.uint8)) for name in names})
    assert list_stored_names(str(tmp_path)) == {*names, "a"}


def test_floats_of_8_bits_are_read_as_they_are_where_a_plan_has_them_so(tmp_path: Path) -> None:
    """With scales of blocks for all rows of each, of which the last has fewer; and of rows."""
    values = SOURCE.normal(size=(300, 256)).astype(ml_dtypes.float8_e4m3fn)
    blocks, rows = (
        SOURCE.uniform(0.5, 2, (3, 2)).astype("f4"),
        SOURCE.uniform(0.5, 2, (300, 1)).astype(ml_dtypes.bfloat16),
    )
    tensors = {
        "x.weight": ("F8_E4M3", values), "x.weight_scale_inv": ("F32", blocks),
        "y.weight": ("F8_E4M3", values), "y.weight_scale": ("BF16", rows),
    }  # fmt: skip
    write_tensors(tmp_path / "model.safetensors", tensors)
    wanted = [
        Tensor("a", ("h", "n", "k"), (3, 100, 256), "f8e4m3", "weight", "x.weight"),
        Tensor("b", ("h", "n", "g"), (3, 100, 2), "f32", "weight", "blocks:x.weight_scale"),
        Tensor("c", ("n", "k"), (300, 256), "f8e4m3", "weight", "y.weight"),
        Tensor("d", ("n",), (300,), "f32", "weight", "y.weight_scale"),
    ]
    found = read_weights(wanted, tmp_path)
    for name in "ac":
        assert np.array_equal(found[name].view(np.uint8).reshape(300, 256), values.view(np.uint8))
    assert np.array_equal(found["b"].reshape(300, 2), np.repeat(blocks, 128, 0)[:300])
    assert np.array_equal(found["d"], rows[:, 0].astype("f4"))
