"""What a preamble demands of the network, whatever the body: who has the atoms of each aggregate, and who needs it.
`outline.py` works it out.

Only copies of subsets of X can become parts of X. So a transfer *for* X carries a subset of X, and transfers for
disjoint aggregates are different transfers. All bounds count bytes, so they hold for programs that split atoms as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc.exchange.language.program import Aggregate


@dataclass(frozen=True, slots=True)
class Demand:
    """Disjoint aggregates that are alike: the same sites have their atoms and the same sites need them. Either all of
    them are in tangles, or none.

    `size` is in bytes, of all together. `holders` are the distinct sets of sites (bit masks) that hold an atom; copies
    of aggregates count for each atom inside. `targets` need the aggregate and do not hold all atoms. `awaited` is the
    number of further targets that are not known yet, which open partitions will be. `complete` are the sites that hold
    all atoms. `largest` is the size of the largest copy.
    """

    aggregates: tuple[Aggregate, ...]
    size: int
    holders: tuple[int, ...]
    targets: int
    awaited: int = 0
    partitions: tuple[str, ...] = ()
    complete: int = 0
    largest: int = 0

    def must_enter(self, sites: int) -> bool:
        """Whether a part has to enter a set of sites: a target is there, and some atom has no holder there."""
        return bool(self.targets & sites) and any(not holder & sites for holder in self.holders)


@dataclass(frozen=True, slots=True)
class Tangle:
    """Required aggregates that share atoms, directly or through each other; all of one size in bytes.

    `wanted` are (aggregate, targets); `copies` the (aggregate, site) of IN that can become parts of them.
    """

    size: int
    wanted: tuple[tuple[Aggregate, int], ...]
    copies: tuple[tuple[Aggregate, int], ...]


@dataclass(frozen=True, slots=True)
class Forming:
    """Aggregates of several atoms in the family that are alike, `size` bytes all together, `largest` the largest copy.

    `targets` need them and do not hold them whole, `whole` are the sites that do; `holders` as in Demand. IN has each
    in `parts` copies at least. `partitions` are the open ones that will need them. `tangled`: they are in tangles.
    """

    size: int
    holders: tuple[int, ...]
    targets: int
    whole: int
    parts: int
    partitions: tuple[str, ...] = ()
    tangled: bool = False
    largest: int = 0


@dataclass(frozen=True, slots=True)
class Demands:
    """A preamble's demands: a family of disjoint aggregates, and apart all those that overlap."""

    family: tuple[Demand, ...]
    tangles: tuple[Tangle, ...]
    forming: tuple[Forming, ...]

    def signature(self) -> object:
        """What bounds see of it, now and when open partitions are chosen: names do not matter."""
        family = tuple(
            (one.size, one.holders, one.targets, one.awaited, one.partitions, one.complete, one.largest)
            for one in self.family
        )
        return family, self.tangles, self.forming
