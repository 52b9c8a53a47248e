"""Rows of a document for every copy of a layer that a plan says once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einc_runtime.plan.schema import Bundle

Document = dict[str, Any]


class ToldLayers:
    """What the copies of a layer are called, and when they run. `told` has the statements of the whole plan
    (`unfold_statements`)."""

    def __init__(self, told: Bundle) -> None:
        self._told = told
        self._said: dict[str, str] = {}
        self._before: dict[str, int] = {}
        self.renames: list[Mapping[str, str]] = [{}]
        """For the layer and each of its copies, the names that are in place of the layer's."""
        repetition = told.repetition
        if repetition is None:
            return
        tensors, operations, copies = repetition.tensors, repetition.operations, len(repetition.copies)
        layer = [tensor.name for tensor in told.tensors[tensors.first : tensors.end]]
        layer += [operation.name for operation in told.operations[operations.first : operations.end]]
        for c, copy in enumerate(repetition.copies, start=1):
            names = (*copy.tensors, *copy.operations)
            self.renames.append(dict(zip(layer, names, strict=True)))
            self._said.update(zip(names, layer, strict=True))
            self._before.update(dict.fromkeys(names, c))
        behind = [tensor.name for tensor in told.tensors[tensors.end + copies * tensors.count :]]
        behind += [entry.name for entry in told.operations[operations.end + copies * operations.count :]]
        self._before.update(dict.fromkeys(behind, copies))

    def find_said(self, name: str) -> str:
        """The operator or tensor of the layer that this one is a copy of; else the name itself."""
        return self._said.get(name, name)

    def tell_operations(self, rows: Sequence[Document], period_ms: float) -> list[Document]:
        """The rows of operators, and those of their copies."""
        by_name = {row["name"]: row for row in rows}
        tensors = self._told.tensors
        return [
            {
                **by_name[self.find_said(operation.name)],
                "name": operation.name,
                "source": operation.source,
                "inputs": [tensors[t].name for t in operation.inputs],
                "outputs": [tensors[t].name for t in operation.outputs],
                "time": self.move_time(by_name[self.find_said(operation.name)]["time"], operation.name, period_ms),
            }
            for operation in self._told.operations
            if self.find_said(operation.name) in by_name
        ]

    def tell_weights(self, rows: Sequence[Document]) -> list[Document]:
        """The rows of weights, and those of their copies."""
        by_name = {row["name"]: row for row in rows}
        weights = [tensor for tensor in self._told.tensors if tensor.kind == "weight"]
        return [
            {**by_name[self.find_said(weight.name)], "name": weight.name, "stored": weight.stored or weight.name}
            for weight in weights
        ]

    def move_time(self, time: Document | None, name: str, period_ms: float) -> Document | None:
        """The time of what the plan says, where the operator or output of this name has it."""
        later = period_ms * self._before.get(name, 0)
        if time is None or not later:
            return time
        return {**time, "start_ms": time["start_ms"] + later, "end_ms": time["end_ms"] + later}
