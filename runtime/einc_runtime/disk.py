"""Writes files whole or not at all: a reader finds what was there before or what is there now, and never a part.

A regular file is written beside its target under another name, synced and renamed. What fails on the way, an interrupt
included, leaves the target as it was, and no other file. Only a crash may leave a `.einc-*.tmp` file behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from einc_runtime.errors import WriteFault


class Disk(Protocol):
    """What writing a file takes from the system. All functions raise OSError."""

    def create(self, path: Path, like: Path) -> BinaryIO:
        """A new file to be written, with the permissions of `like` where that is a file."""

    def sync(self, stream: BinaryIO) -> None:
        """Returns when what was written is on the disk."""

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file the place of another one, at once."""

    def remove(self, path: Path) -> None:
        """Removes a file if it is there."""


class SystemDisk:
    """The files of the system."""

    def create(self, path: Path, like: Path) -> BinaryIO:
        stream = open(path, "xb")  # noqa: SIM115
        try:
            if like.exists():
                os.fchmod(stream.fileno(), stat.S_IMODE(like.stat().st_mode))
        except BaseException:
            stream.close()
            raise
        return stream

    def sync(self, stream: BinaryIO) -> None:
        os.fsync(stream.fileno())

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


DISK = SystemDisk()


def write_file(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], disk: Disk = DISK) -> None:
    """Calls `write` with a stream into a file. A pipe or device is written directly, a regular file is replaced.

    Raises WriteFault naming `path` where the system refuses, and whatever else `write` raises.
    """
    require_writable(path)
    with _name_faults(path):
        if is_written_directly(path):
            with open(path, "wb") as device:
                write(device)
        else:
            replace_file(resolve_target(path), write, disk)


def make_directory(path: str | os.PathLike[str]) -> None:
    """Makes a directory, and those above it that are missing. Raises WriteFault."""
    with _name_faults(path, "make the directory"):
        os.makedirs(path, exist_ok=True)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises WriteFault where a file could not be written, because its place is missing or read-only."""
    with _name_faults(path):
        target = resolve_target(path)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if target.exists():
            _refuse_unwritable(target)
        if not is_written_directly(path):
            if not target.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, "there is no such directory")
            _refuse_unwritable(target.parent)


def _refuse_unwritable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")


_WRITE_HINTS = {
    errno.EISDIR: "name a file in it",
    errno.ENOENT: "make the directory first, or name another one",
    errno.EACCES: "name a file in a directory that you may write to",
    errno.ENOSPC: "free some space, or name a file on another disk",
}
"""What to do, by why the system refused."""


@contextlib.contextmanager
def _name_faults(path: str | os.PathLike[str], action: str = "write") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        hint = None if number is None else _WRITE_HINTS.get(number)
        raise WriteFault(f"cannot {action}: {reason or error}", where=os.fspath(path), hint=hint) from None


def replace_file(target: Path, write: Callable[[BinaryIO], object], disk: Disk = DISK) -> None:
    """Calls `write` with a stream, whose content is the file's when it has been written completely. Raises OSError."""
    temporary = target.parent / f".einc-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        with disk.create(temporary, target) as stream:
            write(stream)
            stream.flush()
            disk.sync(stream)
        disk.rename(temporary, target)
    except BaseException:
        try:
            disk.remove(temporary)
        except BaseException:  # an interrupt
            disk.remove(temporary)
            raise
        raise


def is_own(path: Path) -> bool:
    """Whether a file is there, and it and its folder are this user's, so that nobody else can have put it there."""
    try:
        stats = [os.lstat(path), os.stat(path.parent)]
    except (OSError, ValueError):
        return False
    if not hasattr(os, "getuid"):
        return True
    return all(status.st_uid == os.getuid() and not status.st_mode & 0o022 for status in stats)


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """The file that is replaced: a symbolic link stays one, and what it points at is replaced."""
    return Path(os.path.realpath(path))


def is_written_directly(path: str | os.PathLike[str]) -> bool:
    if os.path.abspath(path).split(os.sep)[1] in ("dev", "proc"):
        return True  # /dev/stdout may lead to a regular file that the shell has open
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
