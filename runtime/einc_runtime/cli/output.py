"""All output of the process: results on stdout, which nothing else reaches, notes on stderr, and files that are written
whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from einc_runtime import disk, environment
from einc_runtime.errors import UsageFault, WriteFault

STDOUT = "-"

_SAME_AS_STDOUT = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Names of standard output: opening one of the files would open what descriptor 1 is now."""

_results: TextIO | None = None
"""Where results go since `claim_stdout`."""


def claim_stdout() -> None:
    """From now on, nothing but results reaches standard output.

    They have a descriptor of their own. Whatever else writes to descriptor 1, or prints, ends on standard error: code
    in C, libraries, and other processes that are started. Must be called once, before libraries are imported.
    """
    global _results
    if sys.stdout is None:
        return
    try:
        results_descriptor = os.dup(1)
    except OSError:  # it is closed: writing results will say so
        return
    _results = os.fdopen(
        results_descriptor, "w", 1 if sys.stdout.isatty() else -1, sys.stdout.encoding, "backslashreplace"
    )
    try:
        os.dup2(2, 1)
    except OSError:  # without standard error there is no place for anything else
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


def results() -> TextIO:
    """The stream of results: standard output, as it was when the process began."""
    return sys.stdout if _results is None else _results


def prepare_streams() -> None:
    """Escape characters that the terminal's encoding lacks, instead of failing."""
    for stream in (results(), sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    with _stdout_errors():
        results().write(text if text.endswith("\n") else text + "\n")


def say_at_once(text: str) -> None:
    """Print a part of a result, without a line end, so that it is seen at once."""
    with _stdout_errors():
        results().write(text)
        results().flush()


def pass_on(data: bytes) -> None:
    """Print what another process printed, at once."""
    with _stdout_errors():
        results().flush()
        results().buffer.write(data)
        results().buffer.flush()


def say_json(document: dict[str, Any]) -> None:
    say(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print something that is not a result: a warning, an error, or where a file was written."""
    with contextlib.suppress(OSError, AttributeError, ValueError):  # without stderr nothing can be reported
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()


def flush() -> None:
    """Write out everything that was printed, and report an error if that fails."""
    with _stdout_errors():
        if results() is not None:
            results().flush()


def wait_for_readers(seconds: float) -> None:
    """Wait until the readers of standard output and error, where these are pipes, have taken what was written; at most
    so many seconds."""
    limit = time.monotonic() + seconds
    for stream in (results(), sys.stderr):
        with contextlib.suppress(OSError, AttributeError, ValueError):  # no pipe: nobody has to read it in time
            number = stream.fileno()
            while _count_unread(number) and time.monotonic() < limit:
                time.sleep(0.005)


def _count_unread(number: int) -> int:
    import fcntl
    import termios

    if not stat.S_ISFIFO(os.fstat(number).st_mode):
        return 0
    return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)


def abandon_stdout() -> None:
    """Drop what is still buffered, so that the interpreter does not try again to write it when it ends."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, results().fileno())
        os.close(null)


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError, AttributeError) as error:  # full; closed; absent
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is closed"
        raise WriteFault(f"cannot write: {reason}", where="standard output") from None


def use_colours() -> bool:
    """Whether stdout takes colours: a terminal, and NO_COLOR is not set."""
    return _is_terminal(results()) and not environment.read("NO_COLOR") and environment.read("TERM") != "dumb"


def show_progress() -> bool:
    """Whether stderr is a terminal that shows progress."""
    return _is_terminal(sys.stderr) and environment.read("TERM") != "dumb"


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def require_outputs(targets: Sequence[str], reads: Sequence[str | None]) -> None:
    """Raise before any work where an output could not be written later, or would replace what the command reads.

    `reads` may also hold names that are not files, such as names of machines. Where it names a folder, the files of a
    model in that folder count as read. Two outputs in one file are refused, too.
    """
    for at, target in enumerate(targets):
        require_writable(target)
        if target == STDOUT or disk.is_written_directly(target):
            continue
        if any(_is_read_from(source, disk.resolve_target(target)) for source in reads if source):
            raise UsageFault("the command reads this file, and would write over it", where=target)
        if any(
            disk.resolve_target(target) == disk.resolve_target(earlier) for earlier in targets[:at] if earlier != STDOUT
        ):
            raise UsageFault("two outputs would go into this file", where=target)


def _is_read_from(source: str, target: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if os.path.isdir(source):
            beside = target.parent == disk.resolve_target(source)
            return beside and target.suffix in (".json", ".safetensors") and target.exists()
        return os.path.samefile(source, target)
    return False


def require_writable(path: str) -> None:
    """Raise before any work if an output could not be written later, because its place is missing or read-only."""
    if path == STDOUT:
        return
    if path == "":
        raise UsageFault("an output needs a name", hint="`-` writes to standard output")
    disk.require_writable(path)


def require_kind(path: str | None, start: bytes, kind: str) -> None:
    """Raise before any work where an output would replace a file of another `kind` than its own, which begins with
    `start`: somebody's data, named by mistake. An empty file holds none."""
    if path is None or path == STDOUT or disk.is_written_directly(path):
        return
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        beginning = file.read(len(start))
        if beginning and beginning != start:
            raise UsageFault(
                f"there is a file that is not {kind}, and would be lost",
                where=path,
                hint="name another file, or remove this one",
            )


def write_file(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write an output: `-` is stdout, a pipe or device is written directly, any other appears whole or not at all.

    See `disk.write_file`. Raises WriteFault naming the path.
    """
    if path in _SAME_AS_STDOUT:
        with _stdout_errors():
            results().flush()
            write(results().buffer)
            results().buffer.flush()
        return
    disk.write_file(path, write)


def write_bytes(path: str, data: bytes) -> None:
    write_file(path, lambda stream: stream.write(data))


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "surrogateescape"))
