"""Commands that meet others: signals, streams that nobody reads or writes, commands that write to the same place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from einc.cli.options import keep_best_on_interrupt
from einc.physical.budget import SearchBudget
from einc_runtime.cli import output

ENDS = [
    (signal.SIGINT, 130, b"einc: interrupted\n"),
    (signal.SIGTERM, 143, b"einc: terminated\n"),
    (signal.SIGHUP, 129, b"einc: terminated\n"),
]


def einc_in(program: str, *arguments: object, cwd: Path, stdout: int = subprocess.PIPE) -> tuple[int, bytes, bytes]:
    """`einc` in a process of its own, after these lines of Python: its exit code and what it wrote."""
    lines = [
        "import os, signal, sys, threading, time",
        "from einc.cli import main; from einc_runtime.cli import output, signals",
        program,
    ]
    command = [sys.executable, "-c", "\n".join([*lines, "sys.exit(main.main())"]), *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("number", "code", "told"), ENDS)
def test_what_is_half_written_goes_with_whom_a_signal_ends(
    number: signal.Signals, code: int, told: bytes, tmp_path: Path
) -> None:
    """The signal comes when all is written, and has not its name yet."""
    result = einc_in(f"os.fsync = lambda _: signal.raise_signal({number})", "models", "copy", "swap", cwd=tmp_path)
    assert result == (code, b"", told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [number for number, _, _ in ENDS])
def test_signals_that_are_ignored_stay_so(number: signal.Signals, tmp_path: Path) -> None:
    """As for `nohup`, and in a script's background."""
    program = f"signal.signal({number}, signal.SIG_IGN); os.fsync = lambda _: signal.raise_signal({number})"
    result = einc_in(program, "models", "copy", "swap", cwd=tmp_path)
    assert result == (0, b"", b"swap.exprog: a copy of swap\n")


def test_an_ignored_interrupt_does_not_end_a_search() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        budget = SearchBudget()
        budget.begin()
        with keep_best_on_interrupt(budget), budget.catch_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not budget.interrupted


@pytest.mark.parametrize(("number", "code", "told"), ENDS)
def test_a_signal_that_python_only_prints_comes_again(
    number: signal.Signals, code: int, told: bytes, tmp_path: Path
) -> None:
    """As in a finalizer, which may run anywhere; without more the program would go on."""
    program = f"""
from einc.cli.root import root

class Lossy:
    def __del__(self):
        signal.raise_signal({number})

def make_context(*_):
    Lossy()
    time.sleep(290)

root.make_context = make_context
"""
    result = einc_in(program, cwd=tmp_path)
    assert result == (code, b"", told)


def test_interrupts_of_the_end_after_an_interrupt_are_no_news(tmp_path: Path) -> None:
    """Such as at whatever is still imported."""
    program = """
import builtins
from einc.cli.root import root

def importing(*arguments, real=builtins.__import__):
    signal.raise_signal(signal.SIGINT)
    return real(*arguments)

def make_context(*_):
    builtins.__import__ = importing
    raise KeyboardInterrupt

root.make_context = make_context
"""
    result = einc_in(program, cwd=tmp_path)
    assert result == (130, b"", b"einc: interrupted\n")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("number", "code", "told"), ENDS)
def test_nobody_has_to_read_what_a_command_still_says(
    number: signal.Signals, code: int, told: bytes, tmp_path: Path
) -> None:
    """Standard output is a pipe that is full: the command waits for its reader, who does not come."""
    program = f"""
def flush(real=output.flush):
    output.flush = real
    threading.Timer(0.2, os.kill, (os.getpid(), {number})).start()
    real()

output.flush = flush
signals.PATIENCE = 0.1
"""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(1 << 16))
    os.set_blocking(writing, True)
    try:
        assert einc_in(program, "machine", "list", cwd=tmp_path, stdout=writing) == (code, None, told)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("command", [("check", "-"), ("verify", "-")])
def test_standard_input_that_is_closed_cannot_be_read(command: tuple[str, ...], tmp_path: Path) -> None:
    result = einc_in("sys.stdin = None", *command, cwd=tmp_path)
    assert result == (74, b"", b"einc: standard input: cannot read: it is closed\n")


def test_of_files_that_are_written_at_once_each_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    contents = [bytes([number]) * (1 << 20) for number in range(8)]
    results: list[Any] = []

    def write(data: bytes) -> None:
        for _ in range(5):
            output.write_bytes(str(target), data)
            results.append(target.read_bytes())

    threads = [threading.Thread(target=write, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    assert set(results) <= set(contents)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_an_extension_module_turns_into_its_own_error_is_reported_as_the_signal(
    number: int, code: int, tmp_path: Path
) -> None:
    """As C++ modules do while they convert arguments."""
    program = f"""
import os
from einc_runtime.cli import files

def read_plan(path, **options):
    try:
        os.kill(os.getpid(), {int(number)})
        while True:
            pass
    except BaseException:
        raise TypeError("addRow(): incompatible function arguments") from None

files.read_plan = read_plan
"""
    word = b"interrupted" if number == signal.SIGINT else b"terminated"
    assert einc_in(program, "verify", "x.bin", cwd=tmp_path) == (code, b"", b"einc: " + word + b"\n")
