"""Writing new rows into a key/value cache at given positions; the result is the cache with those rows replaced.

Heads, columns and the rows of the cache are shardable anywhere. If its rows are cut, a function specification reads the
new rows of every sequence with rows in its block, and keeps those whose position is in the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, read_lengths, reject_others, require_tensors
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator
from einc_runtime.plan.states import IN_PLACE

CALLS = ("append",)


@dataclass(frozen=True, slots=True)
class Append(DerivedMappedOperator):
    """`cache` [heads, rows, d] with `new` [heads, tokens, d] written into it.

    Rows and tokens are packed sequences of lengths `cache_lens` and `new_lens`. `positions` [tokens] count from the
    first row of the token's sequence. If two tokens have the same position, the later one counts. New rows are rounded
    as they are written where the cache has floats of 8 bits. `in_place`, the cache is a state, and only they move.
    """

    family: ClassVar[str] = "append"

    cache: TensorDesc
    new: TensorDesc
    positions: TensorDesc
    cache_lens: tuple[int, ...]
    new_lens: tuple[int, ...]
    in_place: bool = False

    @property
    def attributes(self) -> Attributes:
        attributes: Attributes = {"cache_lens": self.cache_lens, "new_lens": self.new_lens}
        return {**attributes, IN_PLACE: True} if self.in_place else attributes

    def update(self) -> Operator:
        return replace(self, in_place=True)

    def traffic(self, function: FunctionSpec) -> int:
        """In place, the new rows are read and written, with their positions."""
        if not self.in_place:
            return DerivedMappedOperator.traffic(self, function)
        _, new, positions = function.inputs
        both = self.new.dtype.itemsize + self.cache.dtype.itemsize
        return new.size * both + positions.size * self.positions.dtype.itemsize

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        from einc.ops.evaluate import round_to

        cache, new, positions = arrays
        result, rounded = cache.copy(), round_to(new, self.cache.dtype)
        first_row = first_token = 0
        for rows, tokens in zip(self.cache_lens, self.new_lens, strict=True):
            for token in range(first_token, first_token + tokens):
                result[:, first_row + positions[token]] = rounded[:, token]
            first_row, first_token = first_row + rows, first_token + tokens
        return (result,)

    def flops(self, function: FunctionSpec) -> int:
        return 0


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`append(cache, new, positions, cache_lens=[64, 64], new_lens=[1, 1])`."""
    reject_others(name, attributes, "cache_lens", "new_lens")
    return restore(require_tensors(name, arguments, 3), attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The operator with these attributes; raises OperatorError if they are not those of an append."""
    if len(inputs) != 3:
        raise OperatorError("append has three inputs: a cache, new rows, and their positions")
    cache, new, positions = inputs
    if cache.rank != 3:
        raise OperatorError(f"append: the cache is {cache}, expected heads, rows and columns", argument=0)
    rounds = cache.dtype.is_narrow_float and new.dtype.is_float
    if not (rounds or new.dtype is cache.dtype) or new.rank != 3 or new.shape[::2] != cache.shape[::2]:
        expected = f"{cache.dtype}{' or a wider float' if cache.dtype.is_narrow_float else ''}"
        raise OperatorError(
            f"append: the new rows are {new}, expected {expected} with the heads and columns of {cache}", argument=1
        )
    tokens = new.shape[1]
    if not positions.dtype.is_integer or positions.shape != (tokens,):
        raise OperatorError(
            f"append: the positions are {positions}, expected i64[{new.dims[1]}={tokens}], one for each new row",
            argument=2,
        )
    cache_lens = read_lengths("append", attributes, "cache_lens", cache.shape[1], cache.dims[1])
    new_lens = read_lengths("append", attributes, "new_lens", tokens, new.dims[1])
    if len(cache_lens) != len(new_lens):
        raise OperatorError(
            f"append: {len(new_lens)} sequences of new rows for {len(cache_lens)} sequences of the cache",
            argument="new_lens" if "new_lens" in attributes else "cache_lens",
        )
    for number, (rows, more) in enumerate(zip(cache_lens, new_lens, strict=True)):
        if more > rows:
            raise OperatorError(
                f"append: sequence {number} gets {more} new rows, and its cache has {rows}", argument="new_lens"
            )
    return Append(cache, new, positions, cache_lens, new_lens, attributes.get(IN_PLACE) is True)


FAMILIES = {Append.family: restore}
