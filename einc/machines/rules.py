"""Rules of a machine file that stand for many resources: switches, links, shared paths and networks.

Each rule has a `kind`, a `name` and `gbs`:
- `switch`: an egress and an ingress resource per site (`"NAME out 3"`, `"NAME in 3"`) over all pairs, or over the pairs
  among `sites`;
- `links`: for each of the unordered pairs in `between`, one resource per direction (`"NAME 0>1"`);
- `shared`: one resource for all its pairs, both directions together; `pairs` lists unordered pairs, or is `"rest"`: all
  pairs that nothing before it lists;
- `network`: between the `groups` of sites, an egress and an ingress resource per group, or `per` site: over the pairs
  that leave its group, or come into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.machines.model import Pair, Resource
from einc.machines.reader import Reader, read_pairs, show

MAX_PAIRS = 3_000_000
"""Of all resources together: more than a switch over the greatest number of sites has."""


def expand_rules(
    reader: Reader,
    rules: Sequence[object],
    sites: int,
    before: Sequence[Resource],
) -> list[Resource]:
    """The resources that the rules stand for, in order; `before` are those that the file lists one by one."""
    made: list[Resource] = []
    listed = sum(len(resource.pairs) for resource in before)
    for k, rule in enumerate(rules):
        at = f"rules[{k}]"
        if listed > MAX_PAIRS:
            raise reader.error(f"more than {MAX_PAIRS} pairs before this rule", at)
        known = len(made)
        fields = reader.fields(rule, at, ("kind", "name", "gbs"), ("sites", "between", "pairs", "groups", "per"))
        name, gbs = reader.name(fields["name"], f"{at}.name"), reader.rate(fields["gbs"], f"{at}.gbs")
        match fields["kind"]:
            case "switch":
                reader.fields(rule, at, ("kind", "name", "gbs"), ("sites",))
                members = _site_list(reader, fields.get("sites"), f"{at}.sites", sites)
                made += switch_resources(name, dict.fromkeys(members, gbs))
            case "links":
                reader.fields(rule, at, ("kind", "name", "gbs", "between"))
                for a, b in _unordered(reader, fields["between"], f"{at}.between", sites):
                    made += [Resource(f"{name} {x}>{y}", gbs, ((x, y),)) for x, y in ((a, b), (b, a))]
            case "shared":
                reader.fields(rule, at, ("kind", "name", "gbs", "pairs"))
                if fields["pairs"] == "rest":
                    taken = {pair for resource in (*before, *made) for pair in resource.pairs}
                    pairs = tuple((a, b) for a in range(sites) for b in range(sites) if a != b and (a, b) not in taken)
                else:
                    both = _unordered(reader, fields["pairs"], f"{at}.pairs", sites)
                    pairs = tuple(sorted({pair for a, b in both for pair in ((a, b), (b, a))}))
                if pairs:
                    made.append(Resource(name, gbs, pairs))
            case "network":
                reader.fields(rule, at, ("kind", "name", "gbs", "groups"), ("per",))
                groups = _groups(reader, fields["groups"], f"{at}.groups", sites)
                made += _network(name, gbs, groups, _each_site(reader, fields.get("per", "group"), f"{at}.per"))
            case kind:
                raise reader.error(f"expected switch, links, shared or network, found {show(kind)}", f"{at}.kind")
        listed += sum(len(resource.pairs) for resource in made[known:])
    return made


def switch_resources(name: str, gbs: Mapping[int, float]) -> list[Resource]:
    """A switch over the sites that `gbs` gives a rate per direction: an egress each, then an ingress each."""
    if len(gbs) < 2:
        return []
    others = {site: tuple(other for other in gbs if other != site) for site in gbs}
    return [
        *(Resource(f"{name} out {site}", gbs[site], tuple((site, other) for other in others[site])) for site in gbs),
        *(Resource(f"{name} in {site}", gbs[site], tuple((other, site) for other in others[site])) for site in gbs),
    ]


def _network(name: str, gbs: float, groups: Sequence[Sequence[int]], each_site: bool) -> list[Resource]:
    """An egress and an ingress for each group, or for each site, over its pairs with the sites of other groups."""
    made = []
    for number, group in enumerate(groups):
        others = [site for other in groups if other is not group for site in other]
        for end, members in [(site, [site]) for site in group] if each_site else [(number, group)]:
            out = tuple((a, b) for a in members for b in others)
            made += [Resource(f"{name} out {end}", gbs, out), Resource(f"{name} in {end}", gbs, _turned(out))]
    return made


def _turned(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    return tuple((b, a) for a, b in pairs)


def _groups(reader: Reader, value: object, at: str, sites: int) -> list[list[int]]:
    groups = [_site_list(reader, entry, f"{at}[{k}]", sites) for k, entry in enumerate(reader.items(value, at, sites))]
    if len(groups) < 2 or not all(groups):
        raise reader.error("a network joins at least two groups, and each has a site", at)
    if len({site for group in groups for site in group}) < sum(map(len, groups)):
        raise reader.error("a site stands in two groups", at)
    return groups


def _each_site(reader: Reader, value: object, at: str) -> bool:
    if value not in ("group", "site"):
        raise reader.error(f'expected "group" or "site", found {show(value)}', at)
    return value == "site"


def _site_list(reader: Reader, value: object, at: str, sites: int) -> list[int]:
    if value is None:
        return list(range(sites))
    members = [reader.integer(entry, at, 0, sites - 1) for entry in reader.items(value, at, sites)]
    if len(set(members)) != len(members):
        raise reader.error("a site is listed twice", at)
    return sorted(members)


def _unordered(reader: Reader, value: object, at: str, sites: int) -> tuple[Pair, ...]:
    pairs = read_pairs(reader, value, at, sites)
    if len({tuple(sorted(pair)) for pair in pairs}) != len(pairs):
        raise reader.error("a pair is listed in both directions; each rule counts both already", at)
    return pairs
