"""How commands that run plans load numpy: with a BLAS of one thread."""

from __future__ import annotations

import sys

from einc_runtime import environment


def load_numpy() -> None:
    """Imports numpy, whose OpenBLAS starts no threads. The workers of a plan are threads of their own, and BLAS is used
    by each of them alone; its own threads, one for each core, would keep all cores busy for some hundredths of a second
    before they sleep. Nothing is changed where a user has said how many there are, or where numpy is loaded already.
    """
    said = any(environment.read(name) is not None for name in environment.BLAS_THREADS)
    if said or "numpy" in sys.modules:
        return
    with environment.setting(environment.BLAS_THREADS[0], "1"):
        import numpy  # noqa: F401 - only loaded here
