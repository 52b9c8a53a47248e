"""The cores and the memory that this process may use, and the threads of BLAS."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from einc_runtime.errors import MissingFault
from einc_runtime.kernels.numpy import onednn
from einc_runtime.text import format_gibibytes

_CGROUP = Path("/sys/fs/cgroup")


def count_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def find_core() -> int | None:
    """The core on which this thread runs, or None where the system does not say."""
    find = _load_core_function()
    return None if find is None or (core := find()) < 0 else core


@cache
def _load_core_function() -> Callable[[], int] | None:
    if sys.platform != "linux":
        return None
    try:
        get_core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None
    return get_core


def available_memory() -> int | None:
    """Bytes that are free without swapping, or None where the system does not say."""
    known = [amount for amount in (_system_memory(), _group_memory()) if amount is not None]
    return min(known) if known else None


def require_memory(needed: int, purpose: str) -> None:
    """Raises MissingFault where `needed` bytes are not available."""
    available = available_memory()
    if available is not None and needed > available:
        raise MissingFault(
            f"{purpose} needs {format_gibibytes(needed)} of memory, and {format_gibibytes(available)} are available",
            hint="compile the model with smaller dimensions (-D), or run it on a larger machine",
        )


def peak_memory() -> int | None:
    """The most bytes that this process has held at one time, or None where the system does not say."""
    held = _read_kibibytes("/proc/self/status", "VmHWM:")
    if held is not None:
        return held  # the other figure is at least what the process held that started this one
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_kibibytes(file: str, name: str) -> int | None:
    """A figure of one of Linux's tables, in bytes."""
    try:
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _system_memory() -> int | None:
    available = _read_kibibytes("/proc/meminfo", "MemAvailable:")
    if available is not None:
        return available
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _group_memory() -> int | None:
    """The bytes that a container's limit leaves; the page cache, which it counts as used, can be reclaimed."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        cached = sum(
            int(line.split()[1])
            for line in (_CGROUP / "memory.stat").read_text().splitlines()
            if line.startswith(("inactive_file ", "active_file "))
        )
    except (OSError, ValueError):
        return None
    return max(0, limit - used + cached)


_lock = threading.RLock()
_users: set[object] = set()
_limiter: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Lets BLAS use only the calling thread. Its setting is restored when the last thread leaves this context, also
    where an interrupt comes while one enters or leaves it."""
    user = object()
    before = onednn.limit_threads(1)  # of this thread; each worker says it for its own
    try:
        _limit_blas(user)
        yield
    finally:
        onednn.limit_threads(before)
        try:
            _release_blas(user)
        except BaseException:  # an interrupt
            _release_blas(user)
            raise


def _limit_blas(user: object) -> None:
    global _limiter
    with _lock:
        _users.add(user)
        if _limiter is None:
            _let_any_thread_limit()
            _limiter = _blas().limit(limits=1, user_api="blas")


def _release_blas(user: object) -> None:
    """Does nothing more where it is called again."""
    global _limiter
    with _lock:
        _users.discard(user)
        if not _users and _limiter is not None:
            _let_any_thread_limit()
            _limiter.restore_original_limits()
            _limiter = None
            _let_any_thread_limit()


def _let_any_thread_limit() -> None:
    """Lets this thread say how many threads OpenBLAS has. Since version 3.8, threadpoolctl ignores that if another one
    has said something before. Here, a lock and a count of users keep threads apart."""
    for library in _blas().lib_controllers:
        clear = getattr(library, "clear_controlling_thread", None)
        if clear is not None:
            clear(force=True)


@cache
def _blas() -> Any:
    """The loaded BLAS libraries; they are looked for once, because that takes milliseconds."""
    import numpy  # noqa: F401 - loads the library to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
