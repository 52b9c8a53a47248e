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
                self.fail(f"'{name}' is not an architecture; there are {', '.join(ARCHITECTURES)}", param, ctx)
        return names


def require_compiler() -> str:
    """The compiler's name and version. Raises MissingFault where there is none."""
    from einc_runtime.execution.cuda import precompile as kernels

    return kernels.require_compiler()


def precompile(bundle: Bundle, plan: str, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Compiles the kernels of the plan that is written to `plan`, and returns where they are and how many."""
    from einc_runtime.execution.cuda.precompile import precompile as compile_kernels
    from einc_runtime.kernels.cuda.kernel_cache import directory_beside

    folder = directory_beside(plan)
    try:
        count = compile_kernels(bundle, architectures, folder)
    except OSError as error:
        raise WriteFault(f"cannot write kernels to {folder}: {error.strerror or error}") from error
    output.note(f"{folder}: {count} kernels for {', '.join(architectures)}")
    return {
        "directory": str(folder),
        "architectures": list(architectures),
        "count": count,
        "compiler": require_compiler(),
    }
