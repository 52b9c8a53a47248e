"""Reading weights: stored names, regrouped shapes, all problems at once; and broken safetensors files."""

from __future__ import annotations

import json
import os
import re
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.data.weights import is_grouping_of, iterate_weights, read_weights
from tests.support.array_cases import X, tensor

DATA = X.tobytes()


# Weights


def weight(name="w", dtype="f32", shape=(3, 4), stored=None):
    return tensor(dtype, shape, name, "weight", stored=stored)


def test_safetensors_of_every_type_are_read(tmp_path):
    path = tmp_path / "w.safetensors"
    kinds = {"f16": "f2", "bf16": ml_dtypes.bfloat16, "f32": "f4", "f64": "f8", "i32": "i4", "i64": "i8", "bool": "?"}
    arrays = {name: (X - 5).astype(kind) for name, kind in kinds.items()}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    found = read_weights([weight(name, name) for name in arrays], path)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_stored_names_regrouped_shapes_and_rounding(tmp_path):
    path = tmp_path / "w.safetensors"
    w = np.arange(24, dtype="f4") / 7
    safetensors.numpy.save_file({"layer.0.q": w.reshape(6, 4), "b": w.reshape(2, 12)}, path)
    wanted = [weight("q", "f32", (2, 3, 4), "layer.0.q"), weight("b", "bf16", (2, 3, 4), "layer.0.b")]
    found = read_weights(wanted, path)
    np.testing.assert_array_equal(found["q"], w.reshape(2, 3, 4))
    np.testing.assert_array_equal(found["b"], w.reshape(2, 3, 4).astype(ml_dtypes.bfloat16))
    arrays = {"layer.0.q": w.reshape(6, 4), "b": w.reshape(2, 12), "other": np.array(["text"])}
    np.savez(tmp_path / "w.npz", **arrays)
    for source in (tmp_path / "w.npz", arrays, arrays | {"layer.0.q": w.astype(">f4").reshape(6, 4), "other": None}):
        again = read_weights(wanted, source)
        for name in found:
            np.testing.assert_array_equal(again[name], found[name])
            assert again[name].dtype == found[name].dtype
    with pytest.raises(ArrayFault, match="'b' is not a numpy array but list"):
        read_weights(wanted, arrays | {"b": w.tolist()})
    with pytest.raises(ArrayFault, match=r"weight 'b' .stored as 'layer.0.b'. is not there"):
        read_weights(wanted, {"layer.0.q": w})


def test_tensors_that_stand_one_behind_another_and_several_sources(tmp_path):
    rows = {f"e.{k}.{name}.w": np.full((2 + (name == "up"), 3), 10 * k + len(name), "f4")
            for k in range(4) for name in ("gate", "up")}  # fmt: skip
    safetensors.numpy.save_file(rows, tmp_path / "w.safetensors")
    both = [np.concatenate([rows[f"e.{k}.gate.w"], rows[f"e.{k}.up.w"]]) for k in range(4)]
    names = {"e.*.(gate|up).w": np.stack(both), "e.2.(up|gate).w": both[2][[2, 3, 4, 0, 1]]}
    tensors = [weight(f"w{k}", shape=array.shape, stored=name) for k, (name, array) in enumerate(names.items())]
    for source in (tmp_path, [{"table": X.astype("f4")}, str(tmp_path)]):
        for found, expected in zip(read_weights(tensors, source).values(), names.values(), strict=True):
            np.testing.assert_array_equal(found, expected)
    table = weight("t", shape=X.shape, stored="table")
    np.testing.assert_array_equal(read_weights([table, *tensors], [{"table": X.astype("f4")}, tmp_path])["t"], X)
    for name, problem in (("e.(1|7).up.w", "is not there"), ("e.1.(up|e).w", "is not there"), ("(e|", "is not there")):
        with pytest.raises(ArrayFault, match=problem):
            read_weights([weight(stored=name)], tmp_path)
    wide = rows | {"e.0.up.w": np.zeros((2, 5), "f4")}
    with pytest.raises(ArrayFault, match="cannot be joined"):
        read_weights([weight(stored="e.0.(gate|up).w")], wide)


def test_regrouping_keeps_the_order():
    assert is_grouping_of((6, 4), (2, 3, 4))
    assert is_grouping_of((24,), (2, 3, 4))
    assert is_grouping_of((2, 12), (2, 3, 4))
    assert is_grouping_of((1, 6, 1, 4), (2, 3, 4))
    assert is_grouping_of((), (1, 1))
    assert not is_grouping_of((3, 8), (2, 3, 4))
    assert not is_grouping_of((4, 6), (2, 3, 4))
    assert not is_grouping_of((2, 3, 2, 2), (2, 3, 4))
    assert not is_grouping_of((2, 3), (2, 3, 4))
    assert not is_grouping_of((0,), (2, 3, 4))


