"""What einc remembers for a user from one process to the next: files in folders of the user's cache folder.

A file's name is a hash of all that decides what is in it. It is only read if it and its folder belong to this user and
nobody else can write there. A folder that cannot be used only costs time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from einc_runtime import disk, environment


@dataclass(frozen=True, slots=True)
class RememberedFiles:
    """Files in a folder, of at most `max_bytes` each. If there are more than `max_files`, the older half is removed."""

    folder: Path
    max_files: int
    max_bytes: int

    def find(self, name: str) -> Path | None:
        """The file of a name; None where there is none, or where it may be another user's."""
        path = self.folder / name
        return path if disk.is_own(path) else None

    def read(self, name: str) -> bytes | None:
        """What is in the file of a name; None where there is none to be read."""
        path = self.find(name)
        if path is None:
            return None
        try:
            with path.open("rb") as stream:
                content = stream.read(self.max_bytes + 1)
        except OSError:
            return None
        return content if len(content) <= self.max_bytes else None

    def write(self, name: str, content: bytes) -> Path | None:
        """Writes a file, whole or not at all; None where that cannot be."""
        if len(content) > self.max_bytes:
            return None

        def write(stream: BinaryIO) -> None:
            if hasattr(os, "fchmod"):
                os.fchmod(stream.fileno(), 0o600)
            stream.write(content)

        path = self.folder / name
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            disk.replace_file(path, write)
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            self._forget_older_half()
        return path

    def _forget_older_half(self) -> None:
        """Another process may do the same at this time."""
        files, ages = [path for path in self.folder.iterdir() if path.is_file()], {}
        if len(files) <= self.max_files:
            return
        for file in files:
            with contextlib.suppress(OSError):
                ages[file] = file.lstat().st_mtime_ns
        for file in sorted(ages, key=lambda path: (ages[path], path.name))[: len(ages) // 2]:
            with contextlib.suppress(OSError):
                file.unlink()


def find_user_folder(name: str) -> Path:
    """A folder of what einc remembers for this user; it need not be there."""
    home = environment.read(environment.CACHE_HOME) or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "einc" / name


def hash_sources(root: Path, files: Iterable[Path]) -> bytes | None:
    """A hash of the texts of programs below a folder; None where they cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in files:
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    except OSError:
        return None
    return digest.digest()
