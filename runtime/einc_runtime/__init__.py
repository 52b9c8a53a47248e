"""einc_runtime: reads, proves and runs the plans that `einc` compiles, without the compiler.

    from einc_runtime import Session, read_bundle
    with Session(read_bundle("ffn.bin")) as session:
        session.load_weights("weights.safetensors")
        session.load("x", array)
        session.execute()
        result = session.offload("y")

The names below are imported when they are first used, so that the command line starts faster.
"""

from __future__ import annotations

from einc_runtime.version import VERSION as __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than the rest
if TYPE_CHECKING:
    from einc_runtime.errors import RuntimeFault
    from einc_runtime.execution.data.dlpack import as_dlpack
    from einc_runtime.execution.proved_plans import prove
    from einc_runtime.execution.session import Session
    from einc_runtime.execution.session_pool import SessionPool
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.generation.generator import Generator, open_sessions
    from einc_runtime.generation.sampling import Sampling
    from einc_runtime.generation.tokenizer import TextTokenizer
    from einc_runtime.plan.codec import decode, encode, read_bundle
    from einc_runtime.plan.schema import Bundle

__all__ = [
    "Bundle", "Generator", "RuntimeFault", "Sampling", "Session", "SessionPool", "SharedBuffers", "TextTokenizer",
    "__version__", "as_dlpack", "decode", "encode", "open_sessions", "prove", "read_bundle",
]  # fmt: skip

_MODULES = {
    "Bundle": "plan.schema",
    "Generator": "generation.generator",
    "RuntimeFault": "errors",
    "Sampling": "generation.sampling",
    "Session": "execution.session",
    "SessionPool": "execution.session_pool",
    "SharedBuffers": "execution.shared_buffers",
    "TextTokenizer": "generation.tokenizer",
    "as_dlpack": "execution.data.dlpack",
    "open_sessions": "generation.generator",
    "decode": "plan.codec",
    "encode": "plan.codec",
    "prove": "execution.proved_plans",
    "read_bundle": "plan.codec",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"einc_runtime.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'einc_runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
