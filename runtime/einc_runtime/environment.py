"""The environment variables that einc reads and sets: here alone, and by names that `docs/environment.md` explains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

ATTENTION = "EINC_ATTENTION"
KERNEL_CACHE = "EINC_KERNEL_CACHE"
LLM_KEY = "EINC_LLM_KEY"
MULTICAST = "EINC_MULTICAST"
PROCESSOR = "EINC_PROCESSOR"
RANKS = "EINC_RANKS"

OF_EINC = (ATTENTION, KERNEL_CACHE, LLM_KEY, MULTICAST, PROCESSOR, RANKS)

CACHE_HOME = "XDG_CACHE_HOME"
COLORS = ("NO_COLOR", "TERM")
DATA_HOME, CONFIG_HOME, ZSH_HOME, SHELL = "XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR", "SHELL"
"""Where shells look for completions, and which one the user has."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""Lets every launch of a process wait until it has ended: none may wait for a later one then."""
COMPLETIONS = ("_EINC_COMPLETE", "_EINC_RUNTIME_COMPLETE")
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""What says how many threads OpenBLAS starts when it is loaded, if one of them is set."""
MPI_SIZE_OF = {
    "PMI_RANK": "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "PMIX_RANK": "SLURM_NTASKS",
}
"""What launchers of MPI set, at least one of them in every process that they start; and what has the number of
processes."""
MPICH_ABORTS = "MPIR_CVAR_SUPPRESS_ABORT_MESSAGE"
NCCL_MIXING = "NCCL_GRAPH_MIXING_SUPPORT"

OF_OTHERS = (
    CACHE_HOME,
    DATA_HOME,
    CONFIG_HOME,
    ZSH_HOME,
    SHELL,
    *COLORS,
    VISIBLE_GPUS,
    LAUNCH_BLOCKING,
    *COMPLETIONS,
    *BLAS_THREADS,
    *MPI_SIZE_OF,
    *MPI_SIZE_OF.values(),
    MPICH_ABORTS,
    NCCL_MIXING,
)
"""Variables of other programs."""

_DOCUMENTED = frozenset((*OF_EINC, *OF_OTHERS))


def read(name: str) -> str | None:
    """The value of a variable; None where it is not set. Raises KeyError for one that nobody is told of."""
    _require_known(name)
    return os.environ.get(name)


def set_default(name: str, value: str) -> None:
    """Sets a variable of this process and those that it starts, unless it is set."""
    _require_known(name)
    os.environ.setdefault(name, value)


@contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    """Sets a variable that is not set, while something is done."""
    _require_known(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def copy_all() -> dict[str, str]:
    """All variables, for a process that is to be started."""
    return dict(os.environ)


def _require_known(name: str) -> None:
    if name not in _DOCUMENTED:
        raise KeyError(f"{name} is not in docs/environment.md")
