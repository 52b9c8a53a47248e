"""How files hold quantized weights of a model that transformers builds: what its text says of each of its weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.moving import transpose
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array
from einc.importers.quantization import WEIGHT, Quantization

_TENSORS = re.compile(r"\[\d+:\d+\]$|[*]|\(([^|)]+)[^)]*\)")
"""In the name of a weight in files: rows, the number of each tensor, and parts of which one lies behind another."""


@dataclass(frozen=True, slots=True)
class ExportedWeights:
    """How files, whose tensors have these `names` (None: there are none), hold the weights of a model that transformers
    builds. None is quantized where `quantization` is None; what is multiplied with them is not rounded."""

    quantization: Quantization | None = None
    names: frozenset[str] | None = None

    def format_storage(self, stored: str, shape: Sequence[int], rows: int) -> str:
        """What stands behind the type of a weight, of which the first `rows` dimensions are rows: nothing where it is
        not quantized, or is widened when it is read: groups that are no parts of its rows, and tensors of which one
        lies behind another, each with one scale."""
        quantization = self.quantization
        if quantization is None or len(shape) < 2 or not self._has(stored):
            return ""
        if shape[-1] % max(1, quantization.group) or (quantization.one_scale and "(" in stored):
            return ""
        channels = rows if rows < len(shape) - 1 else 0
        return f" as {quantization.format_storage(channels, is_stack='*' in stored)}"

    def declare(self, program: ArrayProgram, stored: str, shape: Sequence[Extent], type_: ElementType) -> Array:
        """A weight of a program, which files call so."""
        quantization, name = self.quantization, stored.replace(".", "_")
        if quantization is not None and quantization.layout == "packed" and len(shape) > 1:
            in_files = (*shape[:-2], shape[-1], shape[-2])
            if self.format_storage(stored, [extent.value for extent in in_files], len(shape) - 1):
                weight = program.weight(name, in_files, type_, stored)
                return transpose(program, weight, [*range(len(shape) - 2), -1, -2], name)
        return program.weight(name, shape, type_, stored)

    def list_names(self) -> list[str] | None:
        """The names of the files' tensors, with those of what they have in words."""
        if self.names is None:
            return None
        return sorted({*self.names, *(name.removesuffix("_packed") for name in self.names)})

    def _has(self, stored: str) -> bool:
        assert self.quantization is not None
        first = _TENSORS.sub(lambda match: match[1] or "0" * (match[0] == "*"), stored).removesuffix(WEIGHT)
        if self.names is not None:
            return first + self.quantization.parts[0] in self.names
        return first.endswith("_proj") and (self.quantization.layout != "packed" or ".experts." in first)
