"""Machine code of kernels, kept in the user's cache folder from one process to the next.

Compiling attention takes some tenths of a second; loading its code takes a millisecond. A file's name is the hash of
all that determines the code: the function that emits it with its arguments, the sources of all such functions, the
version of LLVM, and the processor. A file has the SHA-256 of the code before it, which detects damage, not malice:
whoever can write it can replace the program itself.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from einc_runtime.remembered import RememberedFiles, find_user_folder, hash_sources

MAX_CODE_BYTES = 1 << 20
MAX_FILES = 4000
"""Of some kilobytes each. If there are more, the older half of them is removed."""

_DIGEST_BYTES = 32
"""Of a SHA-256, which stands before the code that it is of."""


def name_code(emitter: str, arguments: object, machine: str) -> str | None:
    """The name of the code that an emitter makes of these arguments; None where it is not to be kept.

    `machine` is all that LLVM knows of the processor, and its own version.
    """
    sources, text = _hash_emitters(), repr(arguments)
    if sources is None or " at 0x" in text:  # an object without a description of its own
        return None
    return hashlib.sha256(b"\0".join([sources, emitter.encode(), text.encode(), machine.encode()])).hexdigest()


def recall(name: str) -> bytes | None:
    """The code; None where there is none, or where it is damaged or may be another user's."""
    content = _find_files().read(name)
    if content is None:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def remember(name: str, code: bytes) -> None:
    """Writes code, whole or not at all."""
    _find_files().write(name, hashlib.sha256(code).digest() + code)


def _find_files() -> RememberedFiles:
    return RememberedFiles(find_user_folder("code"), MAX_FILES, MAX_CODE_BYTES)


@cache
def _hash_emitters() -> bytes | None:
    """A hash of the sources that emit code."""
    folder = Path(__file__).parents[1]
    return hash_sources(folder, [*sorted((folder / "llvm").glob("*.py")), folder / "scalar_program.py"])
