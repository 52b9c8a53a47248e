"""Operators that write over a tensor (`add_`), in programs that were saved without `run_decompositions`.

Such an operator is what it would be without writing, and the tensor's name then means the result. That is right as long
as no view shares the tensor's elements; with views, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

_VIEWS = frozenset(
    ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "movedim",
     "expand", "expand_as", "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "alias",
     "detach", "contiguous", "to", "_to_copy", "type_as", "diagonal", "unfold", "swapaxes", "numpy_T", "mT",
     "tensor_split",
     "view_as", "reshape_as", "dropout", "broadcast_tensors", "as_strided", "real", "lift_fresh")
)  # fmt: skip
"""Operators whose results may share elements with what they read."""


def read_operator(target: str) -> str:
    """The name of an operator without its overload: `add_` of `torch.ops.aten.add_.Tensor`."""
    return target.removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]


def is_in_place(target: str) -> bool:
    name = read_operator(target)
    return name.endswith("_") and not name.endswith("__") and target.startswith("torch.ops.aten.")


def name_without_writing(target: str) -> str:
    """The operator that computes the same and writes nothing."""
    name = read_operator(target)
    return target.replace(f".{name}.", f".{name[:-1]}.")


class SharedElements:
    """Which names of a graph may share elements. `last_reads` says after how many nodes a name is read for the last
    time; names that it lacks may be read at any time."""

    def __init__(self, last_reads: Mapping[str, int]) -> None:
        self._groups: dict[str, set[str]] = {}
        self._last_reads = last_reads
        self.position = 0

    def add(self, target: str, read: list[str], written: list[str]) -> None:
        """Notes a node that reads and makes tensors of these names."""
        if read_operator(target) in _VIEWS and read:
            group = self._groups.setdefault(read[0], {read[0]})
            group.update(written)
            self._groups.update(dict.fromkeys(written, group))

    def list_views(self, name: str) -> list[str]:
        """The names that share elements with this one and are still read."""
        views = self._groups.get(name, set()) - {name}
        return sorted(view for view in views if self._last_reads.get(view, self.position + 1) > self.position)
