"""What the runtime reports on purpose. It knows nothing of the compiler's errors; the command line maps both."""

from __future__ import annotations

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