def test_directories_and_their_faults(tmp_path):
    with pytest.raises(ArrayFault, match=r"no \.safetensors file") as caught:
        read_weights([weight()], tmp_path)
    assert caught.value.where == str(tmp_path)
    safetensors.numpy.save_file({"a": X}, tmp_path / "m-1.safetensors")
    safetensors.numpy.save_file({"b": X + 1}, tmp_path / "m-2.safetensors")
    found = read_weights([weight("a"), weight("b")], tmp_path)
    np.testing.assert_array_equal(found["b"], X + 1)
    safetensors.numpy.save_file({"a": X}, tmp_path / "m-3.safetensors")
    with pytest.raises(ArrayFault, match="'a' is also in another file"):
        read_weights([weight("a")], tmp_path)
    safetensors.numpy.save_file({"a": X + 2}, tmp_path / "model.safetensors")  # which transformers reads alone
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    np.testing.assert_array_equal(read_weights([weight("a")], tmp_path)["a"], X + 2)


def test_all_problems_with_weights_are_reported_at_once(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"attn.q": X, "k": X.T.copy(), "v": X.astype("f2"), "i": X.astype("i4")}, path)
    wanted = [weight("q", stored="atn.q"), weight("k"), weight("v"), weight("i"), weight("u", "i32")]
    with pytest.raises(ArrayFault) as caught:
        read_weights(wanted, path)
    lines = caught.value.message.split("\n")
    assert len(lines) == 4
    assert "weight 'q' (stored as 'atn.q') is not there; did you mean 'attn.q'?" in lines[0]
    assert "weight 'k' should be f32[3, 4], found f32[4, 3]" in lines[1]
    assert "found i32[3, 4]" in lines[2]
    assert "weight 'u' is not there" in lines[3]


def test_what_a_file_is_named_or_begins_with_tells_what_it_is(tmp_path):
    for name in ("w.npz", "w.zip"):
        np.savez(tmp_path / "w.npz", w=X)
        (tmp_path / "w.npz").rename(tmp_path / name)
        np.testing.assert_array_equal(read_weights([weight()], tmp_path / name)["w"], X)
    (tmp_path / "w.npz").write_bytes(b"text")
    with pytest.raises(ArrayFault, match="archive is broken"):
        read_weights([weight()], tmp_path / "w.npz")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(22) + struct.pack("<HH", 10, 0) + b"w/data.pkl", "torch.save"),
        (b"\x80\x02\x8a\nl\xfc", "torch.save"),
        (b"PK\x03\x04" + bytes(22) + struct.pack("<HH", 16, 0) + b"m/archive_format", "torch.export"),
        (b"\x08\x0a\x12\x07pytorch", "ONNX"),
    ],
)
def test_files_of_other_formats_are_named_with_a_way_out(tmp_path, data, message):
    (tmp_path / "w.bin").write_bytes(data)
    with pytest.raises(ArrayFault, match=message) as caught:
        read_weights([weight()], tmp_path / "w.bin")
    assert caught.value.hint


@pytest.mark.parametrize(("stored", "there"), [("b.{}", "model.b.{}"), ("model.b.{}", "b.{}")])
def test_a_prefix_of_all_names_is_one_line(stored, there):
    weights = [weight("u", stored=stored.format("u")), weight("v", shape=(2, 4), stored=stored.format("v[0:2]"))]
    arrays = {there.format("u"): X.astype("f4"), there.format("v"): X.astype("f4"), "c": X}
    with pytest.raises(ArrayFault) as caught:
        read_weights(weights, arrays)
    assert caught.value.message.count("'model.'") == 2
    assert "\n" not in caught.value.message


def test_random_weights():
    found = read_weights([weight(), weight("v", shape=(5,))], "rand:3")
    assert list(found) == ["w", "v"]
    np.testing.assert_array_equal(found["w"], make_random_array(weight(), 3))
    for source in ("rand:", "rand:-1", "rand:x", "rand:1.5", "rand:" + "9" * 30):
        with pytest.raises(ArrayFault, match="does not name a seed") as caught:
            read_weights([weight()], source)
        assert caught.value.hint == "write a number, as in rand:0"


