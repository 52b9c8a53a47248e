"""How commands that run plans load numpy: with a BLAS of one thread."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""What says how many threads OpenBLAS starts when it is loaded, if one of them is set."""


def load_numpy() -> None:
    """Imports numpy, whose OpenBLAS starts no threads. The workers of a plan are threads of their own, and BLAS is used
    by each of them alone; its own threads, one for each core, would keep all cores busy for some hundredths of a second
    before they sleep. Nothing is changed where a user has said how many there are, or where numpy is loaded already.
    """
    if "numpy" in sys.modules or any(name in os.environ for name in VARIABLES):
        return
    os.environ[VARIABLES[0]] = "1"
    try:
        import numpy  # noqa: F401 - only loaded here
    finally:
        del os.environ[VARIABLES[0]]
