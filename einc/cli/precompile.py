"""`einc compile --precompile`: the GPU kernels of a plan, compiled beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc_runtime.cli import output
from einc_runtime.cli.base import ParamType
from einc_runtime.errors import WriteFault

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle


class Architectures(ParamType):
    """Names of GPU architectures, separated by commas: sm_80,sm_90."""

    name = "ARCHITECTURES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        from einc_runtime.kernels.cuda.triton_compile import ARCHITECTURES

        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for name in names:
            if name not in ARCHITECTURES:
                self.fail(f"'{name}' is no architecture; there are {', '.join(ARCHITECTURES)}", param, ctx)
        return names


def require_compiler() -> None:
    """Raises MissingFault before any work is done."""
    from einc_runtime.execution.cuda.precompile import require_compiler as require

    require()


def precompile(bundle: Bundle, plan: str, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Compiles the kernels of the plan that was written to `plan`, and says where and how many."""
    from einc_runtime.execution.cuda.precompile import precompile as compile_kernels
    from einc_runtime.execution.cuda.precompile import require_compiler as require
    from einc_runtime.kernels.cuda.kernel_cache import directory_beside

    place = directory_beside(plan)
    try:
        count = compile_kernels(bundle, architectures, place)
    except OSError as error:
        raise WriteFault(f"cannot write kernels to {place}: {error.strerror or error}") from error
    output.note(f"{place}: {count} kernels for {', '.join(architectures)}")
    return {"directory": str(place), "architectures": list(architectures), "count": count, "compiler": require()}
