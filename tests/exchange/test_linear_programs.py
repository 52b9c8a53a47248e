"""Linear programs where the solver gives up, as HiGHS 1.16 does for one of chain B on eight sites of dgx-v100."""

from __future__ import annotations

import math

import highspy
import pytest

from einc.exchange.linear import LinearProgram


class Stubborn:
    """A solver that does not know the answer until what it starts from is cleared, or never."""

    def __init__(self, solver: highspy.Highs, ever: bool) -> None:
        self._solver, self._ever, self._is_cleared = solver, ever, False

    def clearSolver(self) -> None:
        self._is_cleared = True
        self._solver.clearSolver()

    def getModelStatus(self) -> highspy.HighsModelStatus:
        if self._is_cleared and self._ever:
            return self._solver.getModelStatus()
        return highspy.HighsModelStatus.kUnknown

    def __getattr__(self, name: str) -> object:
        return getattr(self._solver, name)


def make_program() -> LinearProgram:
    """The least x + 2 y where x + y is 3 at least, and x is 1 at most."""
    program = LinearProgram(priced=False)
    program.add_columns([1.0, 2.0])
    program.add_row(3.0, math.inf, [0, 1], [1.0, 1.0])
    program.limit_column(0, 1.0)
    return program


def test_a_program_is_solved_from_scratch_where_the_solver_gives_up() -> None:
    program = make_program()
    program._solver = Stubborn(program._solver, ever=True)
    solution = program.solve()
    assert solution is not None
    assert solution[0] == pytest.approx(5, abs=1e-3)
    assert solution[1].tolist() == [1, 2]


def test_a_solver_that_never_knows_has_no_solution() -> None:
    program = make_program()
    program._solver = Stubborn(program._solver, ever=False)
    assert program.solve() is None
