"""Scopes: what names stand for where, and what their tensors are called in the graph.

A tensor at the top keeps its name. In iteration 3 of a repeat it is `h.3`; in an application of `block layer` there it
is `layer.3.h`. No name in a text has a dot, so that none of these can meet one of the text's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.expressions import Value


class Lost:
    """Stands for the value of a name whose definition failed: reading it is no second error."""


LOST = Lost()


@dataclass(slots=True)
class Scope:
    """The names of the top, of one application of a block, or of one iteration of a repeat.

    `outer` is the scope around a repeat; blocks and the top have none. `outputs` are names to be saved as they
    stand at the end of the body.
    """

    prefix: str = ""
    suffix: str = ""
    outer: Scope | None = None
    is_block: bool = False
    values: dict[str, Value | Lost] = field(default_factory=dict)
    spans: dict[str, SourceSpan] = field(default_factory=dict)
    outputs: list[ast.Name] = field(default_factory=list)

    def find(self, name: str) -> Value | Lost | None:
        """What a name stands for, or None where it is not known."""
        return self.owner(name).values.get(name)

    def owner(self, name: str) -> Scope:
        """The scope that has a name, else this one. What stands around a repeat can be assigned in it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope
            scope = scope.outer
        return self

    def full_name(self, name: str) -> str:
        """What the graph calls a tensor that is named here."""
        return f"{self.prefix}{name}{self.suffix}"

    def iteration(self, number: int) -> Scope:
        """The scope of one iteration of a repeat that stands here."""
        return Scope(self.prefix, f"{self.suffix}.{number}", self, self.is_block)

    def known_names(self) -> list[str]:
        """All names that can be read here."""
        names: list[str] = []
        scope: Scope | None = self
        while scope is not None:
            names += scope.values
            scope = scope.outer
        return names
