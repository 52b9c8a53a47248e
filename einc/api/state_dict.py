"""From the weights of a plan to those of the module that it was made of: rows are joined, shapes are the module's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from einc.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

_ROW_PART = re.compile(r"(?P<name>.+)\[(?P<start>\d+):(?P<stop>\d+)\]")
"""The name of a weight that is some rows of a stored one."""


def join_rows(arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The arrays by the names of whole weights, of the given shapes where they are known.

    `arrays` have the names that plans give to stored weights: `in_proj_weight[0:12]` are rows of `in_proj_weight`.
    Raises UsageError for a weight of which some rows are missing.
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
    return {name: array.reshape(shapes.get(name, array.shape)) for name, array in weights.items()}
