"""The kernel `rope` in numpy: rotary position embedding, element i with element i + d_head / 2.

Attributes: `theta`; `scaling` none, linear {factor} or llama3 {factor, low_freq_factor, high_freq_factor,
original_length}; `seq_lens` where positions are not an input: those of the whole tensor, from which the block's bounds
tell its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault, ValueFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, dtype_name, integers, single, text
from runtime.kernels.pieces import PIECE, Piece, Resolved, Walk, runner, walk_runner

_SCALINGS = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_length"),
}


@dataclass(frozen=True, slots=True)
class Rotation:
    """An invocation: its arrays, radians per position of each pair in f32, and every token's position.

    `given` says whether positions are an input, which may hold anything when the kernel runs.
    """

    source: Array
    target: Array
    frequencies: Array
    positions: Array
    given: bool


def parse(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    output_blocks: Sequence[Block],
) -> Rotation:
    """Raises PlanFault for what is no rope."""
    source, target = inputs[0] if inputs else single(inputs), single(outputs)
    kind = dtype_name(target)
    if source.shape != target.shape or source.dtype != target.dtype or compute(kind) not in ("f32", "f64"):
        raise PlanFault("rope has a floating input, and an output of its shape and type")
    if source.ndim < 2 or source.shape[-1] % 2:
        raise PlanFault(f"rope of shape {source.shape}: d_head is odd, or there are no tokens")
    tokens, half = source.shape[-2], source.shape[-1] // 2
    with np.errstate(all="ignore"):  # absurd parameters give infinities, and those not-a-numbers
        frequencies, seq_lens = _parameters(attributes, half)
    given = len(inputs) == 2
    if given != (seq_lens is None):
        raise PlanFault("rope has positions either as its second input or by seq_lens")
    if given and (inputs[1].shape != (tokens,) or inputs[1].dtype.kind != "i"):
        raise PlanFault(f"rope of {tokens} tokens with positions {inputs[1].dtype}{inputs[1].shape}")
    positions = inputs[1] if seq_lens is None else _places(seq_lens, source, output_blocks)
    return Rotation(source, target, frequencies, positions, given)


def build_rope(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """Angles are rounded to f32, as the models that use this were trained and are run elsewhere."""
    rotation = parse(attributes, inputs, outputs, output_blocks)
    source, target, frequencies, positions = rotation.source, rotation.target, rotation.frequencies, rotation.positions
    tokens, half = source.shape[-2], source.shape[-1] // 2
    dtype = storage(compute(dtype_name(target)))
    leading = math.prod(source.shape[:-2])
    step = max(1, min(tokens, PIECE // max(1, leading * half)))
    walk = Walk((tokens,), 0, step)
    scratch = ScratchPlan()
    angles = scratch.take((step, half), np.dtype(np.float32))
    waves = [scratch.take((step, half), dtype) for _ in range(2)]
    products = [scratch.take((*source.shape[:-2], step, half), dtype) for _ in range(2)]
    converted = None if source.dtype == dtype else scratch.take((*source.shape[:-2], step, 2 * half), dtype)

    def bind(memory: Array) -> Run:
        angle, cosine, sine, one, other = (array.of(memory) for array in (angles, *waves, *products))

        def calls(piece: Piece) -> list[Resolved]:
            part = slice(piece.count)
            span = slice(piece.start[0], piece.start[0] + piece.count)
            a, cos, sin = angle[part], cosine[part], sine[part]
            u, v = one[..., part, :], other[..., part, :]
            wide = source[..., span, :]
            before: list[Resolved] = []
            if converted is not None:
                wide = converted.of(memory)[..., part, :]
                before.append((np.copyto, [wide, source[..., span, :]]))
            x, y = wide[..., :half], wide[..., half:]
            return [
                *before,
                (_apply, [np.multiply, positions[span, None], frequencies, a]),
                (_wave, [np.cos, a, cos]),
                (_wave, [np.sin, a, sin]),
                (np.multiply, [x, cos, u]),
                (np.multiply, [y, sin, v]),
                (_apply, [np.subtract, u, v, target[..., span, :half]]),
                (np.multiply, [y, cos, u]),
                (np.multiply, [x, sin, v]),
                (_apply, [np.add, u, v, target[..., span, half:]]),
            ]

        turn = walk_runner(walk, calls)
        return runner([(require_natural, [positions]), (turn, [])]) if rotation.given else turn

    return Kernel(bind, scratch.size, 2.0 * source.size + 40.0 * tokens * half)


def _parameters(attributes: Mapping[str, Attribute], half: int) -> tuple[Array, list[int] | None]:
    """Radians per position of each pair in f32, and the lengths of the packed sequences, if there are any."""
    scaling = text(attributes, tuple(attributes), "scaling")
    if scaling not in _SCALINGS:
        raise PlanFault(f"rope with the unknown scaling '{scaling[:40]}'")
    allowed = ("theta", "scaling", "seq_lens", *_SCALINGS[scaling])
    theta, *scales = (_positive(attributes, allowed, name) for name in ("theta", *_SCALINGS[scaling]))
    exponents = np.arange(half, dtype=np.float32) / np.float32(half)
    frequencies = 1 / np.power(theta, exponents, dtype=np.float64).astype(np.float32)
    if scaling == "linear":
        frequencies /= scales[0]
    elif scaling == "llama3":
        factor, low, high, original = scales
        if low >= high:
            raise PlanFault(f"rope with low_freq_factor {low} and high_freq_factor {high}")
        lengths = 2 * math.pi / frequencies
        blend = (original / lengths - low) / (high - low)
        blended = (1 - blend) * frequencies / factor + blend * frequencies
        frequencies = np.where(lengths > original / low, frequencies / factor, np.where(
            lengths < original / high, frequencies, blended))  # fmt: skip
    return frequencies, integers(attributes, allowed, "seq_lens") if "seq_lens" in attributes else None


def _positive(attributes: Mapping[str, Attribute], allowed: Sequence[str], name: str) -> float:
    value = attribute(attributes, allowed, name, float)
    assert isinstance(value, float)
    if not 0 < value < math.inf:
        raise PlanFault(f"rope with {name} {value}")
    return value


def _places(seq_lens: Sequence[int], source: Array, blocks: Sequence[Block]) -> Array:
    """The position of every token of the block in its own sequence."""
    (block,) = blocks
    lower, upper = block.lower[-2], block.upper[-2]
    ends = np.cumsum(np.array(seq_lens, np.int64))
    if upper - lower != source.shape[-2] or upper > ends[-1]:
        raise PlanFault(f"rope of tokens {lower} to {upper} of {ends[-1]}, with a block of shape {source.shape}")
    places = np.arange(lower, upper)
    starts = np.concatenate([[0], ends[:-1]])
    result: Array = places - starts[np.searchsorted(ends, places, side="right")]
    return result


def require_natural(positions: Array) -> None:
    if positions.min() < 0:
        raise ValueFault(f"a position is {int(positions.min())}; positions are 0 or more")


def _wave(function: np.ufunc, angles: Array, target: Array) -> None:
    function(angles, out=target, dtype=target.dtype)


def _apply(function: np.ufunc, *arguments: Array) -> None:
    """The last argument is the output; what is computed wider is rounded into it."""
    function(*arguments[:-1], out=arguments[-1], casting="unsafe")
