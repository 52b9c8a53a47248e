"""Arrays of other libraries: read where they are, deleted once, refused where they are none; and arrays for others."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from einc_runtime import as_dlpack
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.dlpack import as_array, read_dlpack
from einc_runtime.execution.session import Session
from tests.support.dlpack_capsules import Given, read_record
from tests.support.handmade_plans import two_site_plan

X = np.arange(24, dtype="f4").reshape(4, 6) - 7
BF16 = X.astype(ml_dtypes.bfloat16)
VERSIONS = [None, (1, 0), (1, 3)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "array",
    [X, BF16, X.T, X[::2, ::-2], BF16[1:, ::3], np.array(2.5), X > 0, X.astype("i8"), X.astype("f2"),
     np.broadcast_to(X[0], (3, 6)), np.zeros((0, 3), "f4"), np.arange(5, dtype="u1"), X.astype("i1")],
    ids=lambda array: f"{array.dtype}{array.shape}{array.strides}",
)  # fmt: skip
def test_arrays_are_read_where_they_are(array: np.ndarray, version: tuple[int, int] | None) -> None:
    given = Given(array, version)
    found = read_dlpack("x", given)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype("f8"), array.astype("f8"))
    assert not found.flags.writeable or not found.size
    if array.size:
        assert found.ctypes.data == array.ctypes.data
        assert found.strides == array.strides or 1 in array.shape
        part = found[..., :1] if found.ndim else found.view()
        del found
        assert given.deleted == 0  # a view keeps the memory
        del part
    else:
        del found
    assert given.deleted == 1


def test_elements_begin_after_the_offset() -> None:
    given = Given(X[0], changes={"byte_offset": 8}, shape=(2, 2), strides=None)
    np.testing.assert_array_equal(read_dlpack("x", given), X[0, 2:].reshape(2, 2))
    misplaced = np.zeros(9, "u1")
    misplaced[1:] = np.array([3.0, 4.0], "f4").view("u1")
    found = read_dlpack("x", Given(np.zeros(2, "f4"), changes={"data": misplaced.ctypes.data, "byte_offset": 1}))
    assert found.tolist() == [3, 4]


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "gpu": ({"device": (2, 0)}, "in the memory of a CUDA GPU"),
    "unknown device": ({"device": (99, 0)}, "in the memory of device type 99"),
    "lanes": ({"lanes": 4}, "Unsupported lanes"),
    "4 bits": ({"code": 0, "bits": 4}, "Unsupported dtype"),
    "float8": ({"code": 10, "bits": 8}, "Unsupported dtype"),
    "dimensions": ({"ndim": 65}, "cannot be had by DLPack"),
}


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize(("changes", "message"), UNFIT.values(), ids=UNFIT)
def test_what_is_no_array_is_refused_and_stays_with_its_owner(
    changes: dict[str, Any], message: str, version: tuple[int, int] | None
) -> None:
    given = Given(X, version, changes=changes)
    with pytest.raises(ArrayFault, match=f"'x' .*{message}"):
        read_dlpack("x", given)
    assert given.deleted == 1  # by the capsule itself


def test_later_versions_and_capsules_that_are_used_are_refused() -> None:
    with pytest.raises(ArrayFault, match=r"'x' cannot be had by DLPack: .*version"):
        read_dlpack("x", Given(X, (2, 0)))
    given = Given(X)
    capsule = given.__dlpack__()

    class Again:
        def __dlpack__(self, **_: object) -> object:
            return capsule

    assert read_dlpack("x", Again()).shape == X.shape
    with pytest.raises(ArrayFault, match="cannot be had by DLPack"):
        read_dlpack("x", Again())
    assert given.deleted == 1


def test_arrays_of_other_devices_are_asked_to_come_to_the_host() -> None:
    class OnGpu(Given):
        def __dlpack__(self, **options: Any) -> Any:
            if "dl_device" in options:
                self.device = options["dl_device"]
            return super().__dlpack__(**options)

    given = OnGpu(X, device=(2, 3))
    np.testing.assert_array_equal(read_dlpack("x", given), X)
    assert [options["dl_device"] for options in given.options_given] == [(1, 0)]
    old = OnGpu(X, None, device=(2, 3))
    with pytest.raises(ArrayFault, match="'x' is in the memory of a CUDA GPU") as caught:
        read_dlpack("x", old)
    assert "copy it to the host's memory first" in str(caught.value.hint)


def test_what_a_library_refuses_is_reported() -> None:
    class Refusing:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("no, thank you")

    class Lying:
        def __dlpack__(self, **_: object) -> object:
            return "a text"

    for value, message in (
        (Refusing(), "'x' cannot be had by DLPack: BufferError: no, thank you"),
        (Lying(), "'x' cannot be had by DLPack: ValueError"),
        ([1.0], "'x' is not a numpy array but list, and has no __dlpack__"),
    ):
        with pytest.raises(ArrayFault) as caught:
            as_array("x", value)
        assert caught.value.message.startswith(message)


W = np.arange(6, dtype="f4").reshape(3, 2) / 3 - 1


def test_sessions_load_and_run_them() -> None:
    x = np.arange(12, dtype="f4").reshape(4, 3) - 5
    given, weight, wrong = Given(x.T.copy().T), Given(W), Given(x[:2])
    with Session(two_site_plan(), "cpu") as session:
        session.load_weights({"w": weight})
        np.testing.assert_allclose(session.run({"x": given})["y"], np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)
        assert (given.deleted, weight.deleted) == (1, 1)
        with pytest.raises(ArrayFault, match=r"expected f32\[4, 3\] for input 'x', found f32\[2, 3\]"):
            session.load("x", wrong)
        with pytest.raises(ArrayFault, match=r"memory of a CUDA GPU \(copy it to the host's memory first"):
            session.load("x", Given(x, changes={"device": (2, 0)}))
    assert wrong.deleted == 1


@pytest.mark.parametrize(
    "array", [BF16, BF16.T, BF16[::2, 1::2], X, X.astype("f2")], ids=lambda a: f"{a.dtype}{a.strides}"
)
def test_arrays_are_given_in_place(array: np.ndarray) -> None:
    array = array.copy(order="K")
    given = as_dlpack(array)
    assert given.__dlpack_device__() == (1, 0)
    capsule = given.__dlpack__()
    name, tensor = read_record(capsule)
    code = 4 if array.dtype.name == "bfloat16" else 2
    assert (name, tensor.code, tensor.bits, tensor.lanes) == ("dltensor", code, 8 * array.itemsize, 1)
    assert tuple(tensor.shape[: tensor.ndim]) == array.shape
    assert tensor.data + tensor.byte_offset == array.ctypes.data
    found = read_dlpack("y", given)
    assert (found.ctypes.data, found.dtype) == (array.ctypes.data, array.dtype)
    array[0, 0] = 100
    assert found[0, 0] == 100
