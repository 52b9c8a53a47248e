"""The entry point of `einc`: runs one command and turns however it ends into an exit code.

It imports next to nothing at the top, so that an interrupt while the rest is being imported is handled like any other.
"""

from __future__ import annotations

import os
import sys

from einc.cli import signals

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all that is imported here
if TYPE_CHECKING:
    from collections.abc import Sequence

RARELY = 1_000_000
"""Objects made between two searches for cyclic garbage. Plans are millions of objects without cycles, and searching
them again and again, as Python does by default, takes a third of the time of a large compilation."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; with no arguments given, take the process's own."""
    own_process = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if own_process:
            signals.take()
        from einc.cli import output

        output.prepare_streams()
        _run(given, own_process=own_process)
        output.flush()
        signals.over = own_process
    except BaseException as error:
        signals.over = own_process  # nothing that can be interrupted comes before this
        return _end(error, given, own_process=own_process)
    if own_process:
        signals.give_back()
    return 0


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
    ended = own_process and isinstance(error, KeyboardInterrupt | signals.Terminated)
    if own_process:
        signals.give_back()
    if ended:
        signals.end_in_time(error)
    from einc.cli import output
    from einc.cli.failures import CANNOT_WRITE, report

    code = report(error, debug="--debug" in arguments, as_json="--json" in arguments)
    if own_process and code == CANNOT_WRITE:
        output.abandon_stdout()
    if ended:
        os._exit(code)  # without waiting for worker threads: whoever interrupts wants the prompt back
    return code
