"""Folders of safetensors files: with and without an index, and with false indices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.safetensors import INDEX_FILE, list_stored_names
from einc_runtime.execution.data.weights import iterate_weights, read_weights
from einc_runtime.plan.schema import Tensor

X = np.arange(12, dtype="f4").reshape(3, 4)


def weight(name: str, dtype: str = "f32", shape: tuple[int, ...] = (3, 4), stored: str | None = None) -> Tensor:
    dims = tuple(f"d{k}" for k in range(len(shape)))
    return Tensor(name, dims, shape, dtype, "weight", stored=stored)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of a model and one beside them that is none of it."""
    safetensors.numpy.save_file({"a": X, "b": X + 1}, tmp_path / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file({"c": X + 2}, tmp_path / "model-00002-of-00002.safetensors")
    safetensors.numpy.save_file({"a": X + 9, "d": X}, tmp_path / "consolidated.safetensors")
    write_index(tmp_path, {"a": 1, "b": 1, "c": 2})
    return tmp_path


def write_index(folder: Path, files: Any) -> None:
    named = files
    if isinstance(files, dict):
        named = {n: f"model-0000{f}-of-00002.safetensors" if isinstance(f, int) else f for n, f in files.items()}
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": named}))


def test_the_index_says_which_files_count(folder: Path) -> None:
    found = read_weights([weight("c"), weight("a")], folder)
    np.testing.assert_array_equal(found["a"], X)
    np.testing.assert_array_equal(found["c"], X + 2)
    with pytest.raises(ArrayFault, match="weight 'd' is not there"):
        read_weights([weight("d")], folder)
    assert list_stored_names(str(folder)) == {"a", "b", "c"}


def test_names_are_known_before_the_files_are_there(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert list_stored_names(str(folder)) == {"a", "b", "c"}
    with pytest.raises(ArrayFault, match="no file model-00002"):
        read_weights([weight("a")], folder)


def test_names_without_an_index(tmp_path: Path) -> None:
    assert list_stored_names(str(tmp_path)) is None
    safetensors.numpy.save_file({"a": X}, tmp_path / "model.safetensors")
    assert list_stored_names(str(tmp_path)) == {"a"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": 2}, "'a' is not in model-00002"),
        ({"a": "../model.safetensors"}, "not the name of a .safetensors file"),
        ({"a": "/etc/passwd"}, "not the name of a .safetensors file"),
        ({"a": "a\0.safetensors"}, "not the name of a .safetensors file"),
        ({"a": "model.bin"}, "not the name of a .safetensors file"),
        ({"a": "missing.safetensors", "b": "absent.safetensors"}, "no file absent.*\n.*no file missing"),
        ({"a": 1.5}, "not the name of a .safetensors file"),
        ({"a": ["x"]}, "not the name of a .safetensors file"),
        ({}, "no 'weight_map'"),
        ([], "no 'weight_map'"),
        (None, "no 'weight_map'"),
    ],
)
def test_a_false_index_is_one_error(folder: Path, files: Any, message: str) -> None:
    write_index(folder, files)
    with pytest.raises(ArrayFault, match=message):
        read_weights([weight("a")], folder)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"nul", b"\xff\xfe", b"[" * 100_000,
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        b'{"weight_map": {"a": 1' + b"0" * 5000 + b"}}",
    ],
)  # fmt: skip
def test_an_index_that_is_not_json_is_one_error(folder: Path, text: bytes) -> None:
    (folder / INDEX_FILE).write_bytes(text)
    with pytest.raises(ArrayFault):
        read_weights([weight("a")], folder)


def test_an_index_that_is_no_file(folder: Path) -> None:
    (folder / INDEX_FILE).unlink()
    os.mkfifo(folder / INDEX_FILE)
    with pytest.raises(ArrayFault, match="not a regular file"):
        read_weights([weight("a")], folder)


def test_arrays_are_read_as_they_are_stored(folder: Path) -> None:
    """For wider declared types, too; `read_weights` converts them."""
    (_, array), (_, wide) = iterate_weights([weight("a", shape=(3, 2, 2)), weight("b", "f64")], folder)
    assert array.shape == (3, 2, 2)
    assert array.dtype == np.float32
    assert wide.dtype == np.float32
    assert read_weights([weight("b", "f64")], folder)["b"].dtype == np.float64


