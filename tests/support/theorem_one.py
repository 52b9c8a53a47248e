"""Theorem 1 of the paper, as its proof goes: insertions and deletions lead from every valid program to every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from einc.exchange.language.checker import check
from einc.exchange.language.closure import State, compute_closure, order_firings
from einc.exchange.language.program import Action, Program
from einc.machines.model import Machine


def guarded(program: Program, machine: Machine | None = None) -> Program | None:
    """The program if it is valid."""
    return program if check(program, machine).valid else None


def insert(program: Program, action: Action) -> Program | None:
    """The program with one action more; None where the action would never be enabled."""
    goal = (action.aggregate, action.source)
    state = State([goal])
    for aggregate, site in compute_closure(program):
        state.add(aggregate, site)
    return replace(program, actions=(*program.actions, action)) if state.is_ready(goal) else None


def delete(program: Program, action: Action, machine: Machine | None = None) -> Program | None:
    """The program, which has no waits, without an action; None where it would not be valid."""
    return guarded(replace(program, actions=tuple(kept for kept in program.actions if kept != action)), machine)


def path_between(start: Program, end: Program) -> Iterator[Program]:
    """All programs on the way from one to another for the same preamble, both valid and without waits.

    First every action that is missing is inserted, in an order in which they fire; then those too many are deleted, the
    latest first.
    """
    now: Program | None = start
    for firing in order_firings(end):
        if firing.action not in start.actions:
            now = insert(now, firing.action)
            assert now is not None
            yield now
    for firing in reversed(order_firings(start)):
        if firing.action not in end.actions:
            now = delete(now, firing.action)
            assert now is not None
            yield now
