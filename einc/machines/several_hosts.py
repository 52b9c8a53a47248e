"""Several hosts of one kind, joined by a network: `dgx-h100x4` is four of `dgx-h100`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from einc.errors import MachineError
from einc.machines.model import Pair
from einc.machines.schema import (
    MAX_SITES,
    LinksRule,
    MachineFile,
    NetworkRule,
    RepeatedSite,
    ResourceEntry,
    Rule,
    SharedRule,
    SwitchRule,
)

_SEVERAL = re.compile(r"(.+)x([2-9]|[1-9][0-9]{1,3})")


class HostNetwork(msgspec.Struct, frozen=True):
    """The network cards of a kind of host: `gbs` are GB/s per direction, of the card of each site, or of all cards of a
    host together. Cards of sites are joined by rails with a full spine."""

    name: str
    gbs: float
    per: Literal["group", "site"]


@functools.cache
def load_networks() -> Mapping[str, HostNetwork]:
    """The network cards of the presets of which several hosts have a name."""
    text = (resources.files("einc.machines") / "networks.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, HostNetwork])


def split_hosts(name: str) -> tuple[str, int] | None:
    """The preset and the number of hosts of `dgx-h100x4`; None for another name."""
    match = _SEVERAL.fullmatch(name)
    return (match[1], int(match[2])) if match is not None and match[1] in load_networks() else None


def join_equal_hosts(host: MachineFile, count: int, name: str) -> MachineFile:
    """A machine file of `count` copies of a preset, whose network is known. Raises MachineError for too many sites."""
    assert isinstance(host.sites, RepeatedSite)
    assert isinstance(host.sites.count, int)
    size, network = host.sites.count, load_networks()[host.name]
    if size * count > MAX_SITES:
        raise MachineError(f"{name} has {size * count} sites; at most {MAX_SITES} are planned for")
    groups = [list(range(first, first + size)) for first in range(0, size * count, size)]
    rules = [_move_rule(rule, number, members) for rule in host.rules for number, members in enumerate(groups)]
    spine = network.gbs * count if network.per == "site" else UNSET
    between = NetworkRule(network.name, network.gbs, groups, network.per, spine)
    return msgspec.structs.replace(
        host,
        name=name,
        sites=msgspec.structs.replace(host.sites, count=size * count),
        resources=[
            ResourceEntry(f"{number}: {entry.name}", entry.gbs, _move(entry.pairs, members), entry.peak_gbs)
            for number, members in enumerate(groups)
            for entry in host.resources
        ],
        rules=[*rules, between],
    )


def _move(pairs: Sequence[Pair], members: Sequence[int]) -> list[Pair]:
    return [(members[a], members[b]) for a, b in pairs]


def _move_rule(rule: Rule, number: int, members: Sequence[int]) -> Rule:
    """The rule of a host as that of the host of this number, which has these sites."""
    match rule:
        case SwitchRule():
            inside = range(len(members)) if isinstance(rule.sites, UnsetType) else rule.sites
            sites = [members[site] for site in inside]
            return msgspec.structs.replace(rule, name=f"{rule.name} {number}", sites=sites)
        case LinksRule():  # whose resources have the sites in their names
            return msgspec.structs.replace(rule, between=_move(rule.between, members))
        case SharedRule() if rule.pairs != "rest":
            return msgspec.structs.replace(rule, name=f"{rule.name} {number}", pairs=_move(rule.pairs, members))
    raise AssertionError(f"{rule.name}: a rule for the pairs of one host alone")
