"""The kernel that asks the switches between GPUs for sums: which bytes it touches, and what it leaves to others."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.kernels.triton.multicast_sum import PROGRAM_UNITS, build_multicast_sum


def array(kind, shape, strides, pointer=1 << 40):
    size = ITEMSIZE[kind]
    return GpuArray(pointer, shape, tuple(step * size for step in strides), kind, 0)


def built(read, write, capability=(9, 0)):
    return build_multicast_sum(as_layout(read), as_layout(write), capability)


class Words(np.ndarray):
    """Integers with the method of the language."""

    def to(self, kind):
        return self


def touched(launch, read, write):
    """The addresses of units of 16 bytes that are read and written, in the order of programs."""
    pairs = []

    def assembly(text, constraints, operands, dtype, is_pure, pack):
        assert (constraints, is_pure, pack) == ("=r,l,l,r", False, 1)
        source, target, inside = (np.broadcast_to(x, (PROGRAM_UNITS,)) for x in operands)
        pairs.extend((s, t) for s, t, on in zip(source.tolist(), target.tolist(), inside.tolist(), strict=True) if on)

    class Language:
        int32 = int64 = None
        inline_asm_elementwise = staticmethod(assembly)

        def __init__(self, number):
            self.number = number

        def program_id(self, axis):
            return np.array(self.number).view(Words)

        def arange(self, first, end):
            return np.arange(first, end).view(Words)

        def zeros(self, shape, kind):
            return np.zeros(shape, np.int64).view(Words)

    for number in range(launch.grid):
        names = {"triton": type("T", (), {"jit": staticmethod(lambda f: f)}), "tl": Language(number)}
        exec(re.sub(r"^import .*$", "", launch.source.text, flags=re.MULTILINE), names)
        names[launch.source.name](*(np.array(x.pointer).view(Words) for x in (read, write)))
    return pairs


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_every_unit_is_read_and_written_once(kind):
    read = array(kind, (3, 5, 64), (5 * 96 + 32, 96, 1))
    write = array(kind, (3, 5, 64), (64, 3 * 64, 1), 2 << 40)
    (launch,) = built(read, write).steps
    size = ITEMSIZE[kind]
    expected = {
        (read.pointer + i * read.strides[0] + j * read.strides[1] + k * size,
         write.pointer + i * write.strides[0] + j * write.strides[1] + k * size)
        for i in range(3) for j in range(5) for k in range(0, 64, 16 // size)
    }  # fmt: skip
    found = touched(launch, read, write)
    assert len(found) == len(expected)
    assert set(found) == expected
    assert launch.grid == -(-len(expected) // PROGRAM_UNITS)
    ending = {"f16": "add.acc::f32.v4.f16x2", "bf16": "add.acc::f32.v4.bf16x2", "f32": "add.v4.f32"}[kind]
    assert f"multimem.ld_reduce.relaxed.sys.global.{ending} " in launch.source.text


def test_what_does_not_fit_is_left_to_the_sum_that_reads_peers():
    read, write = array("f16", (4, 64), (128, 1)), array("f16", (4, 64), (64, 1), 2 << 40)
    assert built(read, write) is not None
    assert built(read, write, (8, 0)) is None
    assert built(read, replace(write, dtype="bf16")) is None
    assert built(replace(read, pointer=read.pointer + 8), write) is None
    assert built(array("f16", (4, 60), (128, 1)), array("f16", (4, 60), (64, 1))) is None
    assert built(array("f16", (4, 64), (132, 1)), write) is None
    assert built(array("f16", (4, 64), (128, 2)), write) is None
    assert built(array("f64", (4, 64), (64, 1)), array("f64", (4, 64), (64, 1))) is None
    assert built(array("i32", (4, 64), (64, 1)), array("i32", (4, 64), (64, 1))) is None
    assert built(array("f32", (), ()), array("f32", (), ())) is None
