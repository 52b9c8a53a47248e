"""The machine file: JSON text to Machine and back. Machine files are untrusted.

Beside the plain form (a list of sites, a list of resources with their pairs) a file may write `sites` as one site
with a `count`, and give `rules` that stand for many resources; `rules.py` expands those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from einc.core.dtypes import DType
from einc.errors import MachineError
from einc.machines.model import Machine, Resource, Site
from einc.machines.reader import Reader, read_pairs
from einc.machines.rules import expand_rules
from einc_runtime.strict_json import parse_json

MAX_TEXT = 32 * 2**20
MAX_SITES = 1024
MAX_RESOURCES = 100_000


def parse_machine(text: str, where: str = "machine", sites: int | None = None, *, connected: bool = True) -> Machine:
    """The machine that a JSON text describes; `where` names the text in errors.

    `sites` is the count for a text that leaves it open. Not `connected`: a part of a machine, whose sites need not
    reach each other. Raises MachineError for everything that is not a machine.
    """
    if len(text) > MAX_TEXT:
        raise MachineError(f"the machine file is larger than {MAX_TEXT} characters", where=where)
    reader = Reader(where)
    fields = reader.fields(
        _parse_json(text, where), "the machine", ("name", "sites"), ("resources", "rules", "latency_us")
    )
    name = reader.name(fields["name"], "name")
    site_list = _sites(reader, fields["sites"], sites)
    count = len(site_list)
    resources = []
    for k, entry in enumerate(reader.items(fields.get("resources", []), "resources", MAX_RESOURCES)):
        at = f"resources[{k}]"
        part = reader.fields(entry, at, ("name", "gbs", "pairs"))
        pairs = read_pairs(reader, part["pairs"], f"{at}.pairs", count)
        resources.append(
            Resource(reader.name(part["name"], f"{at}.name"), reader.rate(part["gbs"], f"{at}.gbs"), pairs)
        )
    resources += expand_rules(reader, reader.items(fields.get("rules", []), "rules", 1000), count, resources)
    names: set[str] = set()
    for resource in resources:
        if resource.name in names:
            raise reader.error(f"two resources have the name {resource.name!r}", "resources")
        names.add(resource.name)
    latency = reader.fields(fields.get("latency_us", {}), "latency_us", (), ("transfer", "kernel"))
    transfer, kernel = (
        reader.number(latency.get(key, 0.0), f"latency_us.{key}", 0.0, 1e9) for key in ("transfer", "kernel")
    )
    machine = Machine(name, site_list, tuple(resources), transfer, kernel)
    if connected:
        require_connected(machine, where)
    return machine


def require_connected(machine: Machine, where: str, hint: str | None = None) -> None:
    """Raise MachineError unless every pair that can talk does so both ways, and data gets from any site to any other.

    The rates of the two directions may differ. Relays count: a line of three sites is connected. `hint` replaces the
    advice for machine files.
    """
    pairs = {pair for resource in machine.resources for pair in resource.pairs}
    one_way = min(((a, b) for a, b in pairs if (b, a) not in pairs), default=None)
    if one_way is not None:
        a, b = one_way
        raise MachineError(
            f"resources: site {a} can send to site {b}, but {b} not to {a}",
            where=where,
            hint=f"list the pair [{b}, {a}] in a resource too; its rate may be another",
        )
    neighbours: dict[int, list[int]] = {}
    for a, b in pairs:
        neighbours.setdefault(a, []).append(b)
    reached, open_sites = {0}, [0]
    while open_sites:
        for other in neighbours.get(open_sites.pop(), ()):
            if other not in reached:
                reached.add(other)
                open_sites.append(other)
    if len(reached) < len(machine.sites):
        lost = next(site for site in range(len(machine.sites)) if site not in reached)
        raise MachineError(
            f"no data can get from site 0 to site {lost}, not even over other sites: "
            f"site 0 is joined with {len(reached) - 1} of the {len(machine.sites) - 1} others",
            where=where,
            hint=hint or "resources must list pairs that join all sites",
        )


def machine_json(machine: Machine) -> str:
    """The canonical text of a machine: plain form, one site or resource a line; `parse_machine` reads it back."""
    sites = [
        {"hbm_gbs": site.hbm_gbs, "memory_bytes": site.memory_bytes, "flops": dict(site.flops)}
        for site in machine.sites
    ]
    resources = [
        {"name": resource.name, "gbs": resource.gbs, "pairs": [list(pair) for pair in resource.pairs]}
        for resource in machine.resources
    ]
    latency = {"transfer": machine.transfer_latency_us, "kernel": machine.kernel_latency_us}
    return "\n".join(
        (
            "{",
            f'  "name": {json.dumps(machine.name)},',
            f'  "sites": [{_lines(sites)}],',
            f'  "resources": [{_lines(resources)}],',
            f'  "latency_us": {json.dumps(latency)}',
            "}\n",
        )
    )


def _lines(entries: list[dict[str, Any]]) -> str:
    return "".join(f"{',' if k else ''}\n    {json.dumps(entry)}" for k, entry in enumerate(entries)) + "\n  "


def _sites(reader: Reader, value: object, open_count: int | None) -> tuple[Site, ...]:
    if isinstance(value, Mapping):
        fields = reader.fields(value, "sites", ("hbm_gbs", "memory_bytes"), ("flops", "count"))
        given = fields.get("count", open_count)
        if given is None:
            raise reader.error("the number of sites is not said", "sites.count")
        count = reader.integer(given, "sites.count", 1, MAX_SITES)
        return (_site(reader, {key: fields[key] for key in fields if key != "count"}, "sites"),) * count
    entries = reader.items(value, "sites", MAX_SITES)
    if not entries:
        raise reader.error("a machine needs at least one site", "sites")
    return tuple(_site(reader, entry, f"sites[{k}]") for k, entry in enumerate(entries))


def _site(reader: Reader, value: object, at: str) -> Site:
    fields = reader.fields(value, at, ("hbm_gbs", "memory_bytes"), ("flops",))
    flops = reader.fields(fields.get("flops", {}), f"{at}.flops", (), [dtype.value for dtype in DType])
    peaks = tuple(
        (dtype, reader.number(peak, f"{at}.flops.{dtype}", 1.0, 1e30)) for dtype, peak in sorted(flops.items())
    )
    memory = reader.integer(fields["memory_bytes"], f"{at}.memory_bytes", 1, 2**62)
    return Site(reader.rate(fields["hbm_gbs"], f"{at}.hbm_gbs"), memory, peaks)


def _parse_json(text: str, where: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise MachineError(str(error), where=where) from None
