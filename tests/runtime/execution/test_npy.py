"""Reading .npy and .npz files: every version of the format and every order; hostile files and broken archives."""

from __future__ import annotations

import io
import os
import struct
import threading
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.npy import read_npy, read_npz
from tests.support.array_cases import X, tensor


def npy(array, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


DATA = X.tobytes()


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
    path.write_bytes(npy(X.T))
    with pytest.raises(ArrayFault, match=r"found f32\[4, 3\]") as caught:
        read_npy(path, tensor("bf16"))
    assert caught.value.hint is None  # the type is right


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
    "text": (b"1, 2, 3\n4, 5, 6\n", "not a .npy file"),
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
    "deep header": (crafted("(" * 9000), "not a Python literal"),
    "deep list": (crafted("[" * 4000 + "]" * 4000), "not a Python literal|exactly the fields"),
    "code for a header": (crafted("__import__('os').system('touch /tmp/owned')"), "not a Python literal"),
    "arithmetic": (crafted("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2 ** 2)}"), "not a Python literal"),
    "NUL header": (crafted("\0" * 20), "not a Python literal"),
    "not a dict": (crafted("(1, 2)"), "exactly the fields"),
    "missing field": (crafted("{'descr': '<f4', 'shape': (3, 4)}"), "exactly the fields"),
    "extra field": (crafted(GOOD[:-1] + ", 'x': 1}"), "exactly the fields"),
    "unhashable": (crafted("{[]: 1}"), "not a Python literal"),
    "negative shape": (crafted(GOOD.replace("3, 4", "-3, -4")), "shape"),
    "huge shape": (crafted(GOOD.replace("3, 4", "3, 4" + "0" * 60)), "shape"),
    "shape of 2^61": (crafted(GOOD.replace("3, 4", f"{1 << 61},")), "found f32"),
    "truth in the shape": (crafted(GOOD.replace("3, 4", "True, 4")), "shape"),
    "floats in the shape": (crafted(GOOD.replace("3, 4", "3.0, 4")), "shape"),
    "list as shape": (crafted(GOOD.replace("(3, 4)", "[3, 4]")), "shape"),
    "order is a number": (crafted(GOOD.replace("False", "0")), "fortran_order"),
    "no byte order": (crafted(GOOD.replace("<f4", "f4")), "type 'f4'"),
    "no such byte order": (crafted(GOOD.replace("<f4", "|f4")), "f4"),
    "invalid UTF-8": (b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xfe\xff\xfe", "not a Python literal"),
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


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_an_error_with_both_lengths(tmp_path, change):
    data = npy(X)
    (tmp_path / "x.npy").write_bytes(data[:change] if change < 0 else data + b"\0")
    with pytest.raises(ArrayFault, match=f": {len(data) + change} bytes, where its header says {len(data)}$"):
        read_npy(tmp_path / "x.npy", tensor())


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
        (bytes(1 << 25), "not a .npy"),
    ]:
        path = archive(tmp_path, [("x.npy", data)], zipfile.ZIP_DEFLATED)
        assert os.path.getsize(path) < 1 << 18
        tracemalloc.start()
        with pytest.raises(ArrayFault, match=message):
            read_npz(path, {"x": tensor()})
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_false_sizes_are_found(tmp_path):
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


@pytest.mark.sampled(3)
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


def test_encrypted_and_unusually_compressed_members_are_refused(tmp_path):
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
