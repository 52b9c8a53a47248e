"""The entry point of `einc-runtime`, and of `einc`: it runs one command and returns its exit code.

It imports very little at the top. So an interrupt during the other imports is handled like any other interrupt.
"""

from __future__ import annotations

import os
import sys

from einc_runtime.cli import signals

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all that is imported here
if TYPE_CHECKING:
    from collections.abc import Sequence

GARBAGE_THRESHOLD = 1_000_000
"""Objects made between two searches for cyclic garbage. Plans are millions of objects without cycles, and searching
them again and again, as Python does by default, takes a third of the time of a large compilation."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `einc-runtime` and return its exit code; without `arguments` it takes the process's own."""
    return run_program("einc-runtime", "einc_runtime.cli.root", arguments)


def run_program(name: str, table: str, arguments: Sequence[str] | None) -> int:
    """Run the program of this name and return its exit code; `table` is the module whose `root` has its commands."""
    own_process = arguments is None
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if own_process:
            signals.install()
        from einc_runtime.cli import output

        output.prepare_streams()
        _run_command(name, table, command_line, own_process=own_process)
        output.flush()
        signals.over = own_process
    except BaseException as error:
        signals.over = own_process  # this must be the first statement of the handler
        return _end(error, name, command_line, own_process=own_process)
    if own_process:
        _leave()
    return 0


def _run_command(name: str, table: str, arguments: list[str], *, own_process: bool) -> None:
    import gc
    import importlib
    import warnings

    from einc_runtime import environment
    from einc_runtime.cli import output

    root = importlib.import_module(table).root
    if environment.read(f"_{name.upper().replace('-', '_')}_COMPLETE") is not None:
        root.main(list(arguments), name)  # click answers the shell and exits
    if own_process:
        output.claim_stdout()
        gc.set_threshold(GARBAGE_THRESHOLD)
    if own_process and "--debug" not in arguments:
        warnings.simplefilter("ignore")  # a library's advice to programmers is not for users
    with root.make_context(name, list(arguments)) as context:
        root.invoke(context)


def _leave() -> None:
    """Prepares the end of the process. The interpreter searches all objects for cyclic garbage as it ends, which takes
    longer than many a command: it need not, as the system takes back all memory at once. Triton's library lists what is
    left of its objects as errors, so garbage is searched where it is loaded."""
    import gc

    signals.restore()
    if "triton" not in sys.modules:
        gc.freeze()


def _end(error: BaseException, name: str, arguments: list[str], *, own_process: bool) -> int:
    ended = own_process and isinstance(error, KeyboardInterrupt | signals.Terminated)
    if own_process:
        _leave()
    if ended:
        signals.end_in_time(error)
    from einc_runtime.cli import output
    from einc_runtime.cli.failures import CANNOT_WRITE, report

    code = report(error, program=name, debug="--debug" in arguments, as_json="--json" in arguments)
    if own_process and code == CANNOT_WRITE:
        output.abandon_stdout()
    if ended:
        os._exit(code)  # without waiting for worker threads: the user wants the prompt back at once
    return code
