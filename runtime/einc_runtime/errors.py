"""What the runtime reports on purpose. It knows nothing of the compiler's errors; the command line maps both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class RuntimeFault(Exception):
    """Base of the runtime's errors: a stable `code`, an exit code for a command line, and the place if known."""

    code: ClassVar[str] = "runtime"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def render(self) -> str:
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return text if self.hint is None else f"{text}\n    hint: {self.hint}"


class PlanFault(RuntimeFault):
    """The bytes are no plan bundle, or one that contradicts itself."""

    code, exit_code = "plan", 65


class ArrayFault(RuntimeFault):
    """An input or weight array is missing, unreadable, or not what the plan says."""

    code, exit_code = "array", 65


class MissingFault(RuntimeFault):
    """A device, a library or memory that execution needs is not here."""

    code, exit_code = "missing", 69


class KernelFault(RuntimeFault):
    """A kernel failed while the plan ran."""

    code, exit_code = "kernel", 70


class ValueFault(KernelFault):
    """A kernel met a value that no input may have: a token that the vocabulary lacks, a position outside of a cache."""

    code, exit_code = "value", 65


def printable(text: str, most: int = 200) -> str:
    """A text of unknown origin, cut to `most` characters, that no terminal takes for commands."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def gibibytes(count: int) -> str:
    """`1.50 GiB`: for messages."""
    return f"{count / 2**30:,.2f} GiB"


def listed(names: Sequence[str], most: int = 8) -> str:
    """`'a', 'b' and 3 more`: the first names of many."""
    shown = ", ".join(f"'{printable(name, 100)}'" for name in names[:most]) or "nothing"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def did_you_mean(name: str, names: Sequence[str]) -> str | None:
    """A hint with the one of `names` that is most like `name`, or None where none is."""
    from difflib import get_close_matches

    close = get_close_matches(name, names, 1)
    return f"did you mean '{printable(close[0], 100)}'?" if close else None


def nearest(name: str, names: Sequence[str]) -> str:
    """A hint for a name that is not among `names`: the one that is most like it, else the first of all."""
    return did_you_mean(name, names) or f"there are {listed(names)}"


def raise_together(problems: Sequence[str], where: str | None = None, most: int = 20) -> None:
    """Raises one ArrayFault with a line for each problem, if there is any."""
    if problems:
        more = [f"and {len(problems) - most} more"] if len(problems) > most else []
        raise ArrayFault("\n    ".join([*problems[:most], *more]), where=where)
