"""The state of one lowering: the names in scope, the graph under construction, and counts of what is limited.

A tensor at the top keeps its name in the graph. In iteration 3 of a repeat it is `h.3`; in an application of
`block layer` there it is `layer.3.h`. Names in a text have no dots, so these cannot clash with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from einc.core.tensor import DType
from einc.errors import SourceSpan
from einc.frontend import ast, limits
from einc.frontend.ast import iterate_parts, list_own_expressions
from einc.frontend.expressions import EvaluatedCall, EvaluationContext, MultipleResults, TensorValue, Value
from einc.frontend.findings import FOREIGN_NAMES, AlreadyReported
from einc.frontend.parameters import DTYPE_NAMES, Parameters, check_new_name
from einc.frontend.shared_blocks import BlockOrigin
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc_runtime.text import did_you_mean

INFINITY = "inf"
"""The name of the number that is larger than all others, where nothing else has this name."""


class Poison:
    """The value of a name whose definition failed. Reading it is not reported as a second error."""


POISON = Poison()


@dataclass(slots=True)
class Scope:
    """The names of the top, of one application of a block, or of one iteration of a repeat.

    `outer` is the scope around a repeat; blocks and the top have none. `outputs` are the names to be saved as they
    are at the end of the body.
    """

    prefix: str = ""
    suffix: str = ""
    outer: Scope | None = None
    is_block: bool = False
    values: dict[str, Value | Poison] = field(default_factory=dict)
    spans: dict[str, SourceSpan] = field(default_factory=dict)
    outputs: list[ast.Name] = field(default_factory=list)

    def owner(self, name: str) -> Scope:
        """The scope that has a name, or this one if none has it. A repeat can assign the names around it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope
            scope = scope.outer
        return self

    def full_name(self, name: str) -> str:
        """What the graph calls a tensor that has this name here."""
        return f"{self.prefix}{name}{self.suffix}"

    def iteration(self, number: int) -> Scope:
        """The scope of one iteration of a repeat in this scope."""
        return Scope(self.prefix, f"{self.suffix}.{number}", self, self.is_block)

    def known_names(self) -> list[str]:
        """All names that can be read here."""
        names: list[str] = []
        scope: Scope | None = self
        while scope is not None:
            names += scope.values
            scope = scope.outer
        return names


@dataclass(frozen=True, slots=True)
class SavedOutput:
    """A name in an `output` statement, the name of that output in the graph, and the tensor."""

    syntax: ast.Name
    name: str
    tensor: TensorValue


