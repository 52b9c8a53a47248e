"""Which dimensions of its tensors an operator cuts along each of its indices, found from its specs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from einc.core.intervals import Interval
from einc.ops.base import Operator


@dataclass(frozen=True, slots=True)
class Reach:
    """What cutting one index of an operator cuts: (tensor, dimension) pairs of its inputs and of its outputs.

    Blocks that have more than one position in common are no cut: a part of attention's queries reads all keys before
    them. The index has up to `extent` intervals. A `parallel` index cuts every output. Another one makes partial
    results, or lets several sites read one block.
    """

    extent: int
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    parallel: bool


@lru_cache(maxsize=256)
def find_reaches(operator: Operator) -> tuple[Reach, ...]:
    """The reach of every shardable index, in their order; that of an index that cannot be cut is empty."""
    uncut = [index.intervals(1) for index in operator.indices]
    reaches = []
    for position, index in enumerate(operator.indices):
        if index.max_intervals < 2:
            reaches.append(Reach(1, (), (), False))
            continue
        intervals = (*uncut[:position], index.intervals(2), *uncut[position + 1 :])
        functions = operator.build_spec(intervals).functions
        sides = []
        for blocks, wholes in (
            ([f.inputs for f in functions], operator.inputs),
            ([f.outputs for f in functions], operator.outputs),
        ):
            sides.append(
                tuple(
                    (k, d)
                    for k, desc in enumerate(wholes)
                    for d in range(desc.rank)
                    if _is_cut([(block[k].lower[d], block[k].upper[d]) for block in blocks], desc.shape[d])
                )
            )
        inputs, outputs = sides
        parallel = {j for j, _ in outputs} == set(range(len(operator.outputs)))
        reaches.append(Reach(index.max_intervals, inputs, outputs, parallel))
    return tuple(reaches)


def _is_cut(intervals: Sequence[Interval], extent: int) -> bool:
    """Whether the two parts of an operator read or write different parts of a dimension."""
    (_, end), (start, _) = sorted(intervals)
    return any(interval != (0, extent) for interval in intervals) and end - start <= 1


def find_index(operator: Operator, name: str) -> str | None:
    """The index of that name, else the one that alone cuts a dimension of that name (in the outputs, or in the inputs).

    Where several cut it, one of the paper's (without an `instead_of`) comes first. None if there is none, or not one.
    """
    indices, reaches = operator.indices, find_reaches(operator)
    if any(index.name == name for index in indices):
        return name
    for side, tensors in (("outputs", operator.outputs), ("inputs", operator.inputs)):
        places = {(k, d) for k, tensor in enumerate(tensors) for d, dim in enumerate(tensor.dims) if dim == name}
        matching = [i for i, reach in zip(indices, reaches, strict=True) if places.intersection(getattr(reach, side))]
        for chosen in (matching, [index for index in matching if not index.instead_of]):
            if len(chosen) == 1:
                return chosen[0].name
    return None
