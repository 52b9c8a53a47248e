"""Turns interrupts and requests to terminate into exceptions, so that a command cleans up before it ends.

It imports very little (`_signal` is `signal` without its enumerations). So a signal during the other imports of a
command is handled like any other signal.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

ENDING = tuple(getattr(_signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(_signal, name))
"""Signals other than an interrupt that ask a process to end: from a supervisor, or from a terminal that was closed."""

INTERRUPT = int(_signal.SIGINT)

RESEND_DELAY = 0.01
"""Seconds after which a signal that Python lost is sent again."""

REPORT_SECONDS = 2.0
"""Seconds that an interrupted command has to report its end; the reader of its output may have stopped reading."""

over = False
"""Whether the exit code is decided, so that no interrupt changes it any more."""

last_signal: int | None = None
"""The number of the last signal that `_end` handled. Code in C may replace the exception by one of its own."""


class Terminated(BaseException):
    """Raised when the signal of this `number` arrives."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def install() -> None:
    """From now on, signals raise exceptions in the main thread. Ignored ones stay ignored, as under `nohup`."""
    for number in (*ENDING, _signal.SIGINT):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _end)
    _repeat_lost_signals()


def restore() -> None:
    """From now on, interrupts are ignored, and signals that ask the process to end do so at once. `over` must be set.

    After a large compilation, the interpreter takes a while to end. An interrupt in that time would replace the
    command's exit code.
    """
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for number in ENDING:
        if _signal.getsignal(number) is _end:
            _signal.signal(number, _signal.SIG_DFL)


def end_in_time(error: BaseException) -> None:
    """Make sure that the process ends with the exit code of this error, even if nobody reads its last output."""
    if hasattr(_signal, "SIGALRM"):
        _signal.signal(_signal.SIGALRM, lambda *_: os._exit(exit_code_of(error)))
        _signal.setitimer(_signal.ITIMER_REAL, REPORT_SECONDS)


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that was ended by KeyboardInterrupt or Terminated, as shells report it."""
    return 128 + (error.number if isinstance(error, Terminated) else int(_signal.SIGINT))


def _end(number: int, _: object) -> None:
    global last_signal
    if not over:
        last_signal = number
        raise KeyboardInterrupt if number == _signal.SIGINT else Terminated(number)


def _repeat_lost_signals() -> None:
    """Send a signal again that Python lost: exceptions in finalizers and callbacks are only printed."""
    report = sys.unraisablehook

    def again(number: int) -> None:
        time.sleep(RESEND_DELAY)
        os.kill(os.getpid(), number)  # which ends a wait, too; _thread.interrupt_main() would not

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt | Terminated):
            _thread.start_new_thread(again, (getattr(lost.exc_value, "number", _signal.SIGINT),))
        else:
            report(lost)

    sys.unraisablehook = hook
