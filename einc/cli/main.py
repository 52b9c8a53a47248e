"""The entry point of `einc`: runs one command and turns however it ends into an exit code.

It imports next to nothing at the top, so that an interrupt while the rest is being imported is handled like any other.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; with no arguments given, take the process's own."""
    own_process = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    if own_process:
        _repeat_lost_interrupts()
    try:
        from einc.cli import output

        output.prepare_streams()
        _run(given, own_process=own_process)
        output.flush()
        if own_process:
            _ignore_interrupts()
    except BaseException as error:
        if own_process:
            _ignore_interrupts()
        return _end(error, given, own_process=own_process)
    return 0


RARELY = 1_000_000
"""Objects made between two searches for cyclic garbage. Plans are millions of objects without cycles, and searching
them again and again, as Python does by default, takes a third of the time of a large compilation."""


MOMENT = 0.01
"""Seconds until a lost interrupt comes again."""


def _repeat_lost_interrupts() -> None:
    """Interrupts again where Python lost an interrupt: what is raised in finalizers and callbacks is only printed."""
    report = sys.unraisablehook

    def interrupt_again() -> None:
        import signal

        time.sleep(MOMENT)
        os.kill(os.getpid(), signal.SIGINT)  # which ends a wait, too; _thread.interrupt_main() would not

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(interrupt_again, ())
        else:
            report(lost)

    sys.unraisablehook = hook


def _ignore_interrupts() -> None:
    """From here on the exit code stands: neither a second Ctrl-C nor one that meets Python's own end, which takes a
    while after a large compilation and which an interrupt would turn into death by a signal, changes it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(arguments: list[str], *, own_process: bool) -> None:
    import gc
    import warnings

    from einc.cli.root import root

    if "_EINC_COMPLETE" in os.environ:
        root.main(list(arguments), "einc")  # click answers the shell and exits
    if own_process:
        gc.set_threshold(RARELY)
    if own_process and "--debug" not in arguments:
        warnings.simplefilter("ignore")  # a library's advice to programmers is not for users
    with root.make_context("einc", list(arguments)) as context:
        root.invoke(context)


def _end(error: BaseException, arguments: list[str], *, own_process: bool) -> int:
    from einc.cli import output
    from einc.cli.failures import report

    code = report(error, debug="--debug" in arguments, as_json="--json" in arguments)
    if own_process and code in (73, 130):
        output.abandon_stdout()
    if own_process and code == 130:
        os._exit(code)  # without waiting for worker threads: whoever interrupts wants the prompt back
    return code
