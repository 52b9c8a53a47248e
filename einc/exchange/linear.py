"""Linear programs with one solution: which of several optima is taken does not depend on the solver.

A solver may return any optimum, and the last digits of its numbers differ from version to version. Here, one optimum is
left. Where columns are asked for, every cost is raised by a small part that depends on its number alone; where the
prices of rows are asked for, the sides of the rows are drawn in by such parts. And all numbers of a solution are
rounded to a grid. So what a program returns is the same for every solver that is exact enough.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from einc_runtime.dtypes import Floats

_PERTURBATION = 2.0**-17
"""The most that costs or sides are changed by, as a part of them; of 1 where they are 0."""

_GRID = 2.0**-22
"""Numbers of solutions are multiples of it, so that their sums are exact."""

_SCALE = 2.0**10
"""Costs and sides are this many times as large for the solver, whose tolerances are absolute."""

_SOLVER_TOLERANCE = 1e-10
"""The least that the solver accepts."""


class LinearProgram:
    """The least cost of columns, which are at least 0, where the rows keep between their sides.

    Costs, sides and results should be about 1, as the grid is the same for all.
    """

    def __init__(self, *, priced: bool) -> None:
        """With `priced`, the prices of rows are asked for, and otherwise columns."""
        import highspy

        self._solver = make_solver()
        self._solver.setOptionValue("primal_feasibility_tolerance", _SOLVER_TOLERANCE)
        self._solver.setOptionValue("dual_feasibility_tolerance", _SOLVER_TOLERANCE)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._unfinished = highspy.HighsModelStatus.kUnknown
        self._priced = priced
        self._parts = _Parts(), _Parts()
        self._costs: list[float] = []
        self._sides: list[tuple[float, float]] = []

    def add_columns(self, costs: Sequence[float]) -> None:
        """Adds columns that are in no row so far."""
        count = len(costs)
        first = len(self._costs)
        self._solver.addVars(count, np.zeros(count), np.full(count, math.inf))
        self._costs += [0.0] * count
        self.change_costs(range(first, first + count), costs)

    def add_column(self, cost: float, rows: Sequence[int], values: Sequence[float]) -> None:
        """Adds a column with these values in these rows."""
        shown = self._raise(len(self._costs), cost)
        self._costs.append(cost)
        self._solver.addCol(shown, 0.0, math.inf, len(rows), np.array(rows, np.int32), np.array(values, np.float64))

    def add_row(self, least: float, most: float, columns: Sequence[int], values: Sequence[float]) -> None:
        """Adds a row: the sum of these columns, times these values, is at least `least` and at most `most`."""
        shown = self._draw_in(len(self._sides), least, most)
        self._sides.append((least, most))
        self._solver.addRow(*shown, len(columns), np.array(columns, np.int32), np.array(values, np.float64))

    def change_costs(self, columns: Sequence[int], costs: Sequence[float]) -> None:
        for column, cost in zip(columns, costs, strict=True):
            self._costs[column] = cost
        shown = [self._raise(column, self._costs[column]) for column in columns]
        self._solver.changeColsCost(len(columns), np.array(columns, np.int32), np.array(shown))

    def limit_column(self, column: int, most: float) -> None:
        self._solver.changeColBounds(column, 0.0, most * _SCALE)

    def ask(self, *, priced: bool) -> None:
        """From now on asks for the prices of rows, or for columns."""
        self._priced = priced
        self.change_costs(range(len(self._costs)), self._costs)
        for row, sides in enumerate(self._sides):
            self._solver.changeRowBounds(row, *self._draw_in(row, *sides))

    def _raise(self, column: int, cost: float) -> float:
        if not self._priced:
            cost += self._parts[0][column] * (abs(cost) or 1.0)
        return cost * _SCALE

    def _draw_in(self, row: int, least: float, most: float) -> tuple[float, float]:
        part = self._parts[1][row] if self._priced else 0.0
        if least == most:
            least = most = least + part * (abs(least) or 1.0)
        else:
            least, most = least + part * _measure(least), most - part * _measure(most)
        return least * _SCALE, most * _SCALE

    def solve(self, *, rounded: bool = True) -> tuple[float, Floats] | None:
        """The cost, rounded up, and the columns, or the prices of rows; None where there is no solution."""
        if not self._run():
            return None
        solution = self._solver.getSolution()
        numbers = np.array(solution.row_dual if self._priced else solution.col_value) / _SCALE
        cost = self._solver.getObjectiveValue() / _SCALE**2
        return math.ceil(cost / _GRID) * _GRID, np.rint(numbers / _GRID) * _GRID if rounded else numbers

    def _run(self) -> bool:
        """Whether there is a solution, which the solver then has."""
        self._solver.run()
        if self._solver.getModelStatus() == self._unfinished:  # it cannot get on from where it started
            self._solver.clearSolver()
            self._solver.run()
        return bool(self._solver.getModelStatus() == self._optimal)


def _measure(side: float) -> float:
    return abs(side) or 1.0 if math.isfinite(side) else 0.0


class _Parts:
    """Parts of `_PERTURBATION`, one for every number of a column or row, in no order."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._drawn: list[float] = []

    def __getitem__(self, number: int) -> float:
        while number >= len(self._drawn):
            self._drawn.append(self._random.random() * _PERTURBATION)
        return self._drawn[number]


def make_solver() -> Any:
    """An empty program of HiGHS that prints nothing and takes one thread."""
    solver = _define_solver()()
    solver.silent()
    solver.setOptionValue("threads", 1)
    return solver


@cache
def _define_solver() -> Any:
    import highspy

    class SilentHighs(highspy.Highs):
        """From version 1.16 on, the first call that the constructor makes prints who made HiGHS."""

        def enableCallbacks(self) -> Any:  # it has this name there
            self.silent()
            return super().enableCallbacks()  # type: ignore[no-untyped-call]

    return SilentHighs
