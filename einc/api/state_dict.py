"""From the weights of a plan, or a checkpoint, to those of the module that it was made of: rows are joined, shapes are
the module's."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from einc.core.tensor import Array
from einc.errors import UsageError
from einc_runtime.text import quote_names

_ROW_PART = re.compile(r"(?P<name>.+)\[(?P<start>\d+):(?P<stop>\d+)\]")
"""The name of a weight that is some rows of a stored one."""


def readStateDict(path: str | os.PathLike[str], module: Any) -> dict[str, Any]:
    """The weights of a checkpoint of `einc train` or `plan.saveCheckpoint` as tensors of torch, by the names that they
    have in a module, and in its shapes: for `module.load_state_dict(einc.readStateDict(path, module), strict=False)`.

    `module` is the one that the plan was made of, or one with equal parameters. What the module does not have, such as
    moments of the optimizer, is left out. Raises UsageError where no weight is one of the module's, or of another size,
    ArrayFault for a file that is no checkpoint.
    """
    import torch

    from einc_runtime.execution.data.dlpack import as_dlpack
    from einc_runtime.execution.data.safetensors import SafetensorsFile

    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    file = SafetensorsFile(os.fspath(path))
    names = [name for name in file.entries if (_ROW_PART.sub(r"\g<name>", name)) in shapes]
    if not names:
        hint = f"it has {quote_names(list(file.entries)[:5])}, the module {quote_names(list(shapes)[:5])}"
        raise UsageError("no weight of the file is one of the module", where=os.fspath(path), hint=hint)
    joined = join_rows({name: file.array(name) for name in names}, shapes)
    return {name: torch.from_dlpack(as_dlpack(array)) for name, array in joined.items()}


def join_rows(arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The arrays by the names of whole weights, of the given shapes where they are known.

    `arrays` have the names that plans give to stored weights: `in_proj_weight[0:12]` are rows of `in_proj_weight`.
    Raises UsageError for a weight of which some rows are missing, or that has another size.
    """
    weights: dict[str, Array] = {}
    parts: dict[str, list[tuple[int, int, Array]]] = {}
    for name, array in arrays.items():
        rows = _ROW_PART.fullmatch(name)
        if rows is None:
            weights[name] = array
        else:
            start, stop = int(rows["start"]), int(rows["stop"])
            parts.setdefault(rows["name"], []).append((start, stop, array.reshape(stop - start, -1)))
    for name, stored_rows in parts.items():
        stored_rows.sort(key=lambda part: part[:2])
        ends = [0, *(stop for _, stop, _ in stored_rows)]
        shape = shapes.get(name)
        if [start for start, _, _ in stored_rows] != ends[:-1] or (shape is not None and shape[0] != ends[-1]):
            raise UsageError(f"the plan has only some rows of {name}")
        weights[name] = np.concatenate([array for _, _, array in stored_rows])
    for name, array in weights.items():
        if array.size != math.prod(shapes.get(name, array.shape)):
            raise UsageError(f"{name} has {array.size:,} elements, and the module's has shape {list(shapes[name])}")
    return {name: array.reshape(shapes.get(name, array.shape)) for name, array in weights.items()}
