"""Memory is given back to the system, whole pages of it alone, and programs still run afterwards."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from einc_runtime.resident import release_pages, release_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")


def test_whole_pages_alone_are_given_back() -> None:
    size = 4 * mmap.PAGESIZE
    raw = np.full(size + mmap.PAGESIZE, 7, np.uint8)
    start = -raw.ctypes.data % mmap.PAGESIZE
    data = raw[start : start + size]
    release_pages(data.ctypes.data + 5, 2 * mmap.PAGESIZE)  # one page is whole
    assert [int(page[0]) for page in np.split(data, 4)] == [7, 0, 7, 7]
    assert np.count_nonzero(raw == 0) == mmap.PAGESIZE
    release_pages(data.ctypes.data + 5, mmap.PAGESIZE)
    assert np.count_nonzero(raw == 0) == mmap.PAGESIZE


def test_a_program_runs_after_it_was_given_back() -> None:
    library = ctypes.CDLL("libm.so.6")
    library.cos.restype, library.cos.argtypes = ctypes.c_double, [ctypes.c_double]
    before = library.cos(0.5)
    assert release_program("libm.so") >= mmap.PAGESIZE
    assert library.cos(0.5) == before == math.cos(0.5)
    assert release_program("no such library") == 0


def test_what_was_written_into_a_program_stays(tmp_path: Path) -> None:
    """As by the loader, which writes addresses into constants and then forbids to write there."""
    file = tmp_path / "constants.so"
    file.write_bytes(bytes(range(256)) * (2 * mmap.PAGESIZE // 256))
    with file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(data))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert data[-1] == 255
    assert protect(first, len(data), mmap.PROT_READ) == 0
    assert release_program("constants.so") == len(data)  # it is still that of the file
    assert protect(first, len(data), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    data[mmap.PAGESIZE + 3] = 200
    assert protect(first, len(data), mmap.PROT_READ) == 0
    assert release_program("constants.so") == 0
    assert (data[3], data[mmap.PAGESIZE + 3]) == (3, 200)
