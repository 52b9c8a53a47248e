"""The resources that the rules of a machine file stand for: switches, links, shared paths and networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import UnsetType

from einc.errors import MachineError
from einc.machines.model import Pair, Resource
from einc.machines.schema import LinksRule, NetworkRule, Rule, SharedRule, SwitchRule

MAX_PAIRS = 3_000_000
"""Pairs of all resources together; a switch over the greatest number of sites has fewer."""


def expand_rules(rules: Sequence[Rule], sites: int, before: Sequence[Resource]) -> list[Resource]:
    """The resources that the rules stand for, in order; `before` are those that the file lists one by one."""
    resources: list[Resource] = []
    listed = sum(len(resource.pairs) for resource in before)
    names = {resource.name for resource in before}
    complete = False  # whether a rule has listed all pairs that were left
    for k, rule in enumerate(rules):
        at = f"rules[{k}]"
        if listed > MAX_PAIRS:
            raise MachineError(f"{at}: more than {MAX_PAIRS} pairs before this rule")
        if isinstance(rule, SharedRule) and rule.pairs == "rest":
            added = [] if complete else _build_rest(rule, sites, [*before, *resources])
            complete = True
        else:
            added = _expand_rule(rule, at, sites)
        if not isinstance(rule, NetworkRule):
            added = [add_peak(resource, rule.peak_gbs, at) for resource in added]
        twice = next((resource.name for resource in added if resource.name in names), None)
        if twice is not None:
            hint = "rules of one kind have names of their own"
            raise MachineError(f"{at}.name: with {rule.name!r}, two resources have the name {twice!r}", hint=hint)
        names.update(resource.name for resource in added)
        resources += added
        listed += sum(len(resource.pairs) for resource in added)
    return resources


def add_peak(resource: Resource, peak_gbs: float | UnsetType, at: str) -> Resource:
    """The resource with the peak that a file states, if any. Raises MachineError where that is less than its rate."""
    if isinstance(peak_gbs, UnsetType) or peak_gbs == resource.gbs:
        return resource
    if peak_gbs < resource.gbs:
        raise MachineError(f"{at}.peak_gbs: expected at least gbs, {resource.gbs:g}, found {peak_gbs:g}")
    return replace(resource, peak_gbs=peak_gbs)


def _build_rest(rule: SharedRule, sites: int, before: Sequence[Resource]) -> list[Resource]:
    """One resource over all pairs that no resource before it lists."""
    listed = {pair for resource in before for pair in resource.pairs}
    pairs = tuple((a, b) for a in range(sites) for b in range(sites) if a != b and (a, b) not in listed)
    return [Resource(rule.name, rule.gbs, pairs)] if pairs else []


def _expand_rule(rule: Rule, at: str, sites: int) -> list[Resource]:
    """The resources of a rule other than `rest`, which needs those before it."""
    match rule:
        case SwitchRule():
            members = (
                range(sites) if isinstance(rule.sites, UnsetType) else _check_sites(rule.sites, f"{at}.sites", sites)
            )
            return build_switch(rule.name, dict.fromkeys(members, rule.gbs))
        case LinksRule():
            return [
                Resource(f"{rule.name} {x}>{y}", rule.gbs, ((x, y),))
                for a, b in _check_unordered(rule.between, f"{at}.between", sites)
                for x, y in ((a, b), (b, a))
            ]
        case SharedRule():
            assert rule.pairs != "rest"
            both = _check_unordered(rule.pairs, f"{at}.pairs", sites)
            pairs = tuple(sorted({pair for a, b in both for pair in ((a, b), (b, a))}))
            return [Resource(rule.name, rule.gbs, pairs)]
        case NetworkRule():
            if isinstance(rule.spine_gbs, UnsetType):
                groups = _check_groups(rule.groups, f"{at}.groups", sites)
                return _build_network(rule.name, rule.gbs, groups, rule.per == "site")
            _check_groups(rule.groups, f"{at}.groups", sites)  # rails go by the order of the file
            if len({len(group) for group in rule.groups}) > 1 or rule.per != "site":
                raise MachineError(f'{at}: with spine_gbs, groups must be of one size, and "per" must be "site"')
            return _build_rails(rule.name, rule.gbs, rule.spine_gbs, rule.groups)


def build_switch(name: str, gbs: Mapping[int, float]) -> list[Resource]:
    """A switch over the sites that `gbs` gives a rate per direction: an egress each, then an ingress each."""
    if len(gbs) < 2:
        return []
    peers = {site: tuple(peer for peer in gbs if peer != site) for site in gbs}
    return [
        *(Resource(f"{name} out {site}", gbs[site], tuple((site, peer) for peer in peers[site])) for site in gbs),
        *(Resource(f"{name} in {site}", gbs[site], tuple((peer, site) for peer in peers[site])) for site in gbs),
    ]


def _build_network(name: str, gbs: float, groups: Sequence[Sequence[int]], each_site: bool) -> list[Resource]:
    """An egress and an ingress for each group, or for each site, over its pairs with the sites of other groups."""
    resources = []
    for number, group in enumerate(groups):
        peers = [site for peer_group in groups if peer_group is not group for site in peer_group]
        for end, members in [(site, [site]) for site in group] if each_site else [(number, group)]:
            out = tuple((a, b) for a in members for b in peers)
            into = tuple((b, a) for a, b in out)
            resources += [Resource(f"{name} out {end}", gbs, out), Resource(f"{name} in {end}", gbs, into)]
    return resources


def _build_rails(name: str, gbs: float, spine_gbs: float, groups: Sequence[Sequence[int]]) -> list[Resource]:
    """A network per site whose k-th sites share a leaf switch, and what the leaf switches have to their spine.

    A spine that can carry all that the sites of a rail can send is never full, and adds no resources. Without a spine
    (zero), transfers stay within their rail.
    """
    rail = {site: position for group in groups for position, site in enumerate(group)}
    resources = _build_network(name, gbs, groups, True)
    if not spine_gbs:
        return [
            Resource(resource.name, resource.gbs, tuple((a, b) for a, b in resource.pairs if rail[a] == rail[b]))
            for resource in resources
        ]
    if spine_gbs >= gbs * len(groups):
        return resources
    crossing = sorted({(a, b) for resource in resources for a, b in resource.pairs if rail[a] != rail[b]})
    return [
        *resources,
        *(
            Resource(f"{name} spine {way} {rail_number}", spine_gbs, pairs)
            for way, end in (("out", 0), ("in", 1))
            for rail_number in sorted(set(rail.values()))
            if (pairs := tuple(pair for pair in crossing if rail[pair[end]] == rail_number))
        ),
    ]


def check_pairs(pairs: Sequence[Pair], at: str, sites: int) -> tuple[Pair, ...]:
    """The pairs, after a check that they are distinct, at least one, and each joins two of the `sites` sites."""
    if not pairs:
        raise MachineError(f"{at}: expected at least one pair of sites")
    if len(pairs) > sites * sites:
        raise MachineError(f"{at}: expected at most {sites * sites} pairs, found {len(pairs)}")
    for k, (a, b) in enumerate(pairs):  # up to a million
        if a >= sites or b >= sites:
            _check_site(max(a, b), f"{at}[{k}]", sites)
        if a == b:
            raise MachineError(f"{at}[{k}]: a pair of site {a} with itself")
    if len(set(pairs)) != len(pairs):
        twice = Counter(pairs).most_common(1)[0][0]
        raise MachineError(f"{at}: the pair {list(twice)} is listed twice")
    return tuple(pairs)


def _check_unordered(pairs: Sequence[Pair], at: str, sites: int) -> tuple[Pair, ...]:
    checked = check_pairs(pairs, at, sites)
    if len({tuple(sorted(pair)) for pair in checked}) != len(checked):
        raise MachineError(f"{at}: a pair is listed in both directions; each rule counts both already")
    return checked


def _check_site(site: int, at: str, sites: int) -> None:
    if site >= sites:
        raise MachineError(f"{at}: expected a site from 0 to {sites - 1}, found {site}")


def _check_sites(members: Sequence[int], at: str, sites: int) -> list[int]:
    """The sites in ascending order."""
    for k, site in enumerate(members):
        _check_site(site, f"{at}[{k}]", sites)
    if len(set(members)) != len(members):
        raise MachineError(f"{at}: a site is listed twice")
    return sorted(members)


def _check_groups(groups: Sequence[Sequence[int]], at: str, sites: int) -> list[list[int]]:
    checked = [_check_sites(group, f"{at}[{k}]", sites) for k, group in enumerate(groups)]
    if len(checked) < 2 or not all(checked):
        raise MachineError(f"{at}: a network joins at least two groups, and each has a site")
    if len({site for group in checked for site in group}) < sum(map(len, checked)):
        raise MachineError(f"{at}: a site is listed in two groups")
    return checked
