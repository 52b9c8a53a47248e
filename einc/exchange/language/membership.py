"""The membership of partitions that a program declares by size (paper, Section 5.2).

Memberships are tried in lexicographic order, partition by partition as declared. A choice is cut off early when even
the *relaxed* program cannot work, in which every partition still open has all sites that are still free: the closure
only grows with the actions, so what that program does not reach no completion of the choice reaches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.closure import Copy, compute_closure
from einc.exchange.language.program import Aggregate, Program
from einc.machines.model import Machine

Membership = dict[str, tuple[int, ...]]

MAX_WORK = 150_000
"""Actions fired, and choices made, in all trials together before the search gives up."""


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """What is open, and what any answer has to reach.

    `sizes` are the open partitions in their order, `free` the sites that they may take. `fixed` copies must be in the
    closure whatever the membership; `needs` are the aggregates that must be at every member of a partition. `moving`
    says that actions mention open partitions, so that the closure depends on the choice.
    """

    sizes: Mapping[str, int]
    free: tuple[int, ...]
    fixed: Sequence[Copy]
    needs: Mapping[str, Sequence[Aggregate]]
    moving: bool


def choose_membership(
    question: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
) -> Membership:
    """The first membership under which `ground` yields a valid program; the first of all where none does.

    Raises ProgramError where the search takes too long.
    """
    found = next(_MembershipSearch(question, ground, machine).valid({}, None), None)
    return found if found is not None else next(_enumerate_memberships(list(question.sizes.items()), question.free))


class _MembershipSearch:
    def __init__(
        self, question: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
    ) -> None:
        self.question, self.ground, self.machine = question, ground, machine
        self.work = MAX_WORK

    def valid(self, chosen: Membership, reached: frozenset[Copy] | None) -> Iterator[Membership]:
        """The valid completions of a choice in lexicographic order; `reached` is the closure relaxed so far."""
        question = self.question
        rest = [name for name in question.sizes if name not in chosen]
        if not rest:
            program = self.ground(chosen)
            self._spend(len(program.actions))
            if check(program, self.machine).valid:
                yield chosen
            return
        self._spend(1)
        taken = {site for members in chosen.values() for site in members}
        left = tuple(site for site in question.free if site not in taken)
        if reached is None or question.moving:
            relaxed = self.ground({**chosen, **dict.fromkeys(rest, left)})
            self._spend(len(relaxed.actions))
            reached = compute_closure(relaxed)
        if not all(copy in reached for copy in (*question.fixed, *self._needed(chosen))):
            return
        able = {name: [s for s in left if all((x, s) in reached for x in question.needs[name])] for name in rest}
        if any(len(able[name]) < question.sizes[name] for name in rest):
            return
        name = rest[0]
        for members in itertools.combinations(able[name], question.sizes[name]):
            yield from self.valid({**chosen, name: members}, reached)

    def _needed(self, chosen: Membership) -> Iterator[Copy]:
        for name, members in chosen.items():
            yield from itertools.product(self.question.needs[name], members)

    def _spend(self, steps: int) -> None:
        self.work -= 1 + steps
        if self.work < 0:
            raise ProgramError(
                "too many memberships of the partitions declared by size have to be tried",
                hint="write memberships out, for example G1 {0, 1, 2, 3}",
            )


def _enumerate_memberships(sizes: list[tuple[str, int]], free: Sequence[int]) -> Iterator[Membership]:
    if not sizes:
        yield {}
        return
    (name, size), *rest = sizes
    for members in itertools.combinations(free, size):
        for others in _enumerate_memberships(rest, [site for site in free if site not in members]):
            yield {name: members, **others}
