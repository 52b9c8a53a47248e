"""Runs kernels as the executor does: they are prepared, bound to scratch memory, and run more than once."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import ANY_NUMBER, Invocation
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Attribute

BF16 = np.dtype(ml_dtypes.bfloat16)


def run(name, attributes, inputs, output, *blocks, repetitions=1):
    """Twice, with memory of exactly the size asked for and guards behind it."""
    kernel = prepare(replace(Invocation(name, attributes, inputs, [output], *blocks), repetitions=repetitions))
    memory = np.full(kernel.scratch + 64, 0xFF, np.uint8)
    bound = kernel.bind(memory)
    with np.errstate(all="ignore"):
        bound()
        bound()
    assert (memory[kernel.scratch :] == 0xFF).all()
    return output


def run_compiled(invocation: Invocation[Array], *changes: tuple[Array, Array]) -> Array:
    """Twice, as machine code however small it is, and once more after each change of an array."""
    kernel = prepare(replace(invocation, repetitions=ANY_NUMBER))
    memory = np.full(kernel.scratch + 128, 0xFF, np.uint8)
    start = -memory.ctypes.data % 64
    call = kernel.bind(memory[start : start + kernel.scratch])
    with np.errstate(all="ignore"):  # as executors run kernels
        call()
        call()
        for array, values in changes:
            array[...] = values
            call()
    assert (memory[start + kernel.scratch :] == 0xFF).all()
    return invocation.output


def lookup(ids: Array, rows: int, columns: int) -> tuple[str, dict[str, Attribute]]:
    """The kernel that looks up rows of a table by such ids, and its attributes."""
    names = [f"i{axis}" for axis in range(ids.ndim)]
    loops = [f"{name}={extent}" for name, extent in zip([*names, "d"], [*ids.shape, columns], strict=True)]
    shapes = f"{'x'.join(map(str, ids.shape)) or '-'} {rows}x{columns}"
    program = {"program": "t0 = copy x0", "aggregation": ""}
    reads = f"1[@1, d]; 0[{', '.join(names)}]"
    return "index", {"loops": " ".join(loops), "kept": len(loops), "reads": reads, "shapes": shapes, **program}


def concatenation(axis: int, *shapes: tuple[int, ...]) -> tuple[str, dict[str, Attribute]]:
    """The kernel that puts tensors of these shapes one after the other, and its attributes."""
    extents, starts = list(shapes[0]), [0]
    for shape in shapes:
        starts.append(starts[-1] + shape[axis])
    extents[axis] = starts[-1]
    names = [f"i{d}" for d in range(len(extents))]
    reads, value, steps = [f"#i{axis}"], f"x{len(shapes) - 1}", []
    for k in reversed(range(len(shapes))):
        moved = [f"{name}-{starts[k]}" if d == axis and k else name for d, name in enumerate(names)]
        reads.insert(0, f"{k}[{', '.join(moved)} | nearest]")
        if k:
            at = len(steps)
            steps += [f"t{at} = lt x{len(shapes)} {starts[k]}", f"t{at + 1} = where t{at} x{k - 1} {value}"]
            value = f"t{at + 1}"
    loops = " ".join(f"{name}={extent}" for name, extent in zip(names, extents, strict=True))
    attributes = {"loops": loops, "kept": len(names), "reads": "; ".join(reads), "program": "; ".join(steps)}
    return "index", {**attributes, "aggregation": "", "shapes": " ".join("x".join(map(str, s)) for s in shapes)}


def apply(program, *inputs, indices=None, out=None):
    inputs = [np.asarray(x) for x in inputs]
    names = ["a", "b", "c", "d"][: inputs[0].ndim]
    indices = indices or f"{', '.join([' '.join(names)] * len(inputs))} -> {' '.join(names)}"
    output = np.empty(inputs[0].shape if out is None else out[0], inputs[0].dtype if out is None else out[1])
    return run("map", {"program": program, "indices": indices}, inputs, output)


F = np.ones((2, 3), "f4")
