"""What each ATen operator becomes: a function for each, by the name and the argument names of its schema.

Operators of one subject are in one file.
"""

from __future__ import annotations

from einc.importers.pytorch.aten import (
    attention,
    complex_numbers,
    elementwise,
    experts,
    indexing,
    making,
    moving,
    networks,
    products,
    recurrences,
    recurrent_layers,
    reducing,
    symbolic,
)
from einc.importers.pytorch.aten.table import AtenOperator, collect_operators

_SUBJECTS = (
    attention, complex_numbers, elementwise, experts, indexing, making, moving, networks, products, recurrences,
    recurrent_layers, reducing, symbolic
)  # fmt: skip
ATEN = {name: operator for module in _SUBJECTS for name, operator in collect_operators(module).items()}


def find_operator(target: str) -> AtenOperator | None:
    """The operator that a node names, as `torch.ops.aten.add.Tensor`: by its name with the overload, or without."""
    name = target.removeprefix("torch.ops.").removeprefix("aten.")
    return ATEN.get(name) or ATEN.get(name.rpartition(".")[0] or name)
