"""The plan, in a session as any user makes one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from einc_runtime.execution.session import Session
from einc_runtime.kernels.numpy import blas, onednn
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import drawn, sentences


def hide(names: Sequence[str]) -> None:
    """Makes this process find no file of these libraries. Raises ImportError for one that is not installed."""
    patterns = {"mkl": blas.MKL_FILE, "onednn": onednn.FILE}
    for name in names:
        if not blas.find_library_files(patterns[name]):
            raise ImportError(f"{name} is not installed", name=name)
    hidden, find = {patterns[name] for name in names}, blas.find_library_files

    def find_others(pattern: str) -> list[Path]:
        return [] if pattern in hidden else find(pattern)

    blas.find_library_files = onednn.find_library_files = find_others


def prepared(bundle: Bundle, folder: str):
    session = Session(bundle)
    if folder:
        session.load_weights(folder)
        ids, mask = sentences(bundle)
        session.load_all({"ids": ids, "mask": mask})
    else:
        session.load_all(drawn(bundle))
    names = [output.name for output in session.outputs]
    compared = "logits" if "logits" in names else names[0]  # a prefill gives caches, too
    return session.execute, lambda: session.offload(compared)
