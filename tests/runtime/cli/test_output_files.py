"""Outputs appear whole or not at all, wherever they are asked for."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from einc_runtime.cli import output
from einc_runtime.errors import UsageFault, WriteFault

AS_ROOT = os.geteuid() == 0


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_is_written_whole_with_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        output.write_bytes(str(tmp_path / "a.bin"), b"abc")
    finally:
        os.umask(previous)
    assert (tmp_path / "a.bin").read_bytes() == b"abc"
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640
    assert entries(tmp_path) == ["a.bin"]


def test_a_failure_half_way_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"x" * 100_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write_file(str(target), fail)
    assert target.read_bytes() == b"old"
    assert entries(tmp_path) == ["a.bin"]


def test_what_has_its_name_is_on_the_disk_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, entries(tmp_path))))
    output.write_bytes(str(tmp_path / "plan.bin"), b"12345")
    ((size, present),) = synced
    assert size == 5
    assert "plan.bin" not in present
    assert entries(tmp_path) == ["plan.bin"]


def test_an_overwritten_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    target.chmod(0o755)
    output.write_bytes(str(target), b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.bin"
    link.symlink_to(tmp_path / "real" / "a.bin")
    output.write_bytes(str(link), b"abc")
    assert link.is_symlink()
    assert (tmp_path / "real" / "a.bin").read_bytes() == b"abc"


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    output.write_bytes(str(pipe), b"abc")
    reader.join()
    assert got == [b"abc"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_longest_possible_name_can_be_written(tmp_path: Path) -> None:
    output.write_bytes(str(tmp_path / ("n" * 255)), b"abc")
    assert entries(tmp_path) == ["n" * 255]


@pytest.mark.parametrize("path", ["missing/a.bin", "file/a.bin", "folder", "n" * 256, "nul\0byte"])
def test_places_that_cannot_be_written_are_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = entries(tmp_path)
    for attempt in (lambda: output.require_writable(path), lambda: output.write_bytes(path, b"abc")):
        with pytest.raises(WriteFault) as caught:
            attempt()
        assert caught.value.where == path
        assert caught.value.exit_code == 73
    assert entries(tmp_path) == before


@pytest.mark.skipif(AS_ROOT, reason="nothing is read-only to root")
def test_read_only_places_are_refused_before_any_work(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    kept = tmp_path / "kept"
    kept.write_bytes(b"old")
    kept.chmod(0o444)
    for path in (locked / "a.bin", kept):
        with pytest.raises(WriteFault, match="read-only"):
            output.require_writable(str(path))
    assert kept.read_bytes() == b"old"


def test_a_full_device_is_an_error() -> None:
    with pytest.raises(WriteFault, match="No space left"):
        output.write_bytes("/dev/full", b"abc")


def test_no_name_is_wrong_usage() -> None:
    with pytest.raises(UsageFault):
        output.require_writable("")


def test_what_was_printed_is_read_before_a_process_goes_on() -> None:
    """Until the reader has taken it, and no longer than asked."""
    script = "from einc_runtime.cli import output; output.note('it'); output.wait_for_readers({}); print('on')"
    for limit, waits in ((60.0, True), (0.1, False)):
        with subprocess.Popen(
            [sys.executable, "-c", script.format(limit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            went_on = bool(select.select([process.stdout], [], [], 0.3 if waits else 30.0)[0])
            assert went_on is not waits
            assert process.stderr.readline() == b"it\n"
            assert process.stdout.readline() == b"on\n"
