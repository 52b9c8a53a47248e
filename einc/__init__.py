"""einc: an ahead-of-time compiler for computations over several GPUs.

`import einc as es` offers the Python API of the paper's Section 2; its names are imported when they are first used,
so that the command line starts faster.
"""

from __future__ import annotations

from einc_runtime.version import VERSION as __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than the rest
if TYPE_CHECKING:
    from einc.api import Graph, Plan, Tensor, compile, compileGraph, createGraph, grad, readStateDict, tensorDesc
    from einc.importers.pytorch.importing import from_torch

__all__ = [
    "Graph", "Plan", "Tensor", "__version__", "compile", "compileGraph", "createGraph", "from_torch", "grad",
    "readStateDict", "tensorDesc",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "from_torch":
        from einc.importers.pytorch.importing import from_torch

        return from_torch
    if name in __all__:
        from einc import api

        return getattr(api, name)
    raise AttributeError(f"module 'einc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
