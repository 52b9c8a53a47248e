"""Machine code of kernels: Triton compiles a `Source` for an architecture, with a GPU or without.

Triton is imported here and nowhere else, and takes part in nothing but compiling: kernels are launched by the driver
like any other module, so that a machine with compiled kernels needs no Triton.
"""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

from runtime.errors import KernelFault, MissingFault
from runtime.kernels.triton_source import ALIGNMENT, Source

ARCHITECTURES = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
"""What kernels can be compiled for."""

INSTALL_HINT = "pip install 'einc[triton]', or run where the plan's kernels have been compiled ahead"


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel. `shared` is dynamic shared memory in bytes; its parameters are the source's pointers, and two
    pointers more that Triton has for tools, which are 0."""

    function: str
    code: bytes
    warps: int
    shared: int
    compiler: str


def version() -> str | None:
    """The compiler of binaries, such as `triton 3.9.0`, or None where there is none."""
    try:
        return f"triton {_triton().__version__}"
    except MissingFault:
        return None


def compile_source(source: Source, architecture: str) -> Binary:
    """Raises MissingFault where Triton is not installed, and KernelFault where it fails."""
    triton = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {(position,): [["tt.divisibility", ALIGNMENT]] for position, yes in enumerate(source.aligned) if yes}
    capability = int(architecture.removeprefix("sm_"))
    options = {"num_warps": source.warps, "num_stages": source.stages, "enable_fp_fusion": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled: Any = triton.compile(
                ASTSource(_function(source), source.signature(), constexprs={}, attrs=attributes),
                target=GPUTarget("cuda", capability, 32),
                options=options,
            )
    except Exception as error:
        first = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {first[0] if first else ''}"
        raise KernelFault(f"Triton could not compile {source.name} for {architecture}: {reason}") from error
    metadata = compiled.metadata
    if getattr(metadata, "global_scratch_size", 0) or metadata.num_ctas != 1:
        raise KernelFault(f"Triton compiled {source.name} to what only Triton can launch")
    name, code = str(metadata.name), bytes(compiled.asm["cubin"])
    return Binary(name, code, int(metadata.num_warps), int(metadata.shared), f"triton {triton.__version__}")


def _function(source: Source) -> Any:
    """The source's function, with its lines where Triton and tracebacks find them."""
    file = f"<{source.name}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": source.name}
    exec(compile(source.text, file, "exec"), names)
    return names[source.name]


@cache
def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise MissingFault("kernels must be compiled, and Triton is not installed", hint=INSTALL_HINT) from error
    return triton
