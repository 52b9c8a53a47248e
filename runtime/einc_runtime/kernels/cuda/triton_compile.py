"""Compiles sources of kernels to machine code with Triton, with or without a GPU.

Only this file imports Triton, which does nothing but compile: CUDA's driver launches kernels like any other module, so
a machine with compiled kernels needs no Triton.
"""

from __future__ import annotations

import linecache
import re
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.installing import suggest_extra
from einc_runtime.kernels.gpu import MAX_AMD_STAGES, WORKSPACE_ALIGNMENT
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT, KernelSource

AMD_ARCHITECTURES = ("gfx90a", "gfx942")
"""Those of MI200 and MI300."""

ARCHITECTURES = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121", *AMD_ARCHITECTURES,
)  # fmt: skip
"""The architectures for which kernels can be compiled."""

HIDDEN = 2
"""Parameters after a kernel's own: scratch memory, and memory for tools of Triton, which these kernels do not use."""

_SPECIAL_LAUNCHES = ("profile_scratch_size", "launch_cooperative_grid", "launch_pdl")


@dataclass(frozen=True, slots=True)
class KernelBinary:
    """A compiled kernel. `shared` is dynamic shared memory in bytes; its parameters are the source's pointers, and
    HIDDEN pointers more: the first is that of `scratch` bytes of workspace for every program, in which kernels describe
    matrices to the unit that copies tiles of them (0 where that is 0), and the other is 0."""

    function: str
    code: bytes
    warps: int
    shared: int
    compiler: str
    scratch: int = 0


def version() -> str | None:
    """The compiler, such as `triton 3.9.0`, or None where it is not installed. Triton is not imported."""
    if find_spec("triton") is None:
        return None
    try:
        return f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:  # a build with another package name
        return f"triton {_import_triton().__version__}"


def compile_source(source: KernelSource, architecture: str) -> KernelBinary:
    """Raises MissingFault where Triton is not installed, and KernelFault where it fails."""
    triton = _import_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {
        (position,): [["tt.divisibility", POINTER_ALIGNMENT]] for position, yes in enumerate(source.aligned) if yes
    }
    is_amd = architecture in AMD_ARCHITECTURES
    target = GPUTarget("hip", architecture, 64) if is_amd else GPUTarget("cuda", _read_number(architecture), 32)
    stages = min(source.stages, MAX_AMD_STAGES) if is_amd else source.stages
    options = {"num_warps": source.warps, "num_stages": stages, "enable_fp_fusion": source.fuses}
    try:
        compiled: Any = triton.compile(
            ASTSource(_load_function(source), source.signature(), constexprs={}, attrs=attributes),
            target=target,
            options=options,
        )
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
        reason = " ... ".join([f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, *lines[-1:]])
        raise KernelFault(f"Triton could not compile {source.name} for {architecture}: {reason}") from error
    facts = compiled.metadata
    special = any(getattr(facts, name, 0) for name in _SPECIAL_LAUNCHES) or facts.num_ctas != 1
    if special or not (is_amd or _has_known_parameters(compiled.asm["ptx"], source)):
        raise KernelFault(f"Triton compiled {source.name} to what only Triton can launch")
    if getattr(facts, "global_scratch_align", 1) > WORKSPACE_ALIGNMENT:
        raise KernelFault(f"Triton compiled {source.name} to what needs scratch memory of a larger alignment")
    name, code = str(facts.name), bytes(compiled.asm["hsaco" if is_amd else "cubin"])
    scratch = int(getattr(facts, "global_scratch_size", 0))
    return KernelBinary(name, code, int(facts.num_warps), int(facts.shared), version() or "triton", scratch)


def _read_number(architecture: str) -> int:
    """90 of sm_90."""
    return int(architecture.removeprefix("sm_"))


def _has_known_parameters(assembly: str, source: KernelSource) -> bool:
    """Whether machine code takes the source's pointers, and HIDDEN parameters more at most."""
    entry = re.search(r"\.entry\s[^(]*\(([^)]*)\)", assembly)
    return entry is not None and entry[1].count(".param") <= len(source.types) + HIDDEN


def _load_function(source: KernelSource) -> Any:
    """The source's function; its lines are stored where Triton and tracebacks find them."""
    file = f"<{source.name}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": source.name}
    exec(compile(source.text, file, "exec"), names)
    return names[source.name]


@cache
def _import_triton() -> Any:
    try:
        import triton
    except ImportError as error:
        hint = f"run where the plan's kernels have been compiled ahead, or install Triton: {suggest_extra('triton')}"
        raise MissingFault("kernels must be compiled, and Triton is not installed", hint=hint) from error
    warnings.filterwarnings("ignore", category=UserWarning, module=r"triton\.")  # of defaults that are not relied on
    return triton