@dataclass(slots=True, kw_only=True)
class LoweringContext(EvaluationContext):
    """One model on its way to a graph.

    The first group of fields stays as it is; the second changes as statements are lowered.
    """

    parameters: Parameters
    builder: GraphBuilder
    dtype: DType | None
    """What replaces all floating element types (`--dtype`)."""
    lost_names: frozenset[str]
    """The names in statements that could not be parsed."""
    definition_lines: Mapping[str, int]
    """In which line each name at the top is defined first."""
    blocks: Mapping[str, ast.BlockDecl]
    broken_blocks: frozenset[str]
    used_blocks: Mapping[str, ast.BlockDecl]
    aggregates: Mapping[str, ast.AggregateDecl]
    used_aggregates: Mapping[str, ast.AggregateDecl]
    apply_call: Callable[[LoweringContext, EvaluatedCall], Value | MultipleResults]

    scope: Scope = field(default_factory=Scope)
    origin: BlockOrigin = BlockOrigin.MODEL
    """The text whose statements are being lowered."""
    active_blocks: list[str] = field(default_factory=list)
    """The blocks that are being applied, the innermost last."""
    block_labels: set[str] = field(default_factory=set)
    """The names that applications of blocks have in the graph."""
    outputs: dict[str, SavedOutput] = field(default_factory=dict)
    statement: str = ""
    """The name of the statement that is being lowered; its parts are called `y.1`, `y.2`."""
    part_count: int = 0
    declared: set[str] = field(default_factory=set)
    """The inputs and weights in the graph."""
    node_count: int = 0
    step_count: int = 0
    is_exhausted: bool = False
    """Whether the bound on steps has been exceeded, and reported."""
    statement_sizes: dict[int, int] = field(default_factory=dict)
    """How many steps each statement takes, by its identity."""

    def look_up(self, name: ast.Name) -> Value:
        word = name.text
        value = self.scope.owner(word).values.get(word)
        if value is None:
            value = self.parameters.values.get(word)
        if isinstance(value, Poison):
            raise AlreadyReported
        if value is not None:
            return value
        if word in DTYPE_NAMES:
            return word
        if word == INFINITY:
            return math.inf
        if self.may_be_lost(word):
            raise AlreadyReported
        raise self.findings.fail(f"'{word}' is not defined", name.span, self._suggest(word, name.span.line))

    def apply(self, call: EvaluatedCall) -> Value | MultipleResults:
        return self.apply_call(self, call)

    def may_be_lost(self, word: str) -> bool:
        """Whether a name may have been defined in a statement that failed."""
        return word in self.parameters.broken or word in self.lost_names

    @contextmanager
    def enter_scope(self, scope: Scope) -> Iterator[None]:
        """Within this context, names are those of another scope."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    @contextmanager
    def enter_origin(self, origin: BlockOrigin) -> Iterator[None]:
        """Within this context, statements are those of another text, which sees no params and dims of the model."""
        before = self.origin, self.parameters
        self.origin = origin
        if origin is not BlockOrigin.MODEL:
            self.parameters = Parameters()
        try:
            yield
        finally:
            self.origin, self.parameters = before

    @contextmanager
    def enter_statement(self, name: str) -> Iterator[None]:
        """Within this context, parts are named after another statement."""
        before = self.statement, self.part_count
        self.start_statement(name)
        try:
            yield
        finally:
            self.statement, self.part_count = before

    def start_statement(self, name: str) -> None:
        """From now on, parts are named after this statement."""
        self.statement, self.part_count = name, 0

    def count_steps(self, statement: ast.Statement) -> None:
        """Bounds the work of unrolling."""
        sizes = self.statement_sizes
        if id(statement) not in sizes:
            sizes[id(statement)] = 1 + sum(1 for part in list_own_expressions(statement) for _ in iterate_parts(part))
        self.step_count += sizes[id(statement)]
        if self.step_count <= limits.MAX_UNROLLED_STEPS:
            return
        if not self.is_exhausted:
            self.is_exhausted = True
            message = (
                f"unrolling this model takes more than {limits.MAX_UNROLLED_STEPS:,} steps, the most that are allowed"
            )
            self.findings.add(message, statement.span, "blocks and repeats are unrolled; repeat fewer times")
        raise AlreadyReported

    def check_new(self, name: ast.Name) -> None:
        """Fails if a name is known: inputs, weights and the variable of a repeat must have new names."""
        check_new_name(name, self.parameters.spans, self.findings)
        check_new_name(name, self.scope.owner(name.text).spans, self.findings)

    def define(self, name: ast.Name, value: Value) -> None:
        """Gives a name its value; fails if this scope has the name already."""
        check_new_name(name, self.parameters.spans, self.findings)
        owner = self.scope.owner(name.text)
        if owner is self.scope:
            check_new_name(name, owner.spans, self.findings)
            owner.spans[name.text] = name.span
        owner.values[name.text] = value

    def poison(self, name: ast.Name) -> None:
        """Notes that the definition of a name failed."""
        owner = self.scope.owner(name.text)
        if owner is not self.scope or name.text not in owner.values:
            owner.values[name.text] = POISON
            owner.spans.setdefault(name.text, name.span)

    def _suggest(self, word: str, line: int) -> str | None:
        """What may help where a name is not defined."""
        if self.scope.is_block and word in self.definition_lines:
            return f"a block sees params, dims and its own names only; pass '{word}' to it as an argument"
        definition_line = self.definition_lines.get(word, line)
        if definition_line < line:
            return (
                f"it is local to the repeat around line {definition_line}; assign it to a name from before the repeat"
            )
        if definition_line > line:
            return f"it is defined further down, in line {definition_line}; statements run in order"
        if registry.is_callable(word):
            return f"'{word}' is an operator; call it: `{word}(...)`"
        return FOREIGN_NAMES.get(word) or did_you_mean(word, [*self.scope.known_names(), *self.parameters.spans])


def is_recurrence(context: LoweringContext, statement: ast.EquationStmt) -> bool:
    """Whether an equation reads the value that it defines; where its name has a value already, it reads that."""
    name = statement.target.text
    return name not in context.scope.owner(name).values and any(
        isinstance(part.base, ast.Name) and part.base.text == name for part in list_reads(statement)
    )


def list_reads(statement: ast.EquationStmt) -> Iterator[ast.IndexedExpr]:
    """Where an equation reads elements of tensors."""
    return (part for part in iterate_parts(statement.value) if isinstance(part, ast.IndexedExpr))
