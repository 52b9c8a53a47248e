"""The saved outputs: what each `output` stands for where its body ends, under the name that it is saved by."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from einc.frontend import ast, constants
from einc.frontend.assembly import Assembly
from einc.frontend.expressions import Tensor
from einc.frontend.findings import Findings, Reported
from einc.frontend.names import Names


@dataclass(frozen=True, slots=True)
class _Saved:
    """An `output`, the name in the graph that it asks for, and the tensor."""

    syntax: ast.Name
    name: str
    tensor: Tensor


class Outputs:
    """The outputs of the text, and of every iteration of a repeat that has some."""

    def __init__(self, names: Names, findings: Findings) -> None:
        self._names = names
        self._findings = findings
        self._saved: dict[str, _Saved] = {}

    def collect(self, outputs: Sequence[ast.Name]) -> None:
        """Notes what these names stand for now, at the end of their body; what cannot be saved is reported."""
        for syntax in outputs:
            with suppress(Reported):
                name = self._names.scope.full_name(syntax.text)
                if name in self._saved:
                    raise self._findings.fail(f"'{name}' is saved already", syntax.span)
                value = self._names.look_up(syntax)
                if not isinstance(value, Tensor):
                    raise self._findings.fail(f"expected a tensor, found {constants.described(value)}", syntax.span)
                self._saved[name] = _Saved(syntax, name, value)

    def save(self, assembly: Assembly) -> None:
        """Saves all of them in the graph, where there are no errors."""
        if self._findings:
            return
        for saved in self._saved.values():
            if not assembly.save(saved.tensor, saved.name, saved.syntax.span):
                self._findings.add(
                    f"'{saved.name}' names an input or weight, so that no output can have this name",
                    saved.syntax.span,
                    f"save it under another name: `output y = {saved.syntax.text}`",
                )
