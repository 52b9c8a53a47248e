"""The table of operators, and what their functions get."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import cast
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, UnsupportedError

Function = Callable[..., Any]
Entered = TypeVar("Entered", bound=Function)
Size = int | Extent

IGNORED_ARGUMENTS = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "copy", "generator", "cudnn_enable",
     "cudnn_enabled", "benchmark", "deterministic", "allow_tf32", "requires_grad", "names", "sparse_grad",
     "scale_grad_by_freq", "sparse", "half_to_float", "unsafe", "is_coalesced")
)  # fmt: skip
"""Arguments that do not change which numbers a forward pass computes."""


_RENAMED = ("self", "other")
"""Names of the schemas that get an underscore as parameters here."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a function gets beside its arguments: the program, the types that the graph gives its results, and a name
    for them."""

    program: ArrayProgram
    types: tuple[ElementType, ...]
    hint: str

    @property
    def type(self) -> ElementType:
        """The type of the first result."""
        if not self.types:
            raise UnsupportedError("the graph gives its result no type")
        return self.types[0]

    def cast(self, array: Array) -> Array:
        """The array with the type of the first result."""
        return cast(self.program, array, self.type, self.hint)


@dataclass(frozen=True, slots=True)
class AtenOperator:
    """An operator's function, with the names of the arguments that it takes."""

    function: Function
    accepted: frozenset[str]

    def call(self, call: Call, inputs: Mapping[str, Any]) -> Any:
        """The result for arguments by their names. Raises UnsupportedError for those that the function lacks."""
        taken = {}
        for name, value in inputs.items():
            key = f"{name}_" if name in _RENAMED else name
            if key in self.accepted:
                taken[key] = value
            elif name not in IGNORED_ARGUMENTS and value not in (None, False):
                raise UnsupportedError(f"its argument {name}={value!r:.40} is not supported")
        try:
            inspect.signature(self.function).bind(call, **taken)
        except TypeError as error:
            raise UnsupportedError(str(error)) from None
        return self.function(call, **taken)


def refuse_extent(of: str) -> UnsupportedError:
    """The error for a result that has as many elements as data says. Raised, it names what that number is `of`."""
    return UnsupportedError(
        f"a result whose extent is data ({of})",
        "compute all and multiply what does not count by 0, or gather weights by picks of a fixed number (w[picks], "
        "as of topk); docs/importing.md shows both for experts",
    )


def aten(*names: str) -> Callable[[Entered], Entered]:
    """Says which operators a function converts: by their names, without `aten.`, as `add`, or with an overload, as
    `max.dim`, where that means something else. Its parameters behind the call are the schema's arguments."""

    def enter(function: Entered) -> Entered:
        function.operators = names  # type: ignore[attr-defined]
        return function

    return enter


def collect_operators(module: ModuleType) -> dict[str, AtenOperator]:
    """The operators of the functions in a module, and of those in tuples of them, by their names."""
    operators = {}
    for value in vars(module).values():
        for function in value if isinstance(value, tuple) else (value,):
            for name in getattr(function, "operators", ()):
                parameters = list(inspect.signature(function).parameters)[1:]
                operators[name] = AtenOperator(function, frozenset(parameters))
    return operators