@pytest.mark.parametrize("zipped", [False, True])
def test_names_of_rows_and_of_several_tensors(tmp_path: Path, zipped: bool) -> None:
    arrays = {"qkv": np.arange(40, dtype="f4").reshape(10, 4), "e.0.up": X, "e.1.up": X + 20, "r[1:3]": X * 2}
    arrays |= {"e.2.down": X, "r": X}
    source = tmp_path / ("w.npz" if zipped else "w.safetensors")
    if zipped:
        np.savez(source, **arrays, allow_pickle=False)
    else:
        safetensors.numpy.save_file(arrays, source)
    wanted = [
        weight("k", shape=(2, 3, 4), stored="qkv[2:8]"),
        weight("up", "bf16", (2, 3, 4), "e.*.up"),
        weight("r", stored="r[1:3]"),  # a tensor that is called just so
        weight("qkv", shape=(10, 4), stored="e.*.gate"),  # or the weight's own name
    ]
    found = read_weights(wanted, source)
    np.testing.assert_array_equal(found["k"], arrays["qkv"][2:8].reshape(2, 3, 4))
    np.testing.assert_array_equal(found["up"].astype("f4"), np.stack([X, X + 20]))
    np.testing.assert_array_equal(found["r"], X * 2)
    np.testing.assert_array_equal(found["qkv"], arrays["qkv"])
    if not zipped:
        (_, rows) = next(iterate_weights(wanted[:1], source))
        assert not rows.flags.owndata  # still in the mapped file


@pytest.mark.parametrize(
    ("shape", "stored", "message"),
    [
        ((3, 4), "qkv[8:11]", r"'w' \(stored as 'qkv\[8:11\]'\) stands for rows 8 to 11 of 10"),
        ((3, 4), "qkv[8:5]", "stands for rows 8 to 5 of 10"),
        ((3, 4), "qkv[-3:10]", "is not there"),
        ((3, 4), "one[0:3]", "stands for rows 0 to 3 of 0"),
        ((3, 3, 4), "e.*.up", "'e.2.up' is missing"),
        ((1 << 60, 3, 4), "e.*.up", "'e.2.up' is missing"),
        ((1, 3, 4), "e.*.down", r"is not there"),
        ((2, 3, 4), "x.*", "tensors of different types or shapes"),
        ((2, 4, 3), "e.*.up", r"should be f32\[2, 4, 3\], found f32\[2, 3, 4\]"),
        ((), "e.*.up", "is not there"),
        ((2, 2, 3, 4), "*.*.up", "is not there"),
    ],
)
def test_rows_and_tensors_that_are_not_there(tmp_path: Path, shape: tuple[int, ...], stored: str, message: str) -> None:
    arrays = {"qkv": np.zeros((10, 4), "f4"), "e.0.up": X, "e.1.up": X, "e.2.down": X, "x.0": X, "x.1": X[:2]}
    safetensors.numpy.save_file(arrays | {"one": np.zeros((), "f4")}, tmp_path / "w.safetensors")
    with pytest.raises(ArrayFault, match=message):
        read_weights([weight("w", shape=shape, stored=stored)], tmp_path / "w.safetensors")


@pytest.mark.parametrize(("stored", "declared"), [("f2", "f32"), ("f2", "f64"), ("f4", "f16"), ("f4", "bf16")])
def test_floats_that_may_differ_in_width(tmp_path: Path, stored: str, declared: str) -> None:
    safetensors.numpy.save_file({"a": X.astype(stored)}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", a=X.astype(stored))
    for source in ("w.safetensors", "w.npz"):
        found = read_weights([weight("a", declared)], tmp_path / source)["a"]
        np.testing.assert_array_equal(found.astype("f4"), X)


@pytest.mark.parametrize(("stored", "declared"), [("f2", "bf16"), ("f8", "f32"), ("i4", "f32"), ("f4", "i32")])
def test_other_types_may_not_differ(tmp_path: Path, stored: str, declared: str) -> None:
    safetensors.numpy.save_file({"a": X.astype(stored)}, tmp_path / "w.safetensors")
    with pytest.raises(ArrayFault, match="weight 'a' should be"):
        read_weights([weight("a", declared)], tmp_path / "w.safetensors")
