"""Reads the files that a command is given. A missing file is wrong usage; one that cannot be read is a read error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einc_runtime.errors import ReadFault, RuntimeFault, UsageFault

if TYPE_CHECKING:
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.plan.schema import Bundle

STDIN = "-"


def read_plan(path: str, *, folded: bool = False) -> Bundle:
    """The plan in a file, validated; if `folded`, as the file says it (`plan/repetition.py`)."""
    from einc_runtime.plan.codec import read_bundle

    require_present(path)
    with reading(path):
        return read_bundle(path, folded=folded)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns the ways in which reading `path` fails into errors that name it."""
    try:
        yield
    except RuntimeFault as fault:
        fault.where = fault.where or path
        raise
    except OSError as error:
        raise ReadFault(f"cannot read: {error.strerror}", where=path) from None


def require_present(path: str, *, or_folder: bool = False) -> None:
    """Raises UsageFault where there is nothing at `path`; standard input is there unless the shell closed it."""
    if path == STDIN:
        if sys.stdin is None:
            raise ReadFault("cannot read: it is closed", where="standard input")
        return
    try:
        present = os.path.lexists(path)
    except ValueError:  # a NUL byte
        present = False
    if not present:
        raise UsageFault("there is no such file", where=path or "''")
    if os.path.isdir(path) and not or_folder:
        raise ReadFault("cannot read: it is a directory", where=path)


def require_weights(paths: Sequence[str], *, may_be_random: bool = False) -> WeightSource:
    """The source that the paths of `--weights` are together. Raises UsageFault for one that is not there."""
    from einc_runtime.execution.data.random_arrays import RANDOM_PREFIX

    for path in paths:
        if len(paths) > 1 or not may_be_random or not path.startswith(RANDOM_PREFIX):
            require_present(path, or_folder=True)
    return paths[0] if len(paths) == 1 else paths
