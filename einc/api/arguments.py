"""What Python programs pass, checked: shapes, element types, names and numbers, and the options of `compile`.

`einc.options.CompileOptions` has the meaning of options.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from einc.core.tensor import ELEMENT_TYPES, FLOAT_NAMES, DType, TensorDesc
from einc.errors import OperatorError, UsageError
from einc_runtime.plan.schema import MAX_RANK

if TYPE_CHECKING:
    from einc.exchange.synthesis.proposers import Proposer

Number: TypeAlias = bool | int | float

MAX_TENSOR_NAME = 1000
"""Characters of a tensor's name, as in the language."""

MAX_TENSOR_BYTES = 2**63
"""As in the language: offsets are integers of 64 bits."""

Shape = Sequence[int] | Mapping[str, int] | Sequence[tuple[str, int]]
"""Extents, or names of dimensions with their extents; pairs of both where two dimensions have one name."""


def read_shape(shape: Shape) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and extents of dimensions; those without names are `d0`, `d1`, ... Raises UsageError."""
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise UsageError(f"a shape is a list of dimensions, not {shape!r:.80}")
    entries = list(shape.items()) if isinstance(shape, Mapping) else list(shape)
    pairs = [entry if isinstance(entry, tuple) else (f"d{d}", entry) for d, entry in enumerate(entries)]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"a dimension is an extent, or a name with an extent, not {entries!r:.80}")
    names, listed = tuple(pair[0] for pair in pairs), [pair[1] for pair in pairs]
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_TENSOR_NAME:
            raise UsageError(f"a dimension's name consists of letters, digits and _, unlike {name!r:.80}")
    extents = []
    for extent in listed:
        if isinstance(extent, bool) or not hasattr(extent, "__index__"):
            raise UsageError(f"a dimension must be an integer, not {extent!r:.80}")
        number = int(extent.__index__())
        if not 1 <= number < MAX_TENSOR_BYTES:
            raise UsageError(f"a dimension must be at least 1 and fit 63 bits, not {number}")
        extents.append(number)
    return names, tuple(extents)


def read_dtype(dtype: Any) -> DType:
    """An element type by its name ("f16", "float16"), or as a type of numpy or torch. Raises UsageError."""
    if isinstance(dtype, DType):
        return dtype
    known = {member.value: member for member in ELEMENT_TYPES}
    told = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
    name = str(told).removeprefix("torch.")
    name = {**FLOAT_NAMES, "int32": "i32", "int64": "i64", "bool_": "bool"}.get(name, name)
    if name not in known:
        raise UsageError(f"unknown dtype {dtype!r:.80}", hint=f"dtypes are {', '.join(known)}")
    return known[name]


def resolve_axis(axis: int, desc: TensorDesc) -> int:
    """The dimension that an axis means; negative ones count from the end."""
    if not isinstance(axis, int) or not -desc.rank <= axis < desc.rank:
        raise OperatorError(f"there is no axis {axis!r:.40} in {desc}")
    return axis % desc.rank


def check_name(name: str) -> str:
    """The name of a tensor. Raises UsageError for one that no tensor can have."""
    if not isinstance(name, str) or not name or len(name) > MAX_TENSOR_NAME or not name.isprintable():
        raise UsageError(
            f"a tensor's name cannot be empty, has at most {MAX_TENSOR_NAME:,} printable characters: {name!r:.80}"
        )
    return name


def check_size(desc: TensorDesc) -> None:
    """Raises OperatorError for a tensor that the language refuses, too."""
    if desc.rank > MAX_RANK:
        raise OperatorError(f"a tensor has at most {MAX_RANK} dimensions, and this one {desc.rank}")
    if desc.type.size * desc.dtype.itemsize >= MAX_TENSOR_BYTES:
        raise OperatorError(f"this tensor is too large: {desc} has 2**63 bytes or more")


def read_number(value: Any) -> Number:
    """A number of Python or numpy. Raises UsageError."""
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # types of numpy derive from Python's
    if not isinstance(value, bool | int | float):
        raise UsageError(
            f"expected a tensor of this graph or a number, not {type(value).__name__}",
            hint="insertTensor makes an input or weight of the graph, and load gives it the values of an array",
        )
    return value


class GraphOptions(TypedDict, total=False):
    """How a graph is planned: `memory` is in bytes of each site, or such as "24GiB", `time_limit` in seconds."""

    selector: Literal["fastest", "eindecomp", "greedy", "random"]
    seed: int
    time_limit: float | None
    ideal: bool
    memory: int | str | None
    input_placement: Literal["replicated", "once"]
    reproducible: bool
    price_pins: bool
    tiles: bool


class PlanningOptions(GraphOptions, total=False):
    """How a model of any kind is planned; `compileGraph` says what most of these are.

    `train`, `gradients`, `optimizer`, `clip`, `precision`, `accumulate`, `decay` and `recompute` are those of `einc
    compile --train`, for model texts alone, and `undecayed` are the patterns of `--no-decay`; `latency_at_most` is in
    milliseconds.
    """

    schedule_mode: Literal["synthesized", "naive", "ai"]
    schedule: Literal["synthesized", "naive", "ai"]
    pins: Mapping[str, str]
    baselines: Iterable[str]
    exchanges: Mapping[str, str | os.PathLike[str]]
    proposers: Iterable[str | Proposer]
    step: Mapping[str, int]
    train: str
    gradients: Sequence[str]
    optimizer: Literal["sgd", "adamw", "lion"]
    clip: float
    precision: Literal["bf16", "f16"]
    accumulate: bool
    decay: float
    undecayed: Sequence[str]
    recompute: str
    objective: Literal["latency", "throughput"]
    latency_at_most: float | None
    stages: int | None
    microbatches: int | None
    replicas: int | None
