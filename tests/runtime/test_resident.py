"""Memory is given back to the system, whole pages of it alone, and programs still run afterwards."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys

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
