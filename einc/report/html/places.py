"""The machine of a plan as a page draws it: sites, and what every resource joins."""

from __future__ import annotations

from typing import Any

from einc.machines.model import Machine, Resource

Document = dict[str, Any]


def describe_places(machine: Machine) -> Document:
    """Sites with their memory and peaks, and resources with their pairs and their shape.

    The shape is `link` (one pair), `out` or `in` (all that leaves or reaches one site), or `path` (anything else, which
    several pairs share).
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
                "pairs": [list(pair) for pair in resource.pairs],
            }
            for resource in machine.resources
        ],
    }


def _find_shape(resource: Resource) -> str:
    if len(resource.pairs) == 1:
        return "link"
    sources, targets = ({pair[end] for pair in resource.pairs} for end in (0, 1))
    return "out" if len(sources) == 1 else "in" if len(targets) == 1 else "path"
