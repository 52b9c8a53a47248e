"""Aggregations that a model defines: an associative operation on tuples of values, and its identity.

The text of a definition stands in an index program, where `sum` stands in others:

    logaddexp commutative [-inf]: t0 = max x0 x1; t1 = sub x0 x1; ...

The scalar program combines two tuples of as many values as the identity has: first come the values of the left tuple,
then those of the right one. Its last steps are the values of the result. An operation that is not `commutative` is
applied in the order of indices, so nothing is cut along them; one that is `exact` has the same result in any order and
grouping, to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from einc_runtime.errors import PlanFault
from einc_runtime.plan.scalar_functions import is_literal_of
from einc_runtime.plan.scalar_programs import (
    EarlierStep,
    FunctionStep,
    Operand,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
    TypedStep,
    infer_steps,
)
from einc_runtime.text import escape_text

DefinedAggregation = Literal["defined", "defined_exact"]

DEFINED: Final = "defined"
DEFINED_EXACT: Final = "defined_exact"
"""What operations and tasks of a plan call such an aggregation; its definition stands in the operation's program."""

MAX_VALUES = 8
"""The most values that are aggregated together."""

_DEFINITION_HEAD = re.compile(r"([A-Za-z_]\w{0,99})( commutative)?( exact)? \[([^\[\]]{1,300})\]", re.A)


@dataclass(frozen=True, slots=True)
class AggregateDefinition:
    """The program over twice as many inputs as the identity has values."""

    name: str
    identity: tuple[ScalarLiteral, ...]
    program: ScalarProgram
    is_commutative: bool
    is_exact: bool

    @property
    def count(self) -> int:
        """How many values are aggregated together."""
        return len(self.identity)

    @property
    def kind(self) -> DefinedAggregation:
        """What operations and tasks call it."""
        return DEFINED_EXACT if self.is_exact else DEFINED

    @property
    def text(self) -> str:
        properties = " commutative" * self.is_commutative + " exact" * self.is_exact
        return f"{self.name}{properties} [{' '.join(map(str, self.identity))}]: {self.program.text}"

    def infer_steps(self, types: Sequence[str], computed: Callable[[str], str] = str) -> tuple[TypedStep, ...]:
        """The steps where the values have these element types; raises PlanFault where it does not take them."""
        steps = infer_steps(self.program, [*types, *types], computed)
        results = [step.result_type for step in steps[-self.count :]]
        for number, (dtype, result, literal) in enumerate(zip(types, results, self.identity, strict=True)):
            if result != computed(dtype):
                raise PlanFault(f"aggregate {self.name}: value {number + 1} is {dtype}, and combined {result}")
            if not is_literal_of(literal.value, dtype):
                raise PlanFault(f"aggregate {self.name}: its identity {literal} is no {dtype}")
        return steps

    def chain(self, copies: int) -> ScalarProgram:
        """The program that combines so many tuples in their order."""
        count, steps = self.count, list[FunctionStep]()
        left: list[Operand] = [ScalarInput(k) for k in range(count)]
        for copy in range(1, copies):
            inputs = [*left, *(ScalarInput(copy * count + k) for k in range(count))]
            start = len(steps)

            def move(x: Operand, inputs: Sequence[Operand] = inputs, start: int = start) -> Operand:
                if isinstance(x, ScalarInput):
                    return inputs[x.position]
                return EarlierStep(start + x.position) if isinstance(x, EarlierStep) else x

            steps += [FunctionStep(step.function, tuple(map(move, step.operands))) for step in self.program.steps]
            left = [EarlierStep(len(steps) - count + k) for k in range(count)]
        return ScalarProgram(copies * count, tuple(steps))


@lru_cache(maxsize=256)
def find_definition(aggregation: str) -> AggregateDefinition | None:
    """The definition of which this is the text; None for the name of an aggregation. Raises PlanFault for a text that
    defines nothing."""
    if ": " not in aggregation:
        return None
    head, _, program = aggregation.partition(": ")
    match = _DEFINITION_HEAD.fullmatch(head)
    if match is None:
        raise PlanFault(f"'{escape_text(head, 60)}' is no head of a definition of an aggregation")
    literals = []
    for word in match[4].split(" "):
        try:
            literals.append(ScalarLiteral.of(ScalarLiteral(word).value))
        except ValueError:
            raise PlanFault(
                f"the identity of an aggregation has '{escape_text(word, 40)}', which is no number"
            ) from None
    if len(literals) > MAX_VALUES:
        raise PlanFault(f"an aggregation of {len(literals)} values; at most {MAX_VALUES} are supported")
    parsed = ScalarProgram.parse(program, 2 * len(literals))
    definition = AggregateDefinition(match[1], tuple(literals), parsed, bool(match[2]), bool(match[3]))
    if definition.text != aggregation:
        raise PlanFault("the definition of an aggregation is not in canonical form")
    if len(parsed.steps) < definition.count:
        raise PlanFault(f"an aggregation of {definition.count} values has {len(parsed.steps)} results")
    return definition


def count_values(aggregation: str) -> int:
    """How many values an aggregation, or no aggregation, results in."""
    definition = find_definition(aggregation)
    return 1 if definition is None else definition.count
