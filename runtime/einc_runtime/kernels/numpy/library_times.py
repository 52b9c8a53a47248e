"""How long libraries take for some products, kept in the user's cache folder from one process to the next.

A file holds for one processor, as it describes itself, and for libraries as they are installed. It is only read if it
belongs to this user, and if it is what this module writes; else it is as if it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from einc_runtime import disk, environment
from einc_runtime.kernels.processor import name_processor, read_cpuinfo
from einc_runtime.strict_json import parse_json

MAX_TIMES_BYTES = 1 << 16
_TIMES_VERSION = 1
_MULTIPLYING_VARIABLES = (*environment.LIBRARY_INSTRUCTIONS, environment.PROCESSOR)
"""Environment variables that change how libraries multiply."""

Times = Mapping[str, Mapping[str, float]]


def identify(files: Sequence[Path]) -> str:
    """A text that differs for other processors and other libraries. `files` are those of the libraries."""
    lines = [f"{name}: {value}" for name, value in sorted(read_cpuinfo().items())]
    lines += [f"{platform.machine()} numpy {np.__version__}"]
    for path in files:
        with contextlib.suppress(OSError):
            status = path.stat()
            lines.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    values = {name: environment.read(name) for name in _MULTIPLYING_VARIABLES}
    lines += [f"{name}={value}" for name, value in values.items() if value is not None]
    return "\n".join(lines)


def recall(identity: str) -> Times | None:
    """What was remembered for this identity; None where nothing was, or where it cannot be trusted."""
    path = _find_file(identity)
    if not disk.is_own(path):
        return None
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_TIMES_BYTES + 1)
        document = parse_json(content) if len(content) <= MAX_TIMES_BYTES else None
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.keys() != {"version", "processor", "us"}:
        return None
    times = document["us"]
    return times if document["version"] == _TIMES_VERSION and _are_times(times) else None


def remember(identity: str, times: Times) -> None:
    """Writes times, whole or not at all. A folder that cannot be written only costs the next process time."""
    document = {"version": _TIMES_VERSION, "processor": name_processor(), "us": times}
    text = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    def write(stream: BinaryIO) -> None:
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), 0o600)
        stream.write(text)

    path = _find_file(identity)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.replace_file(path, write)


def _find_file(identity: str) -> Path:
    return disk.user_cache("libraries") / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _are_times(document: object) -> bool:
    return isinstance(document, dict) and all(
        isinstance(times_of_kind, dict)
        and all(type(us) is float and 0 < us < math.inf for us in times_of_kind.values())
        for times_of_kind in document.values()
    )
