"""Operators that Python packages define: what an author writes, and how installed ones are found.

A package offers an operator by an entry point of the group `einc_operators`, whose name is that of the operator:

    [project.entry-points."einc_operators"]
    power_spectrum = "my_package:power_spectrum"

The entry point is loaded when a model calls the operator, or a plan that has it is opened to run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from einc_runtime.errors import KernelFault, MissingFault, PlanFault
from einc_runtime.plan.meaning.custom import CustomSignature, parse_custom_signature

ENTRY_POINTS = "einc_operators"
DOCUMENTATION = "docs/custom-operators.md"

Compute = Callable[..., Any]
"""Takes arrays and settings by name, and returns an array or a tuple of them."""


@dataclass(frozen=True, slots=True)
class TritonOperand:
    """An operand or a result of a launch: extents, and the distance of neighbours along each dimension in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """A launch of `grid` programs of a kernel. `constants` are the values of its parameters behind the pointers.

    `kernel` is a function in Triton's language, without `triton.jit`: only its source is read, so that Triton need not
    be installed. It takes a pointer for each operand and each result, in this order, and then the constants by name. It
    knows `tl` (`triton.language`) and nothing else.
    """

    kernel: Callable[..., None]
    grid: int
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3

    def write(self, name: str, pointers: int) -> str:
        """The source of the kernel as a module with the function `name`, in which constants are written out.

        Raises KernelFault where the function does not take so many pointers and these constants.
        """
        source = textwrap.dedent(inspect.getsource(self.kernel))
        function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        parameters = [argument.arg for argument in function.args.args]
        if parameters[pointers:] != list(self.constants) or len(parameters) < pointers:
            expected = f"{pointers} pointers and then {', '.join(self.constants) or 'nothing'}"
            raise KernelFault(f"the Triton kernel {function.name} takes {', '.join(parameters)}, expected {expected}")
        first = function.body[0]
        lines = textwrap.dedent("\n".join(source.splitlines()[first.lineno - 1 :]))
        values = (f"{key}: tl.constexpr = {value!r}" for key, value in self.constants.items())
        body = [*values, *lines.splitlines()]
        text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        return (
            f"{text}def {name}({', '.join(parameters[:pointers])}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"
        )


@dataclass(frozen=True)
class CustomOperator:
    """An operator of a package: what it takes and returns, where it may be cut, and what computes a block of it.

    Calling it calls its function.
    """

    signature: CustomSignature
    compute: Compute
    uncut: tuple[str, ...] = ()
    aggregation: str = ""
    operations: float | Callable[..., float] = 1.0
    launch: list[Callable[..., TritonProgram]] = field(default_factory=list)

    def __call__(self, *arrays: Any, **settings: Any) -> Any:
        return self.compute(*arrays, **settings)

    def triton(self, launch: Callable[..., TritonProgram]) -> Callable[..., TritonProgram]:
        """A decorator: the function takes a `TritonOperand` for each operand and result, and the settings by name, and
        returns the launch that computes the block on a GPU."""
        self.launch[:] = [launch]
        return launch

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The settings, which are the function's parameters by name only, with their defaults; those that must be given
        have `inspect.Parameter.empty`."""
        parameters = inspect.signature(self.compute).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def count_operations(self, extents: Mapping[str, int]) -> float:
        """The floating point operations at each index vector, for these extents of whole tensors."""
        value = self.operations(**extents) if callable(self.operations) else self.operations
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise KernelFault(f"the operations of a custom operator are {value!r}, expected a number")
        return float(value)

    def run(self, name: str, arrays: Sequence[Any], settings: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results as a tuple. Raises KernelFault where the function fails, or returns another number of arrays."""
        try:
            results = self.compute(*arrays, **settings)
        except Exception as error:  # whatever the package raises, the run ends with one error
            raise KernelFault(f"the operator '{name}' failed: {type(error).__name__}: {error}") from error
        values = results if isinstance(results, tuple) else (results,)
        if len(values) != len(self.signature.results):
            message = f"the operator '{name}' returned {len(values)} arrays, where its signature has "
            raise KernelFault(f"{message}{len(self.signature.results)}: {self.signature}")
        return values


def custom_operator(
    signature: str, *, uncut: Sequence[str] = (), aggregation: str = "", operations: float | Callable[..., float] = 1.0
) -> Callable[[Compute], CustomOperator]:
    """A decorator that makes an operator of a function over numpy arrays.

    `signature` names operands, results and their dimensions: `x: float[..., n], w: float[n] -> y[..., n]`. A label in
    it is an index along which the operator may be cut: the function then gets blocks and returns a block. `uncut` are
    labels that it needs whole (`...` stands for all dimensions behind it). Labels that a result lacks are whole, too,
    unless partial results may be combined by `aggregation`: sum, max, min or prod. `operations` is how many floating
    point operations each index vector takes, or a function of the labels' extents.

    The function gets f16 and bf16 as f32, must not write to its operands, and has its settings as parameters by name
    only, such as `*, scale: float = 1.0`.
    """
    parsed = parse_custom_signature(signature)
    unknown = sorted(set(uncut) - {*parsed.labels, "..."})
    if unknown:
        raise PlanFault(f"'{unknown[0]}' is to be uncut, and no label of {parsed}")

    def make(compute: Compute) -> CustomOperator:
        operator = CustomOperator(parsed, compute, tuple(uncut), aggregation, operations)
        lacking = sorted(set(parsed.size_labels) - set(operator.defaults))
        if lacking:
            raise PlanFault(f"'{lacking[0]}' is in no operand of {parsed}, so it must be a setting of the function")
        return operator

    return make


@cache
def list_custom_operators() -> Mapping[str, str]:
    """The names of installed operators, each with its entry point, in alphabetical order. Nothing is imported."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in sorted(entry_points(group=ENTRY_POINTS))}


@cache
def load_custom_operator(name: str) -> CustomOperator:
    """The installed operator of this name. Raises MissingFault where there is none, or where it cannot be loaded."""
    value = list_custom_operators().get(name)
    if value is None:
        hint = f"install the Python package that defines it in the entry points {ENTRY_POINTS} ({DOCUMENTATION})"
        raise MissingFault(f"the operator '{name[:60]}' is not installed", hint=hint)
    module, _, attribute = value.partition(":")
    try:
        operator = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever happens while a package is imported
        message = f"the operator '{name}' cannot be loaded from {value}: {type(error).__name__}: {error}"
        raise MissingFault(message, hint="mend or reinstall the package that defines it") from error
    if not isinstance(operator, CustomOperator):
        hint = "it must be made by the decorator einc_runtime.custom.custom_operator"
        raise MissingFault(f"the operator '{name}' at {value} is a {type(operator).__name__}", hint=hint)
    return operator


def load_planned_operator(name: str, signature: str) -> CustomOperator:
    """The installed operator that a plan names. Raises PlanFault where it has another signature than in the plan."""
    operator = load_custom_operator(name)
    if str(operator.signature) != signature:
        message = f"the operator '{name}' is installed as {operator.signature}, and the plan has {signature}"
        raise PlanFault(message, hint="compile the model again, or install the version that it was compiled with")
    return operator
