"""Looking names up and defining them while a model is unrolled, and what is wrong where that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from einc.frontend import ast, foreign
from einc.frontend.expressions import Value
from einc.frontend.findings import Findings, Reported
from einc.frontend.parameters import DTYPES, Parameters, check_new_name
from einc.frontend.scope import LOST, Lost, Scope
from einc.ops import registry
from einc_runtime.text import did_you_mean


class Names:
    """The names that can be read at the place that is being lowered.

    `lost` are names in statements that could not be parsed; `later` tells in which line a name of the top is defined.
    """

    def __init__(
        self, parameters: Parameters, lost: frozenset[str], later: Mapping[str, int], findings: Findings
    ) -> None:
        self._parameters = parameters
        self._lost = lost
        self._later = later
        self._findings = findings
        self.scope = Scope()

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        """Names are those of another scope meanwhile."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    def look_up(self, name: ast.Name) -> Value:
        """The value of a name. An unknown name is reported; one whose definition failed has been."""
        word = name.text
        value = self.scope.find(word)
        if value is None:
            value = self._parameters.values.get(word)
        if isinstance(value, Lost):
            raise Reported
        if value is not None:
            return value
        if word in DTYPES:
            return word
        if self.is_lost(word):
            raise Reported
        raise self._findings.fail(f"'{word}' is not defined", name.span, self._hint(word, name.span.line))

    def is_lost(self, word: str) -> bool:
        """Whether a name may have been defined in a statement that failed."""
        return word in self._parameters.broken or word in self._lost

    def check_new(self, name: ast.Name) -> None:
        """Fails where a name is known already: inputs, weights and the variable of a repeat take none over."""
        check_new_name(name, self._parameters.spans, self._findings)
        check_new_name(name, self.scope.owner(name.text).spans, self._findings)

    def define(self, name: ast.Name, value: Value) -> None:
        """Gives a name its value; one that is taken is reported."""
        check_new_name(name, self._parameters.spans, self._findings)
        scope = self.scope
        owner = scope.owner(name.text)
        if owner is scope:
            check_new_name(name, scope.spans, self._findings)
            scope.spans[name.text] = name.span
        owner.values[name.text] = value

    def lose(self, name: ast.Name) -> None:
        """Notes that a definition failed."""
        owner = self.scope.owner(name.text)
        if owner is not self.scope or name.text not in owner.values:
            owner.values[name.text] = LOST
            owner.spans.setdefault(name.text, name.span)

    def _hint(self, word: str, line: int) -> str | None:
        if self.scope.is_block and word in self._later:
            return f"a block sees params, dims and its own names only; hand '{word}' to it as an argument"
        there = self._later.get(word, line)
        if there < line:
            return f"it is local to the repeat around line {there}; its last value goes out under a name from before"
        if there > line:
            return f"it is defined further down, in line {there}; statements run in order"
        if registry.is_callable(word):
            return f"'{word}' is an operator; call it: `{word}(...)`"
        return foreign.NAMES.get(word) or did_you_mean(word, [*self.scope.known_names(), *self._parameters.spans])
