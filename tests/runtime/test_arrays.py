"""Reading arrays and weights: every numpy format version and order; and a table of hostile and broken files."""

from __future__ import annotations

import io
import json
import os
import struct
import threading
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from runtime.arrays import read_npy, read_npz
from runtime.bundle import Tensor
from runtime.draws import random_input
from runtime.errors import ArrayFault
from runtime.weights import read_weights, regroups


def tensor(dtype="f32", shape=(3, 4), name="x", kind="input", **fields):
    return Tensor(name, tuple(f"d{k}" for k in range(len(shape))), tuple(shape), dtype, kind, **fields)


X = np.arange(12, dtype="f4").reshape(3, 4)
DATA = X.tobytes()


def npy(array, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


def crafted(text, data=DATA, version=(1, 0)):
    """A .npy file with any text for a header."""
    header = text.encode("latin-1")
    width = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + width + header + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}"


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "?"])
@pytest.mark.parametrize("byte_order", "<>")
@pytest.mark.parametrize("memory_order", "CF")
def test_all_that_numpy_writes_is_read_right(tmp_path, version, dtype, byte_order, memory_order):
    path = tmp_path / "x.npy"
    name = {"f2": "f16", "f4": "f32", "f8": "f64", "i4": "i32", "i8": "i64", "?": "bool"}[dtype]
    for shape in [(3, 4), (5,), (), (2, 3, 4)]:
        values = (np.arange(int(np.prod(shape))).reshape(shape) % 7 - 3).astype(dtype)
        array = np.array(values, np.dtype(dtype).newbyteorder(byte_order), order=memory_order)
        path.write_bytes(npy(array, version))
        found = read_npy(path, tensor(name, shape))
        assert found.dtype == values.dtype
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, values)


