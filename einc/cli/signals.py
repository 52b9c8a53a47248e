"""Interrupts, and requests to end: all of them end a command as an exception does, so that nothing half done stays.

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
"""What asks a process to end, and is no interrupt: a supervisor, or a terminal that went away."""

MOMENT = 0.01
"""Seconds until a signal comes again that Python lost."""

PATIENCE = 2.0
"""Seconds in which a command that was ended says so; who should read it may not."""

over = False
"""Whether the exit code stands, and no interrupt changes it any more."""


class Terminated(BaseException):
    """The signal of this `number` came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def take() -> None:
    """From here on signals are raised in the main thread; those that are ignored stay so, as for `nohup`."""
    for number in ENDING:
        if _signal.getsignal(number) == _signal.SIG_DFL:
            _signal.signal(number, _end)
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
    _repeat_lost_signals()


def give_back() -> None:
    """From here on, once `over` is set, interrupts are ignored, and what asks the process to end does so at once.

    An interrupt that meets Python's own end, which takes a while after a large compilation, would turn it into death by
    a signal.
    """
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for number in ENDING:
        if _signal.getsignal(number) is _end:
            _signal.signal(number, _signal.SIG_DFL)


def end_in_time(error: BaseException) -> None:
    """The process ends with the exit code of this error, even if nobody reads what it still has to say."""
    if hasattr(_signal, "SIGALRM"):
        _signal.signal(_signal.SIGALRM, lambda *_: os._exit(code_of(error)))
        _signal.setitimer(_signal.ITIMER_REAL, PATIENCE)


def code_of(error: BaseException) -> int:
    """The exit code of a command that was ended by KeyboardInterrupt or Terminated, as shells tell it."""
    return 128 + (error.number if isinstance(error, Terminated) else int(_signal.SIGINT))


def _end(number: int, _: object) -> None:
    if not over:
        raise KeyboardInterrupt if number == _signal.SIGINT else Terminated(number)


def _repeat_lost_signals() -> None:
    """Sends a signal again that Python lost: what is raised in finalizers and callbacks is only printed."""
    report = sys.unraisablehook

    def again(number: int) -> None:
        time.sleep(MOMENT)
        os.kill(os.getpid(), number)  # which ends a wait, too; _thread.interrupt_main() would not

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt | Terminated):
            _thread.start_new_thread(again, (getattr(lost.exc_value, "number", _signal.SIGINT),))
        else:
            report(lost)

    sys.unraisablehook = hook