def st(header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(3, 4), offsets=(0, 48)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BROKEN = {
    "empty": (b"", "too short to be a safetensors file"),
    "short": (b"\0\0\0", "too short to be a safetensors file"),
    "header beyond the end": (
        st({"w": entry()}, length=1 << 20),
        "its header has 1048576 bytes, but the whole file has 121",
    ),
    "header of 2^63": (st({"w": entry()}, length=1 << 63), "its header has 9223372036854775808 bytes"),
    "no JSON": (st(b"{'w': 1}"), "not a JSON object with distinct names"),
    "invalid UTF-8": (st(b'{"\xff": 1}'), "not a JSON object with distinct names"),
    "deep JSON": (st(b"[" * 200_000), "not a JSON object with distinct names"),
    "deep object": (st(b'{"w":' * 50_000), "not a JSON object with distinct names"),
    "big number": (st(b'{"w": ' + b"9" * 10_000 + b"}"), "not a JSON object with distinct names"),
    "list": (st([1, 2]), "its header is not a JSON object"),
    "name twice": (
        st(b'{"w": %s, "w": %s}' % ((json.dumps(entry()).encode(),) * 2)),
        "distinct names: the name 'w' is given twice",
    ),
    "entry is a list": (st({"w": [1]}), "does not say what 'w' is: Expected `object`"),
    "missing field": (
        st({"w": {"dtype": "F32", "shape": [3, 4]}}),
        "does not say what 'w' is: Object missing required field `data_offsets`",
    ),
    "extra field": (st({"w": {**entry(), "x": 1}}), "unknown field `x`"),
    "shape of text": (st({"w": entry(shape="ab")}), "got `str` - at `$.shape[0]`"),
    "negative shape": (st({"w": entry(shape=(-3, -4))}), ">= 0 - at `$.shape[0]`"),
    "truth in shape": (st({"w": entry(shape=(True, 12))}), "got `bool` - at `$.shape[0]`"),
    "float offsets": (st({"w": entry(offsets=(0.0, 48.0))}), "got `float` - at `$.data_offsets[0]`"),
    "three offsets": (st({"w": entry(offsets=(0, 48, 48))}), "of length 2, got 3"),
    "offsets backwards": (st({"w": entry(offsets=(48, 0))}), "'w' is F32[3, 4] by its header, in -48 bytes"),
    "offsets beyond the end": (
        st({"w": entry(shape=(3, 8), offsets=(0, 96))}),
        "accounts for 96 bytes of data, and it has 48",
    ),
    "wrong size": (st({"w": entry(offsets=(0, 40))}, X.tobytes()[:40]), "'w' is F32[3, 4] by its header, in 40 bytes"),
    "overlap": (st({"w": entry(), "v": entry(offsets=(24, 72))}, bytes(72)), "the data of 'v' begins at 24, not at 48"),
    "the same bytes": (st({"w": entry(), "v": entry()}), "the data of 'v' begins at 0, not at 48"),
    "gap": (st({"w": entry(), "v": entry(offsets=(52, 100))}, bytes(100)), "the data of 'v' begins at 52, not at 48"),
    "hidden start": (st({"w": entry(offsets=(4, 52))}, bytes(52)), "the data of 'w' begins at 4, not at 0"),
    "trailing bytes": (st({"w": entry()}, bytes(49)), "accounts for 48 bytes of data, and it has 49"),
    "huge shape": (st({"w": entry(shape=(1 << 61, 1 << 61))}), "in 48 bytes"),
    "72 dimensions": (st({"w": entry(shape=[1] * 70 + [3, 4])}), "'w' has 72 dimensions, and at most 32 can be read"),
    "unknown dtype": (st({"w": entry("U16")}), "weight 'w' should be f32[3, 4], found U16[3, 4]"),
    "narrow dtype": (st({"w": entry("F8_E4M3")}), "'w' is F8_E4M3[3, 4] by its header, in 48 bytes"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_safetensors_are_refused(tmp_path, case):
    path = tmp_path / "w.safetensors"
    data, message = BROKEN[case]
    path.write_bytes(data)
    with pytest.raises(ArrayFault, match=re.escape(message)) as caught:
        read_weights([weight()], path)
    assert caught.value.where == str(path)
    assert len(caught.value.message) < 400


def test_a_file_that_becomes_shorter_while_it_is_read_is_a_fault(tmp_path):
    """A mapped file would end the process. What is still there is read."""
    path, large = tmp_path / "w.safetensors", np.arange(3 << 18, dtype="f4").reshape(3, 1 << 18)
    safetensors.numpy.save_file({"a": large, "b": large + 1}, path)
    read = iterate_weights([weight("a", shape=large.shape), weight("b", shape=large.shape)], path)
    np.testing.assert_array_equal(next(read)[1], large)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ArrayFault, match="has become shorter while it was read") as caught:
        next(read)
    assert caught.value.where == str(path)


def test_other_tensors_of_unknown_types_do_not_matter(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(st({"w": entry(), "scale": entry("F8_E4M3", (5,), (48, 53))}, X.tobytes() + bytes(5)))
    np.testing.assert_array_equal(read_weights([weight()], path)["w"], X)
