"""Whole plans, built with naive exchanges and predicted: what the search compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from einc.errors import MachineError
from einc.graph.layers import Folded
from einc.logical.plan import LogicalPlan
from einc.physical.budget import SearchBudget
from einc.physical.build import PlacedBeginnings, build
from einc.physical.placer import PlanRecords
from einc.physical.records import OperationRecorder
from einc.physical.schedule import NaiveScheduler
from einc.predict.launches import find_saved_ms
from einc.search.orders import Order
from einc.search.space import Assignment, SearchSpace

BUILDS_LEFT = 3
"""With a time limit, a plan is built only if there is time for so many: for this one, and two to finish the best."""

OmittedLayersCost = Callable[[Assignment], tuple[float, int]]
"""What a plan takes beyond that of the graph that is built: milliseconds, and bytes at every site."""


@dataclass(frozen=True, slots=True)
class EvaluatedPlan:
    """A plan that the search has looked at: cuts, the order of operators, and whether those that leave sites idle run
    side by side (`LogicalPlan.spread`); predicted with naive exchanges.

    `memory` is the largest arena in bytes, and `excess` by how many bytes it is too large for its site (0: it fits).
    """

    assignment: Assignment
    order: Order
    spread: bool
    predicted_ms: float
    memory: int
    excess: int

    @property
    def rank(self) -> tuple[int, float]:
        """The smaller, the better: plans that fit come first, the fastest of them before all."""
        return self.excess, self.predicted_ms


class Evaluator:
    """Builds and predicts plans of a search space. Each is built once.

    `effort` is the number of tasks that may still be built; it is counted, so that equal inputs give equal plans.
    `seconds` is what the slowest one took, and `scheduler` has planned their exchanges.
    """

    def __init__(
        self,
        space: SearchSpace,
        budget: SearchBudget,
        effort: float,
        omitted_layers_cost: OmittedLayersCost,
        folded: Folded | None = None,
    ) -> None:
        self.space = space
        self.budget = budget
        self.effort = effort
        self._omitted_layers_cost = omitted_layers_cost
        self._folded = folded
        self.scheduler = NaiveScheduler(space.machine, space.sites, timed=False)
        self._recorder = OperationRecorder()
        self._beginnings = PlacedBeginnings()
        self._known: dict[tuple[Assignment, Order, bool], EvaluatedPlan | None] = {}
        self._needs: dict[tuple[Assignment, Order, bool], tuple[int, ...]] = {}
        self._built_ms: dict[tuple[Assignment, Order, bool], float] = {}
        self._reserve = 0
        self._size = 0
        self.seconds = 0.0

    @property
    def size(self) -> int:
        """The tasks of the plan that was built last."""
        return self._size

    @property
    def exhausted(self) -> bool:
        """Whether no further plan of the size of the last one may be built."""
        return self.effort < self._size or self.hurried

    @property
    def hurried(self) -> bool:
        """Whether the time limit leaves no time for a further plan like the slowest so far, and to finish one."""
        return not self.budget.left or self.budget.left < BUILDS_LEFT * self.seconds

    @contextmanager
    def allow(self, effort: float) -> Iterator[None]:
        """Inside of it, so many tasks may be built, whatever was left before."""
        left, self.effort = self.effort, effort
        yield
        self.effort = left

    def evaluate(
        self, assignment: Sequence[int], order: Order | None = None, *, spread: bool = True
    ) -> EvaluatedPlan | None:
        """The prediction of a plan; None where sites that must exchange data cannot talk."""
        key = tuple(assignment), order or tuple(range(len(assignment))), spread
        if key not in self._known:
            self._known[key] = self._evaluate(*key)
        return self._known[key]

    def knows(self, assignment: Assignment, order: Order, *, spread: bool) -> bool:
        """Whether this plan has been predicted."""
        return (assignment, order, spread) in self._known

    def list_evaluated(self) -> list[EvaluatedPlan]:
        return [evaluated for evaluated in self._known.values() if evaluated is not None]

    def set_aside(self, size: int) -> None:
        """Counts so many more bytes at every site for every plan, past and future."""
        self._reserve += size
        for key, evaluated in self._known.items():
            if evaluated is not None:
                self._known[key] = replace(evaluated, memory=evaluated.memory + size, excess=self._find_excess(key))

    def renew(self, evaluated: EvaluatedPlan) -> EvaluatedPlan:
        """The plan with what has been set aside since it was made."""
        known = self._known[evaluated.assignment, evaluated.order, evaluated.spread]
        assert known is not None
        return known

    def built_ms(self, evaluated: EvaluatedPlan) -> float:
        """What the graph that is built takes, without layers that are left out."""
        return self._built_ms[evaluated.assignment, evaluated.order, evaluated.spread]

    def _find_excess(self, key: tuple[Assignment, Order, bool]) -> int:
        pairs = zip(self._needs[key], self.space.machine.sites, strict=False)
        return max(0, *(need + self._reserve - site.memory_bytes for need, site in pairs))

    def make_plan(self, evaluated: EvaluatedPlan) -> LogicalPlan:
        return self.space.make_plan(evaluated.assignment, evaluated.order, evaluated.spread)

    def _evaluate(self, assignment: Assignment, order: Order, spread: bool) -> EvaluatedPlan | None:
        started = time.monotonic()
        plan = self.space.make_plan(assignment, order, spread)
        try:
            program = build(
                plan,
                self.space.machine,
                self.scheduler,
                PlanRecords.of(plan, self._recorder),
                check_memory=False,
                beginnings=self._beginnings,
            )
        except MachineError:
            return None
        self.seconds = max(self.seconds, time.monotonic() - started)
        self._size = len(program.tasks)
        self.effort -= self._size
        more_ms, more_bytes = self._omitted_layers_cost(assignment)
        if self._folded is not None:
            assert program.timed is not None, "it was built just now"
            run = program.timed.run  # tables know no launches of several operators, and nothing that is read ahead
            saved = find_saved_ms(program, self.space.machine, run.costs, run.launches)
            more_ms -= sum((n - 1) * saved.get(m, 0.0) for m, n in enumerate(self._folded.times))
        key = assignment, order, spread
        self._needs[key] = tuple(need + more_bytes for need in program.memory)
        self._built_ms[key] = program.predicted_ms
        memory = max(self._needs[key]) + self._reserve
        return EvaluatedPlan(assignment, order, spread, program.predicted_ms + more_ms, memory, self._find_excess(key))