def test_float32_is_rounded_for_bf16_and_for_nothing_else(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(npy(X / 3))
    np.testing.assert_array_equal(read_npy(path, tensor("bf16")), (X / 3).astype(ml_dtypes.bfloat16))
    for other in ("f16", "f64", "i32"):
        with pytest.raises(ArrayFault, match=rf"expected {other}\[3, 4\] for 'x', found f32\[3, 4\]"):
            read_npy(path, tensor(other))
    path.write_bytes(npy(X.astype(ml_dtypes.bfloat16).view("V2")))
    with pytest.raises(ArrayFault, match="V2"):
        read_npy(path, tensor("bf16"))


def test_any_byte_is_a_truth_value(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(crafted(GOOD.replace("<f4", "|b1"), bytes([0, 1, 2, 255] * 3)))
    found = read_npy(path, tensor("bool"))
    assert found.view(np.uint8).tolist() == [[0, 1, 1, 1]] * 3


def objects():
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([[print] * 4] * 3), allow_pickle=True)
    return stream.getvalue()


HOSTILE = {
    "empty": (b"", "ends within its header"),
    "magic only": (b"\x93NUMPY\x01", "ends within its header"),
    "text": (b"1, 2, 3\n4, 5, 6\n", "no .npy file"),
    "a zip archive": (b"PK\x03\x04" + bytes(100), "name it .npz"),
    "version 4": (crafted(GOOD, version=(4, 0)), "version 4.0"),
    "version 1.1": (crafted(GOOD, version=(1, 1)), "version 1.1"),
    "objects": (objects(), "type '|O'|O'"),
    "records": (npy(np.zeros((3, 4), [("a", "f4")])), "records"),
    "sub-arrays": (crafted(GOOD.replace("'<f4'", "('<f4', (2,))")), "records"),
    "text elements": (npy(np.zeros((3, 4), "U2")), "U2"),
    "void": (npy(np.zeros((3, 4), "V4")), "V4"),
    "complex": (npy(np.zeros((3, 4), "c8")), "c8"),
    "dates": (npy(np.zeros((3, 4), "M8[s]")), "M8"),
    "long double": (npy(np.zeros((3, 4), "g")), "elements are of type"),
    "bytes": (npy(np.zeros((3, 4), "u1")), "u1"),
    "another dtype": (npy(X.astype("f8")), "found f64"),
    "another shape": (npy(X.T), r"found f32\[4, 3\]"),
    "another rank": (npy(X[None]), r"found f32\[1, 3, 4\]"),
    "fewer rows": (npy(X[:2]), r"found f32\[2, 4\]"),
    "too long": (npy(X) + b"\0", "bytes after the array"),
    "too short": (npy(X)[:-1], "cut short"),
    "no data": (npy(X)[:-48], "cut short"),
    "header too long": (crafted(GOOD + " " * 20_000), "at most 10000"),
    "header beyond the end": (b"\x93NUMPY\x02\x00" + b"\x00\x10\x00\x00" + b"{", "ends within its header"),
    "header of 4 GB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "at most 10000"),
    "deep header": (crafted("(" * 9000), "no Python literal"),
    "deep list": (crafted("[" * 4000 + "]" * 4000), "no Python literal|exactly the fields"),
    "code for a header": (crafted("__import__('os').system('touch /tmp/owned')"), "no Python literal"),
    "arithmetic": (crafted("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2 ** 2)}"), "no Python literal"),
    "NUL header": (crafted("\0" * 20), "no Python literal"),
    "not a dict": (crafted("(1, 2)"), "exactly the fields"),
    "missing field": (crafted("{'descr': '<f4', 'shape': (3, 4)}"), "exactly the fields"),
    "extra field": (crafted(GOOD[:-1] + ", 'x': 1}"), "exactly the fields"),
    "unhashable": (crafted("{[]: 1}"), "no Python literal"),
    "negative shape": (crafted(GOOD.replace("3, 4", "-3, -4")), "shape"),
    "huge shape": (crafted(GOOD.replace("3, 4", "3, 4" + "0" * 60)), "shape"),
    "shape of 2^61": (crafted(GOOD.replace("3, 4", f"{1 << 61},")), "found f32"),
    "truth in the shape": (crafted(GOOD.replace("3, 4", "True, 4")), "shape"),
    "floats in the shape": (crafted(GOOD.replace("3, 4", "3.0, 4")), "shape"),
    "list as shape": (crafted(GOOD.replace("(3, 4)", "[3, 4]")), "shape"),
    "order is a number": (crafted(GOOD.replace("False", "0")), "fortran_order"),
    "no byte order": (crafted(GOOD.replace("<f4", "f4")), "type 'f4'"),
    "no such byte order": (crafted(GOOD.replace("<f4", "|f4")), "f4"),
    "invalid UTF-8": (b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xfe\xff\xfe", "no Python literal"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("container", ["npy", "pipe", "npz", "compressed npz"])
def test_hostile_arrays_are_refused(tmp_path, case, container):
    data, message = HOSTILE[case]
    path = str(tmp_path / "x.npy")
    writer = None
    if "npz" in container:
        kind = zipfile.ZIP_DEFLATED if container.startswith("compressed") else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("x.npy", data)
    elif container == "pipe":
        os.mkfifo(path)
        writer = threading.Thread(target=_write, args=(path, data))
        writer.start()
    else:
        Path(path).write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ArrayFault, match=message) as caught:
            read_npz(path, {"x": tensor()}) if "npz" in container else read_npy(path, tensor())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        if writer is not None:
            writer.join()
    assert caught.value.where.startswith(path)
    assert caught.value.exit_code == 65
    assert not os.path.exists("/tmp/owned")


def _write(path, data):
    try:
        with open(path, "wb") as stream:
            stream.write(data)
    except BrokenPipeError:
        pass


def test_pipes_are_read(tmp_path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    big = np.arange(300_000, dtype="f4").reshape(3, 100_000)
    writer = threading.Thread(target=lambda: _write(path, npy(big)))
    writer.start()
    np.testing.assert_array_equal(read_npy(path, tensor(shape=big.shape)), big)
    writer.join()


def test_files_that_cannot_be_read_are_the_systems_errors(tmp_path):
    for path in (tmp_path / "none.npy", tmp_path):
        with pytest.raises(OSError, match=r"none|directory"):
            read_npy(path, tensor())
        with pytest.raises(OSError, match=r"none|directory"):
            read_npz(path, {"x": tensor()})


# Archives


def archive(tmp_path, members, kind=zipfile.ZIP_STORED):
    path = str(tmp_path / "all.npz")
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def test_archives_of_savez_are_read(tmp_path):
    path = str(tmp_path / "all.npz")
    wanted = {"x": tensor(), "y": tensor("i64", (5,), "y"), "z": tensor(name="z")}
    for save in (np.savez, np.savez_compressed):
        save(path, x=X, y=np.arange(5))
        found = read_npz(path, wanted)
        assert list(found) == ["x", "y"]
        np.testing.assert_array_equal(found["x"], X)
        np.testing.assert_array_equal(found["y"], np.arange(5))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_must_be_wanted_once_and_arrays(tmp_path):
    for members, message in [
        ([("x.npy", npy(X)), ("x.npy", npy(X))], "twice"),
        ([("x.npy", npy(X)), ("x", npy(X))], "named NAME.npy"),
        (
            [("x.npy", npy(X)), ("w.npy", npy(X)), ("v.npy", npy(X))],
            "it holds 'w', 'v', which the plan does not ask for",
        ),
        ([("../x.npy", npy(X))], r"'\.\./x'"),
        ([("x.txt", b"")], "named NAME.npy"),
        ([("x\n\x1b[31m.npy", b"")], r"\\n\\x1b"),
    ]:
        with pytest.raises(ArrayFault, match=message):
            read_npz(archive(tmp_path, members), {"x": tensor()})


def test_bombs_are_not_unpacked(tmp_path):
    bomb = npy(np.zeros((3, 1 << 22), "f4"))  # 50 MB of zeros in some 50 KB
    for data, message in [
        (bomb, "found f32"),
        (npy(X) + bytes(1 << 25), "bytes after the array"),
        (bytes(1 << 25), "no .npy"),
    ]:
        path = archive(tmp_path, [("x.npy", data)], zipfile.ZIP_DEFLATED)
        assert os.path.getsize(path) < 1 << 18
        tracemalloc.start()
        with pytest.raises(ArrayFault, match=message):
            read_npz(path, {"x": tensor()})
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_sizes_that_lie_are_seen(tmp_path):
    path = archive(tmp_path, [("x.npy", npy(X))], zipfile.ZIP_DEFLATED)
    data = bytearray(Path(path).read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    good = bytes(data)
    for offset, value in [(24, 1 << 30), (24, 10), (20, 3), (16, 12345), (42, 1 << 20), (42, (1 << 32) - 1)]:
        data[:] = good
        data[directory + offset : directory + offset + 4] = struct.pack("<I", value)
        with open(path, "wb") as stream:
            stream.write(data)
        with pytest.raises(ArrayFault):
            read_npz(path, {"x": tensor()})


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_broken_anywhere_never_crash(tmp_path, kind):
    """Every truncation and many flipped bytes: an ArrayFault, or exactly the array."""
    good = Path(archive(tmp_path, [("x.npy", npy(X))], kind)).read_bytes()
    path = tmp_path / "broken.npz"
    versions = [good[:cut] for cut in range(0, len(good), 3)]
    versions += [
        good[:k] + bytes([good[k] ^ bit]) + good[k + 1 :] for k in range(0, len(good), 2) for bit in (1, 0x40, 0x80)
    ]
    for data in versions:
        path.write_bytes(data)
        try:
            for found in read_npz(path, {"x": tensor()}).values():
                np.testing.assert_array_equal(found, X)
        except ArrayFault:
            pass


def test_encrypted_and_oddly_compressed_members_are_refused(tmp_path):
    path = archive(tmp_path, [("x.npy", npy(X))], zipfile.ZIP_BZIP2)
    with pytest.raises(ArrayFault, match="compressed in a way"):
        read_npz(path, {"x": tensor()})
    path = archive(tmp_path, [("x.npy", npy(X))])
    data = bytearray(Path(path).read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    with open(path, "wb") as stream:
        stream.write(data)
    with pytest.raises(ArrayFault, match="encrypted"):
        read_npz(path, {"x": tensor()})


# Random tensors


def test_draws_depend_on_seed_name_and_shape_only():
    x = tensor(shape=(200, 300))
    a = random_input(x, 0)
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, random_input(x, 0))
    assert abs(a.std() - 1) < 0.02
    assert abs(a.mean()) < 0.02
    assert not np.array_equal(a, random_input(x, 1))
    assert not np.array_equal(a, random_input(tensor(shape=(200, 300), name="y"), 0))
    np.testing.assert_array_equal(a[0, :2], np.array(a[0, :2].tolist(), "f4"))
    weight = random_input(tensor(shape=(200, 300), name="x", kind="weight", fan_in=100), 0)
    np.testing.assert_allclose(weight, a / 10, rtol=1e-6)
    np.testing.assert_array_equal(random_input(tensor("bf16", (200, 300)), 0), a.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(random_input(tensor("f16", (200, 300)), 0), a.astype("f2"))
    assert random_input(tensor("f64"), 0).dtype == np.float64
    whole = random_input(tensor("i32", (1000,)), 0)
    assert (whole.dtype, whole.min(), whole.max()) == (np.dtype("i4"), 0, 7)
    assert 0 < random_input(tensor("bool", (1000,)), 0).mean() < 1


def test_draws_do_not_change_from_release_to_release():
    assert random_input(tensor(shape=(3,)), 7).tolist() == pytest.approx(FIRST_DRAW, abs=1e-6)


FIRST_DRAW = [0.4847431, 0.5072526, -2.1305635]


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
    np.savez(tmp_path / "w.npz", **{"layer.0.q": w.reshape(6, 4), "b": w.reshape(2, 12), "other": np.array(["text"])})
    again = read_weights(wanted, tmp_path / "w.npz")
    for name in found:
        np.testing.assert_array_equal(again[name], found[name])


def test_regrouping_keeps_the_order():
    assert regroups((6, 4), (2, 3, 4))
    assert regroups((24,), (2, 3, 4))
    assert regroups((2, 12), (2, 3, 4))
    assert regroups((1, 6, 1, 4), (2, 3, 4))
    assert regroups((), (1, 1))
    assert not regroups((3, 8), (2, 3, 4))
    assert not regroups((4, 6), (2, 3, 4))
    assert not regroups((2, 3, 2, 2), (2, 3, 4))
    assert not regroups((2, 3), (2, 3, 4))
    assert not regroups((0,), (2, 3, 4))


def test_directories_and_their_faults(tmp_path):
    with pytest.raises(ArrayFault, match=r"no \.safetensors file"):
        read_weights([weight()], tmp_path)
    safetensors.numpy.save_file({"a": X}, tmp_path / "m-1.safetensors")
    safetensors.numpy.save_file({"b": X + 1}, tmp_path / "m-2.safetensors")
    found = read_weights([weight("a"), weight("b")], tmp_path)
    np.testing.assert_array_equal(found["b"], X + 1)
    safetensors.numpy.save_file({"a": X}, tmp_path / "m-3.safetensors")
    with pytest.raises(ArrayFault, match="'a' is in another file"):
        read_weights([weight("a")], tmp_path)


def test_all_problems_with_weights_are_told_at_once(tmp_path):
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


def test_random_weights():
    found = read_weights([weight(), weight("v", shape=(5,))], "rand:3")
    assert list(found) == ["w", "v"]
    np.testing.assert_array_equal(found["w"], random_input(weight(), 3))
    for source in ("rand:", "rand:-1", "rand:x", "rand:1.5", "rand:" + "9" * 30):
        with pytest.raises(ArrayFault, match="names no seed"):
            read_weights([weight()], source)


def st(header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(3, 4), offsets=(0, 48)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BROKEN = {
    "empty": b"",
    "short": b"\0\0\0",
    "header beyond the end": st({"w": entry()}, length=1 << 20),
    "header of 2^63": st({"w": entry()}, length=1 << 63),
    "no JSON": st(b"{'w': 1}"),
    "invalid UTF-8": st(b'{"\xff": 1}'),
    "deep JSON": st(b"[" * 200_000),
    "deep object": st(b'{"w":' * 50_000),
    "big number": st(b'{"w": ' + b"9" * 10_000 + b"}"),
    "list": st([1, 2]),
    "name twice": st(b'{"w": %s, "w": %s}' % ((json.dumps(entry()).encode(),) * 2)),
    "entry is a list": st({"w": [1]}),
    "missing field": st({"w": {"dtype": "F32", "shape": [3, 4]}}),
    "extra field": st({"w": {**entry(), "x": 1}}),
    "shape of text": st({"w": entry(shape="ab")}),
    "negative shape": st({"w": entry(shape=(-3, -4))}),
    "truth in shape": st({"w": entry(shape=(True, 12))}),
    "float offsets": st({"w": entry(offsets=(0.0, 48.0))}),
    "three offsets": st({"w": entry(offsets=(0, 48, 48))}),
    "offsets backwards": st({"w": entry(offsets=(48, 0))}),
    "offsets beyond the end": st({"w": entry(shape=(3, 8), offsets=(0, 96))}),
    "wrong size": st({"w": entry(offsets=(0, 40))}, X.tobytes()[:40]),
    "overlap": st({"w": entry(), "v": entry(offsets=(24, 72))}, bytes(72)),
    "the same bytes": st({"w": entry(), "v": entry()}),
    "gap": st({"w": entry(), "v": entry(offsets=(52, 100))}, bytes(100)),
    "hidden start": st({"w": entry(offsets=(4, 52))}, bytes(52)),
    "trailing bytes": st({"w": entry()}, bytes(49)),
    "huge shape": st({"w": entry(shape=(1 << 61, 1 << 61))}),
    "unknown dtype": st({"w": entry("F8_E4M3")}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_safetensors_are_refused(tmp_path, case):
    path = tmp_path / "w.safetensors"
    path.write_bytes(BROKEN[case])
    with pytest.raises(ArrayFault) as caught:
        read_weights([weight()], path)
    assert caught.value.where == str(path)
    assert len(caught.value.message) < 400


def test_other_tensors_of_unknown_types_do_not_matter(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(st({"w": entry(), "scale": entry("F8_E4M3", (5,), (48, 53))}, X.tobytes() + bytes(5)))
    np.testing.assert_array_equal(read_weights([weight()], path)["w"], X)
