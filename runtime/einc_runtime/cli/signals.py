"""Interrupts and requests to end: each ends a command as an exception does, so that nothing half done stays.

It imports next to nothing (`_signal` is what `signal` has without its enumerations), so that a signal that comes while
the rest of a command is being imported is handled like any other.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

ENDING = tuple(getattr(_signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(_signal, name))
"""Signals that ask a process to end and are no interrupt: from a supervisor, or a terminal that was closed."""

RESEND_DELAY = 0.01
"""Seconds after which a signal that Python lost is sent again."""

PATIENCE = 2.0
"""Seconds that a command which was ended has to say so; the reader of its output may have stopped reading."""

over = False
"""Whether the exit code is decided, so that no interrupt changes it any more."""


class Terminated(BaseException):
    """Raised when the signal of this `number` arrives."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def install() -> None:
    """From here on signals are raised as exceptions in the main thread; ignored ones stay ignored, as for `nohup`."""
    for number in ENDING:
        if _signal.getsignal(number) == _signal.SIG_DFL:
            _signal.signal(number, _end)
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
    _repeat_lost_signals()


def restore() -> None:
    """From here on, once `over` is set, interrupts are ignored, and what asks the process to end does so at once.

    An interrupt that meets Python's own end, which takes a while after a large compilation, would turn it into death by
    a signal.
    """
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for number in ENDING:
        if _signal.getsignal(number) is _end:
            _signal.signal(number, _signal.SIG_DFL)


def end_in_time(error: BaseException) -> None:
    """Make sure that the process ends with the exit code of this error, even if nobody reads its last output."""
    if hasattr(_signal, "SIGALRM"):
        _signal.signal(_signal.SIGALRM, lambda *_: os._exit(exit_code_of(error)))
        _signal.setitimer(_signal.ITIMER_REAL, PATIENCE)


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that was ended by KeyboardInterrupt or Terminated, as shells report it."""
    return 128 + (error.number if isinstance(error, Terminated) else int(_signal.SIGINT))


def _end(number: int, _: object) -> None:
    if not over:
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
