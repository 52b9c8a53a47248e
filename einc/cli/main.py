"""The entry point of `einc`. It imports next to nothing, as `einc_runtime.cli.main` says."""

from __future__ import annotations

from einc_runtime.cli.main import run_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without `arguments` it takes the process's own."""
    return run_program("einc", "einc.cli.root", arguments)
