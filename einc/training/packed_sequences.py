"""Numbers of each token of packed sequences, as tensors that the graph computes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from einc.errors import OperatorError
from einc.training.tape import NodeGradient

MAX_LENGTHS = 200
"""The most sequences of different lengths: an index equation compares each token with all their ends, in four steps
each, and has at most 1,000."""


def write_by_sequence(node: NodeGradient, lens: Sequence[int], values: Sequence[int]) -> str:
    """Integers [tokens]: each token has the value of its sequence."""
    if len(lens) > MAX_LENGTHS:
        raise OperatorError(f"packs {len(lens)} sequences of different lengths; at most {MAX_LENGTHS} are supported")
    terms = [f"0 * i + {values[0]}"]
    for end, (before, value) in zip(accumulate(lens), pairwise(values), strict=False):
        terms.append(f"where(i >= {end}, {value - before}, 0 * i)")
    return node.write(f"number[i = {sum(lens)}] = {' + '.join(terms)}")


def write_sequence_numbers(node: NodeGradient, lens: Sequence[int]) -> str:
    """Integers [tokens]: the number of the sequence of each token."""
    if len(set(lens)) == 1:
        return node.write(f"number[i = {sum(lens)}] = i // {lens[0]}")
    return write_by_sequence(node, lens, range(len(lens)))
