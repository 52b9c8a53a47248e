"""Separate results: a map that may be joined to a convolution writes where the convolution reads nothing.

The plan often puts its result where the convolution's image was, which nobody reads any more when the map runs. Joined
to the convolution, it would write over pixels that are still to be read. So values get other places: images keep theirs
until the map has run, and the map's result lies where an image did that the map adds, if nobody reads that later. The
library adds in place.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from einc_runtime.execution.rewrites.convolutions import read_convolution
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.execution.rewrites.map_joining import are_alike
from einc_runtime.kernels.base import ALIGNMENT
from einc_runtime.kernels.numpy import onednn
from einc_runtime.plan.epilogues import list_contracted_operands
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.regions import buffer_bytes
from einc_runtime.plan.schema import Bundle, KernelTask, Operation


class _Pair(NamedTuple):
    """A convolution, the map of its result, which is this task, and the operand that the result is."""

    first: KernelTask
    then: KernelTask
    task: int
    operand: int


def separate_results(bundle: Bundle) -> Bundle:
    """The plan with values elsewhere, if it has such maps, and there is the library that computes both at once."""
    pairs = list(_list_pairs(bundle)) if onednn.is_available() else []
    if not pairs:
        return bundle
    lifetimes = Lifetimes(bundle, bundle.tasks)
    scratch = [number for number, record in enumerate(bundle.buffers) if record.role == "scratch"]
    uses = {
        number: [*lifetimes.writers.get(number, ()), *lifetimes.readers.get(number, ())] or [0] for number in scratch
    }
    lives = {number: (min(tasks), max(tasks)) for number, tasks in uses.items()}
    for pair in pairs:
        for source in {region.buffer for region in pair.first.reads} & lives.keys():
            lives[source] = lives[source][0], max(lives[source][1], pair.task)
    written_over: dict[int, int] = {}
    for pair in pairs:
        target = pair.then.writes[0].buffer
        added = next((n for n in _list_added(bundle, pair) if lives.get(n, (0, 0))[1] == pair.task), None)
        if added is not None and target in lives and lifetimes.writers[target] == [pair.task]:
            first = written_over.get(added, added)
            written_over[target] = first
            lives[first] = lives[first][0], lives[target][1]
    places = _find_places(bundle, {number: life for number, life in lives.items() if number not in written_over})
    buffers, memory = list(bundle.buffers), list(bundle.memory)
    for number in scratch:
        record = msgspec.structs.replace(buffers[number], offset=places[written_over.get(number, number)])
        buffers[number] = record
        memory[record.site] = max(memory[record.site], record.offset + buffer_bytes(bundle, record))
    return msgspec.structs.replace(bundle, buffers=tuple(buffers), memory=tuple(memory))


def _list_pairs(bundle: Bundle) -> Iterator[_Pair]:
    for number, candidates in list_contracted_operands(bundle, bundle.tasks, contracts=_is_convolution):
        then = bundle.tasks[number]
        for contraction, operand in sorted(candidates, reverse=True):
            first = bundle.tasks[contraction]
            assert isinstance(first, KernelTask)
            assert isinstance(then, KernelTask)
            tensor = bundle.tensors[bundle.buffers[then.writes[0].buffer].tensor]
            if tensor.dtype == "f32" and are_alike(bundle, first, then, operand):
                yield _Pair(first, then, number, operand)
                break


def _is_convolution(operation: Operation) -> bool:
    return read_convolution(operation) is not None


def _list_added(bundle: Bundle, pair: _Pair) -> Iterator[int]:
    """Operands of the map that are like its result, and that the convolution does not read."""
    equation = parse_index_equation(str(bundle.operations[pair.then.operation].kernel_attributes["indices"]))
    (target,) = pair.then.writes

    def describe(buffer: int) -> tuple[object, ...]:
        record = bundle.buffers[buffer]
        tensor = bundle.tensors[record.tensor]
        return record.role, record.site, record.block, tensor.dtype, tensor.order

    for position, region in enumerate(pair.then.reads):
        if (
            position != pair.operand
            and equation.inputs[position] == equation.output
            and region.block == target.block == bundle.buffers[target.buffer].block
            and describe(region.buffer) == describe(target.buffer)
            and all(source.buffer != region.buffer for source in pair.first.reads)
        ):
            yield region.buffer


def _find_places(bundle: Bundle, lives: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Offsets for buffers, by the first and the last task that use each: the least where nothing else lies then."""
    taken: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, record in enumerate(bundle.buffers):
        if number not in lives and record.role != "scratch":
            taken[record.site].append((record.offset, record.offset + buffer_bytes(bundle, record), len(bundle.tasks)))
    for ranges in taken.values():
        ranges.sort()
    places: dict[int, int] = {}
    for number in sorted(lives, key=lambda number: (lives[number][0], number)):
        record, (first, last) = bundle.buffers[number], lives[number]
        ranges = taken[record.site]
        ranges[:] = [held for held in ranges if held[2] >= first]
        size = buffer_bytes(bundle, record)
        places[number] = _find_gap(ranges, size)
        insort(ranges, (places[number], places[number] + size, last))
    return places


def _find_gap(ranges: Iterable[tuple[int, int, int]], size: int) -> int:
    """The least offset with so many bytes that none of these ranges has, which are in order."""
    offset = 0
    for begin, stop, _ in ranges:
        if offset + size <= begin:
            break
        offset = max(offset, -(-stop // ALIGNMENT) * ALIGNMENT)
    return offset
