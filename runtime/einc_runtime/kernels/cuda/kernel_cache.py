"""Compiled kernels in directories: a readable source beside its machine code for every architecture.

    map_1f0c9a3e-<key>.py             what it was compiled from
    map_1f0c9a3e-<key>.sm_90.cubin    the code
    map_1f0c9a3e-<key>.sm_90.json     how to launch it, who compiled it, and the code's checksum

`key` is the hash of all that determines a kernel (`KernelSource.key`), so a kernel is found only by the source that
this runtime would compile itself. The checksum detects damage, not malice: whoever can write to the directory decides
what runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from einc_runtime import environment
from einc_runtime.disk import DISK, Disk, replace_file
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.gpu import AMD
from einc_runtime.kernels.triton.launches import KernelSource
from einc_runtime.remembered import find_user_folder

MAX_KERNEL_BYTES = 64 << 20
"""The size limit of files; larger ones are not read."""

_RECORD_FIELDS = {"function": str, "warps": int, "shared": int, "compiler": str, "sha256": str}


def directories() -> tuple[Path, ...]:
    """The directories in which compiled kernels of all plans are looked for."""
    named = tuple(Path(part) for part in (environment.read(environment.KERNEL_CACHE) or "").split(os.pathsep) if part)
    return (*named, user_directory())


def user_directory() -> Path:
    """The directory of kernels that were compiled during runs."""
    return find_user_folder("kernels")


def directory_beside(plan: str | os.PathLike[str]) -> Path:
    """The directory of the kernels that were compiled for a plan file."""
    return Path(f"{os.fspath(plan)}.kernels")


def find(source: KernelSource, architecture: str, places: Sequence[Path], compiler: str | None) -> KernelBinary | None:
    """A kernel for this architecture, or an earlier one whose code runs on it; None where there is none.

    With a `compiler`, code of other versions of it is ignored. So are damaged and unreadable files.
    """
    for folder in places:
        for candidate in _list_compatible(architecture):
            binary = _read(folder / f"{_stem(source)}.{candidate}")
            if binary is not None and compiler in (None, binary.compiler):
                return binary
    return None


def list_architectures(source: KernelSource, places: Sequence[Path]) -> list[str]:
    """The architectures for which there is compiled code."""
    names = {path.name.split(".")[-2] for folder in places for path in folder.glob(f"{_stem(source)}.*.json")}
    return sorted(names)


def store(source: KernelSource, architecture: str, binary: KernelBinary, folder: Path, disk: Disk = DISK) -> None:
    """Writes a kernel; each file is written completely or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{_stem(source)}.{architecture}"
    note = {
        "function": binary.function, "warps": binary.warps, "shared": binary.shared, "compiler": binary.compiler,
        "sha256": hashlib.sha256(binary.code).hexdigest(), "scratch": binary.scratch,
    }  # fmt: skip
    files = {
        folder / f"{_stem(source)}.py": source.text.encode(),
        stem.with_name(stem.name + _suffix(architecture)): binary.code,
        stem.with_name(stem.name + ".json"): (json.dumps(note, indent=1) + "\n").encode(),
    }
    for path, data in files.items():
        replace_file(path, partial(_write, data), disk)


def _stem(source: KernelSource) -> str:
    return f"{source.name}-{source.key[:32]}"


def _suffix(architecture: str) -> str:
    """What files with machine code end with."""
    return ".hsaco" if architecture.startswith(AMD) else ".cubin"


def _list_compatible(architecture: str) -> list[str]:
    """The architectures whose code runs on this one: 8.x runs on later 8.y; all others run their own alone."""
    if architecture.startswith(AMD):
        return [architecture]
    number = int(architecture.removeprefix("sm_"))
    if number >= 90:
        return [architecture]
    return [f"sm_{n}" for n in range(number, number // 10 * 10 - 1, -1)]


def _read(stem: Path) -> KernelBinary | None:
    try:
        note = json.loads(_read_bounded(stem.with_name(stem.name + ".json")))
        code = _read_bounded(stem.with_name(stem.name + _suffix(stem.name.rpartition(".")[2])))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or any(type(note.get(name)) is not kind for name, kind in _RECORD_FIELDS.items()):
        return None
    if hashlib.sha256(code).hexdigest() != note["sha256"]:
        return None
    if not 1 <= note["warps"] <= 32 or not 0 <= note["shared"] < 1 << 20 or not note["function"].isidentifier():
        return None
    scratch = note.get("scratch", 0)  # which earlier versions did not write
    if type(scratch) is not int or not 0 <= scratch < 1 << 20:
        return None
    return KernelBinary(note["function"], code, note["warps"], note["shared"], note["compiler"], scratch)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(MAX_KERNEL_BYTES + 1)
    if len(data) > MAX_KERNEL_BYTES:
        raise ValueError("too large")
    return data


def _write(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)
