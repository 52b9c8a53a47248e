"""Machine code of kernels, kept in the user's cache folder from one process to the next.

Compiling attention takes some tenths of a second; loading its code takes a millisecond. A file's name is the hash of
all that determines the code: the function that emits it with its arguments, the sources of all such functions, the
version of LLVM, and the processor. A file has the SHA-256 of the code before it, which detects damage, not malice: a
file is only read if it belongs to this user, and whoever can write it can replace the program itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import BinaryIO

from einc_runtime import disk

MAX_CODE_BYTES = 1 << 20
MAX_FILES = 1000
"""If there are more, the older half of them is removed."""

_DIGEST_BYTES = 32
"""Of a SHA-256, which stands before the code that it is of."""


def name_code(emitter: str, arguments: object, machine: str) -> str | None:
    """The name of the code that an emitter makes of these arguments; None where it is not to be kept.

    `machine` is all that LLVM knows of the processor, and its own version.
    """
    sources, text = _hash_sources(), repr(arguments)
    if sources is None or " at 0x" in text:  # an object without a description of its own
        return None
    return hashlib.sha256(b"\0".join([sources, emitter.encode(), text.encode(), machine.encode()])).hexdigest()


def recall(name: str) -> bytes | None:
    """The code; None where there is none, or where it is damaged or may be another user's."""
    path = _find_file(name)
    if not disk.is_own(path):
        return None
    try:
        with path.open("rb") as stream:
            content = stream.read(_DIGEST_BYTES + MAX_CODE_BYTES + 1)
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if len(code) <= MAX_CODE_BYTES and hashlib.sha256(code).digest() == digest else None


def remember(name: str, code: bytes) -> None:
    """Writes code, whole or not at all. A folder that cannot be written only costs the next process time."""
    if len(code) > MAX_CODE_BYTES:
        return

    def write(stream: BinaryIO) -> None:
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), 0o600)
        stream.write(hashlib.sha256(code).digest() + code)

    path = _find_file(name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.replace_file(path, write)
        disk.forget_older_half(path.parent, MAX_FILES)


def _find_file(name: str) -> Path:
    return disk.user_cache("code") / name


@cache
def _hash_sources() -> bytes | None:
    """A hash of the sources that emit code."""
    digest, folder = hashlib.sha256(), Path(__file__).parent
    try:
        for path in [*sorted(folder.glob("*.py")), folder.parent / "scalar_program.py"]:
            text = path.read_bytes()
            digest.update(f"{path.name} {len(text)}\n".encode() + text)
    except OSError:
        return None
    return digest.digest()
