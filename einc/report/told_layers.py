"""Rows of a document for every copy of a layer that a plan says once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc_runtime.plan.repetition import LayerPositions
from einc_runtime.plan.schema import Bundle, Operation
from einc_runtime.strict_json import Document


class ToldLayers:
    """What the copies of a layer are called, and when they run. `told` has the statements of the whole plan
    (`unfold_statements`)."""

    def __init__(self, told: Bundle) -> None:
        self._told = told
        self._said: dict[str, str] = {}
        self._before: dict[str, tuple[int, ...]] = {}
        self.renames: list[Mapping[str, str]] = [{}]
        """For the layer and each of its copies, the names that are in place of the layer's."""
        repetition = told.repetition
        if repetition is None:
            return
        copies = len(repetition.copies)
        layer: list[str] = []
        for name in ("tensors", "operations"):
            records, sections, end = getattr(told, name), getattr(repetition, name), 0
            layout = LayerPositions(sections, repetition.head, copies)
            for copied, shift in zip(layout.copied, layout.shifts, strict=False):
                layer += [record.name for record in records[copied.first + shift : copied.end + shift]]
            passed = [0] * len(repetition.operations)
            for s, copied in enumerate(layout.copied):
                # Tensors lie in more sections than operations: those of operators count, which have their names.
                if name == "operations":
                    first = copied.end + layout.shifts[s]
                    for c in range(1, copies + 1):
                        passed[s] = c
                        start = first + (c - 1) * copied.count
                        for record in records[start : start + copied.count]:
                            self._before.update(dict.fromkeys(self._name_results(record), tuple(passed)))
                    end = first + copies * copied.count
                    until = layout.copied[s + 1].end + layout.shifts[s + 1] if s + 1 < len(layout.copied) else None
                    for record in records[end:until]:
                        self._before.update(dict.fromkeys(self._name_results(record), tuple(passed)))
        for copy in repetition.copies:
            names = (*copy.tensors, *copy.operations)
            self.renames.append(dict(zip(layer, names, strict=True)))
            self._said.update(zip(names, layer, strict=True))

    def _name_results(self, operation: Operation) -> list[str]:
        """The names of an operation and of what it makes."""
        return [operation.name, *(self._told.tensors[t].name for t in operation.outputs)]

    def find_said(self, name: str) -> str:
        """The operator or tensor of the layer that this one is a copy of; else the name itself."""
        return self._said.get(name, name)

    def tell_operations(self, rows: Sequence[Document], periods_ms: Sequence[float]) -> list[Document]:
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
                "time": self.move_time(by_name[self.find_said(operation.name)]["time"], operation.name, periods_ms),
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

    def move_time(self, time: Document | None, name: str, periods_ms: Sequence[float]) -> Document | None:
        """The time of what the plan says, where the operator or output of this name has it."""
        passed = zip(periods_ms, self._before.get(name, ()), strict=False)
        later = sum(period_ms * copies for period_ms, copies in passed)
        if time is None or not later:
            return time
        return {**time, "start_ms": time["start_ms"] + later, "end_ms": time["end_ms"] + later}
