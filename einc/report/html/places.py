"""The machine of a plan as a page draws it: sites, and what every resource joins."""

from __future__ import annotations

from collections.abc import Set

from einc.machines.model import Machine, Resource
from einc_runtime.strict_json import Document


def describe_places(machine: Machine) -> Document:
    """Sites with their memory and peaks, and resources with their pairs and their shape.

    The shape is `link` (one pair), `out` or `in` (all that leaves or reaches one site), or `path` (anything else, which
    several pairs share). `pairs` are listed, or, where they are all pairs of some sites with some others, given as
    `{"from", "to"}`: ranges of sites, each as its first site and the one after its last.
    """
    return {
        "name": machine.name,
        "cores": machine.cores,
        "measured": machine.measured,
        "transfer_latency_us": machine.transfer_latency_us,
        "kernel_latency_us": machine.kernel_latency_us,
        "sites": [
            {"memory_bytes": site.memory_bytes, "hbm_gbs": site.hbm_gbs, "flops": dict(site.flops)}
            for site in machine.sites
        ],
        "resources": [
            {
                "name": resource.name,
                "gbs": resource.gbs,
                "shape": _find_shape(resource),
                "pairs": _write_pairs(resource),
            }
            for resource in machine.resources
        ],
    }


def _write_pairs(resource: Resource) -> list[list[int]] | dict[str, list[int]]:
    sources, targets = ({pair[end] for pair in resource.pairs} for end in (0, 1))
    every = {(a, b) for a in sources for b in targets if a != b}
    if len(every) == 1 or every != set(resource.pairs):
        return [list(pair) for pair in resource.pairs]
    return {"from": _find_ranges(sources), "to": _find_ranges(targets)}


def _find_ranges(sites: Set[int]) -> list[int]:
    """The first site, and the one after the last, of every run of neighbours."""
    starts = sorted(site for site in sites if site - 1 not in sites)
    ends = sorted(site + 1 for site in sites if site + 1 not in sites)
    return [site for run in zip(starts, ends, strict=True) for site in run]


def _find_shape(resource: Resource) -> str:
    if len(resource.pairs) == 1:
        return "link"
    sources, targets = ({pair[end] for pair in resource.pairs} for end in (0, 1))
    return "out" if len(sources) == 1 else "in" if len(targets) == 1 else "path"
