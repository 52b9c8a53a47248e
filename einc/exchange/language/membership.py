"""The membership of partitions that a program declares by size (paper, Section 5.2).

Memberships are tried in lexicographic order, partition by partition as declared. In the *relaxed* program every
partition that is still open has all sites that are still free. The closure only grows with the actions, so what the
relaxed program does not reach, no completion of the choice reaches: then the choice is dropped early.
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
"""The search gives up after this many fired actions and choices in all trials together."""


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """The partitions without members, and what any membership has to reach.

    `sizes` are the open partitions in their order, `free` the sites that they may take. `fixed` copies must be in the
    closure under every membership; `needs` are the aggregates that must be at every member of a partition. `moving`
    says that actions mention open partitions, so that the closure depends on the choice.
    """

    sizes: Mapping[str, int]
    free: tuple[int, ...]
    fixed: Sequence[Copy]
    needs: Mapping[str, Sequence[Aggregate]]
    moving: bool


def choose_membership(
    open_partitions: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
) -> Membership:
    """The first membership under which `ground` yields a valid program; the first of all where none does.

    Raises ProgramError where the search takes too long.
    """
    membership = next(_MembershipSearch(open_partitions, ground, machine).list_valid({}, None), None)
    return (
        membership
        if membership is not None
        else next(_enumerate_memberships(list(open_partitions.sizes.items()), open_partitions.free))
    )


class _MembershipSearch:
    def __init__(
        self, open_partitions: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
    ) -> None:
        self.open_partitions, self.ground, self.machine = open_partitions, ground, machine
        self.work = MAX_WORK

    def list_valid(self, chosen: Membership, reached: frozenset[Copy] | None) -> Iterator[Membership]:
        """The valid completions of a choice in lexicographic order; `reached` is the closure relaxed so far."""
        open_partitions = self.open_partitions
        unchosen = [name for name in open_partitions.sizes if name not in chosen]
        if not unchosen:
            program = self.ground(chosen)
            self._spend(len(program.actions))
            if check(program, self.machine).valid:
                yield chosen
            return
        self._spend(1)
        taken = {site for members in chosen.values() for site in members}
        left = tuple(site for site in open_partitions.free if site not in taken)
        if reached is None or open_partitions.moving:
            relaxed = self.ground({**chosen, **dict.fromkeys(unchosen, left)})
            self._spend(len(relaxed.actions))
            reached = compute_closure(relaxed)
        if not all(copy in reached for copy in (*open_partitions.fixed, *self._list_needed(chosen))):
            return
        able = {
            name: [s for s in left if all((x, s) in reached for x in open_partitions.needs[name])] for name in unchosen
        }
        if any(len(able[name]) < open_partitions.sizes[name] for name in unchosen):
            return
        name = unchosen[0]
        for members in itertools.combinations(able[name], open_partitions.sizes[name]):
            yield from self.list_valid({**chosen, name: members}, reached)

    def _list_needed(self, chosen: Membership) -> Iterator[Copy]:
        for name, members in chosen.items():
            yield from itertools.product(self.open_partitions.needs[name], members)

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
    (name, size), *remaining = sizes
    for members in itertools.combinations(free, size):
        for membership in _enumerate_memberships(remaining, [site for site in free if site not in members]):
            yield {name: members, **membership}
