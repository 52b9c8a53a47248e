"""Weights in parts: blocks are put together, only those that are wanted are read, and what cannot be is one error."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.parts import find_parts, name_block
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.execution.data.weights import iterate_weights, read_weights
from einc_runtime.plan.schema import Block
from tests.support.array_cases import tensor

W = np.arange(35, dtype=np.float32).reshape(5, 7)
LEFT, RIGHT = Block((0, 0), (5, 3)), Block((0, 2), (5, 7))  # which overlap
SHAPE = (5, 7)


def weight(dtype="f32", shape=SHAPE, stored=None):
    return tensor(dtype, shape, "w", "weight", stored=stored)


def save(folder, *blocks, name="w", values=W):
    for n, block in enumerate(blocks):
        part = np.ascontiguousarray(values[tuple(map(slice, block.lower, block.upper))])
        safetensors.numpy.save_file({name_block(name, block, SHAPE): part}, folder / f"{n}.safetensors")


def test_names_say_where_blocks_lie():
    assert name_block("w", LEFT, SHAPE) == "w[0:5, 0:3]"
    assert name_block("w", Block((0, 0), (5, 7)), SHAPE) == "w"
    assert name_block("b", Block((1,), (4,)), (5,)) == "b[1:4]"
    parts = find_parts(["w[0:5, 0:3]", "b[1:4]", "w", "w[0:5,0:3]", "w[0:]", "a[0:1][2:3]"])
    assert {name: [part.block for part in own] for name, own in parts.items()} == {
        "w": [LEFT], "b": [Block((1,), (4,))], "a[0:1]": [Block((2,), (3,))],
    }  # fmt: skip


@pytest.mark.parametrize(("name", "stored"), [("w", None), ("w", "model.w"), ("model.w", "model.w")])
def test_parts_are_put_together_by_either_name(tmp_path, name, stored):
    save(tmp_path, LEFT, RIGHT, name=name)
    np.testing.assert_array_equal(read_weights([weight(stored=stored)], tmp_path)["w"], W)
    half = read_weights([weight("bf16", stored=stored)], tmp_path)["w"]
    np.testing.assert_array_equal(half.astype(np.float32), W)


def test_only_parts_that_are_wanted_are_read(tmp_path, monkeypatch):
    save(tmp_path, LEFT, RIGHT)
    seen, array = [], SafetensorsFile.array
    monkeypatch.setattr(SafetensorsFile, "array", lambda file, name: seen.append(name) or array(file, name))
    ((_, found),) = iterate_weights([weight()], tmp_path, needed_blocks={"w": [Block((1, 0), (5, 2))]})
    np.testing.assert_array_equal(found[1:5, 0:2], W[1:5, 0:2])
    assert seen == ["w[0:5, 0:3]"]
    (tmp_path / "0.safetensors").unlink()
    with pytest.raises(ArrayFault, match=r"weight 'w' is in 1 parts, and none has \[1:5, 0:2\]"):
        list(iterate_weights([weight()], tmp_path, needed_blocks={"w": [Block((1, 0), (5, 2))]}))
    ((_, found),) = iterate_weights([weight()], tmp_path, needed_blocks={"w": [Block((0, 2), (5, 7))]})
    np.testing.assert_array_equal(found[:, 2:], W[:, 2:])


def test_parts_that_do_not_fit_are_refused(tmp_path):
    save(tmp_path, LEFT, RIGHT)
    for shape, message in (
        ((5, 6), r"weight 'w' should be f32\[5, 6\], and 'w\[0:5, 2:7\]' is not inside"),
        ((35,), r"should be f32\[35\], and 'w\[0:5, 0:3\]' is not inside"),
        ((5, 8), r"is in 2 parts, and none has \[0:5, 7:8\]"),
    ):
        with pytest.raises(ArrayFault, match=message):
            read_weights([weight(shape=shape)], tmp_path)
    with pytest.raises(ArrayFault, match=r"should be f16\[5, 7\], found f64"):
        read_weights([weight("f16")], {"w[0:5, 0:7]": W.astype(np.float64)})
    with pytest.raises(ArrayFault, match=r"is in parts of different types: f32, f64"):
        read_weights([weight()], {"w[0:5, 0:3]": W[:, :3], "w[0:5, 3:7]": W[:, 3:].astype(np.float64)})
    with pytest.raises(ArrayFault, match=r"is in parts, of which 'w\[0:5, 0:3\]' should be \[5, 3\], found \[3, 5\]"):
        read_weights([weight()], {"w[0:5, 0:3]": W[:3, :5]})
    with pytest.raises(ArrayFault, match=r"'w\[4:2, 0:3\]' is not inside"):
        read_weights([weight()], {"w[4:2, 0:3]": W[:2, :3], "w[0:5, 0:7]": W})
    many = {f"w[{r}:{r + 1}, {c}:{c + 1}]": np.zeros((1, 1), np.float32) for r in range(0, 2400, 2) for c in (0, 2)}
    with pytest.raises(ArrayFault, match="which are too many to be put together"):
        read_weights([weight(shape=(2400, 4))], many)
