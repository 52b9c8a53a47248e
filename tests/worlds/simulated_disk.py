"""A disk in memory on which a seed decides which operation fails, is cut short or interrupted, and what a crash leaves.

As file systems do, it keeps what was synced, and renames in their order; what was written and not synced may be there
after a crash, or not, page by page.
"""

from __future__ import annotations

import errno
import io
import os
import random
from pathlib import Path
from typing import Any, BinaryIO

PAGE = 64
FAILURES = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


class Crash(BaseException):
    """The computer stops: nothing after it happens."""


class StoredFile:
    """What is written of a file, and what of it is on the disk for sure."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = b""

    def after_crash(self, rng: random.Random) -> bytes:
        """Synced pages as they were, and of every other page the new content, the old one, zeros, or no end."""
        if self.data == self.synced:
            return self.data
        content = b""
        for start in range(0, len(self.data), PAGE):
            new, old = self.data[start : start + PAGE], self.synced[start : start + PAGE]
            content += rng.choice((new, old.ljust(len(new), b"\0")))
        return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.5 else content


class SimulatedDisk:
    """See `einc_runtime.disk.Disk`. The `fault_at`-th operation has the world's fault."""

    def __init__(self, rng: random.Random, fault: str, fault_at: int) -> None:
        self.rng, self.fault, self.fault_at = rng, fault, fault_at
        self.files: dict[Path, StoredFile] = {}
        self.renamed: list[tuple[Path, StoredFile | None]] = []  # names changed since the last crash: what they had
        self.operations = 0
        self.crashed = False

    def operate(self, *, short: bool = False) -> bool:
        """Counts an operation; raises or says that it is cut short where the fault is."""
        if self.crashed:
            raise Crash
        self.operations += 1
        if self.operations != self.fault_at:
            return False
        if self.fault == "crash":
            self.crashed = True
            raise Crash
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "error":
            number = self.rng.choice(FAILURES)
            raise OSError(number, os.strerror(number))
        return short and self.fault == "short"

    def create(self, path: Path, like: Path) -> BinaryIO:
        self.operate()
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "it exists")
        self._set(path, StoredFile())
        raw = _Writer(self, self.files[path])
        self._after()
        return io.BufferedWriter(raw, self.rng.choice((16, 256, 8192)))  # type: ignore[return-value]

    def sync(self, stream: BinaryIO) -> None:
        self.operate()
        file = stream.raw.file  # type: ignore[attr-defined]
        file.synced = file.data

    def rename(self, source: Path, target: Path) -> None:
        self.operate()
        self._set(target, self.files[source])
        self._set(source, None)
        self._after()

    def remove(self, path: Path) -> None:
        if self.crashed:
            raise Crash
        self._set(path, None)

    def _after(self) -> None:
        """An interrupt may also come when an operation is done and nothing says so yet."""
        if self.fault == "late interrupt" and self.operations == self.fault_at:
            raise KeyboardInterrupt

    def _set(self, path: Path, file: StoredFile | None) -> None:
        self.renamed.append((path, self.files.get(path)))
        if file is None:
            self.files.pop(path, None)
        else:
            self.files[path] = file

    def restart(self) -> dict[Path, bytes]:
        """What there is after the crash: some of the last changes of names are not on the disk."""
        for _ in range(self.rng.randrange(len(self.renamed) + 1)):
            path, before = self.renamed.pop()
            if before is None:
                self.files.pop(path, None)
            else:
                self.files[path] = before
        return {path: file.after_crash(self.rng) for path, file in self.files.items()}


class _Writer(io.RawIOBase):
    """A file as the system has it: a write may take only some of the bytes."""

    def __init__(self, disk: SimulatedDisk, file: StoredFile) -> None:
        self.disk, self.file, self.position = disk, file, 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = (0, self.position, len(self.file.data))[whence] + offset
        return self.position

    def write(self, data: Any) -> int:
        part = bytes(data)
        if self.disk.operate(short=True) or self.disk.rng.random() < 0.05:
            part = part[: self.disk.rng.randrange(1, len(part) + 1)]
        before = self.file.data.ljust(self.position, b"\0")
        self.file.data = before[: self.position] + part + before[self.position + len(part) :]
        self.position += len(part)
        return len(part)


class FaultyReader(io.RawIOBase):
    """A file that is read in pieces of any size, and that fails at its `fails_at`-th read."""

    def __init__(self, data: bytes, rng: random.Random, fails_at: int | None) -> None:
        self.data, self.rng, self.left, self.position = data, rng, fails_at, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        position = (0, self.position, len(self.data))[whence] + offset
        if position < 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.position = position
        return self.position

    def readinto(self, target: Any) -> int:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        count = min(len(target), len(self.data) - self.position)
        if count > 1 and self.rng.random() < 0.2:
            count = self.rng.randrange(1, count)
        count = max(count, 0)
        target[:count] = self.data[self.position : self.position + count]
        self.position += count
        return count
