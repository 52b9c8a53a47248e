"""Looking up rows of a table: the vector of every token's id.

Ids, columns and the vocabulary are shardable anywhere. If the vocabulary is cut, a function specification has some of
the rows and contributes zeros for all others; the partial results are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, make_unique, reject_others, require_tensors
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("embedding",)


@dataclass(frozen=True, slots=True)
class Embedding(MappedOperator):
    """table[ids]: the dimensions of `ids`, then the columns of `table`."""

    family: ClassVar[str] = "embedding"

    ids: TensorDesc
    table: TensorDesc

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        dims = make_unique([*self.ids.dims, self.table.dims[1]])
        return (TensorDesc(dims, (*self.ids.shape, self.table.shape[1]), self.table.dtype),)

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        """The dimensions of the ids, the vocabulary, the columns."""
        return tuple(map(ShardableIndex, self._names, (*self.ids.shape, *self.table.shape)))

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        *ids, vocabulary, columns = map(DimMap, self._names)
        return (tuple(ids), (vocabulary, columns))

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        *ids, _, columns = map(DimMap, self._names)
        return ((*ids, columns),)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("embedding", (("vocabulary", self.table.shape[0]),))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        ids, table = arrays
        return (table[ids],)

    def flops(self, function: FunctionSpec) -> int:
        return 0

    def traffic(self, function: FunctionSpec) -> int:
        """The ids, and the rows that they pick, which are read and written; the rest of the table is not read."""
        ids, (rows,) = function.inputs[0], function.outputs
        return ids.size * self.ids.dtype.itemsize + 2 * rows.size * self.table.dtype.itemsize

    @property
    def _names(self) -> tuple[str, ...]:
        return make_unique([*self.ids.dims, *self.table.dims])


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`embedding(ids, table)`."""
    reject_others(name, attributes)
    return restore(require_tensors(name, arguments, 2), attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The lookup in these tensors; raises OperatorError if a lookup does not have such tensors."""
    if len(inputs) != 2:
        raise OperatorError("embedding has two inputs, ids and a table")
    ids, table = inputs
    if not ids.dtype.is_integer:
        raise OperatorError(f"embedding: ids are integers, not {ids.dtype}", argument=0, hint="embedding(ids, table)")
    if table.rank != 2 or table.dtype is DType.BOOL:
        raise OperatorError(
            f"embedding: the table is {table}, expected numbers in two dimensions: vocabulary, columns", argument=1
        )
    return Embedding(ids, table)


FAMILIES = {Embedding.family: restore}
