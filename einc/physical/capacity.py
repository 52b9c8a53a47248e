"""Whether the memory plan fits the machine, and what to say where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from einc.errors import CapacityError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.memory import MemoryPlan
from einc.physical.program import Buffer, BufferRole
from einc_runtime.text import sized


def check_capacity(plan: LogicalPlan, machine: Machine, buffers: Sequence[Buffer], memory: MemoryPlan) -> None:
    """Raises CapacityError for the site that lacks most, naming the operator at which its memory peaks."""
    lacking = [needed - machine.sites[site].memory_bytes for site, needed in enumerate(memory.sizes)]
    site = max(range(plan.sites), key=lambda s: (lacking[s], -s))
    if lacking[site] <= 0:
        return
    needed, kept, available = memory.sizes[site], memory.kept[site], machine.sites[site].memory_bytes
    name = memory.peaks[site] or _heaviest_reader(plan, buffers, site)
    span = next((node.span for node in plan.graph.nodes if node.name == name), None)
    raise CapacityError(
        f"{name}: site {site} of {machine.name} would need {sized(needed)} of memory ({sized(kept)} for inputs, "
        f"weights and results, {sized(needed - kept)} for values in between) and has {sized(available)}: "
        f"{sized(lacking[site])} too little",
        where=span,
        hint="more devices (--devices), a machine with more memory, a smaller dtype or smaller dims would help",
    )


def _heaviest_reader(plan: LogicalPlan, buffers: Sequence[Buffer], site: int) -> str:
    """The first operator that reads the largest tensor kept at a site (the tensor itself, where none does)."""
    sizes: Counter[str] = Counter()
    for buffer in buffers:
        if buffer.site == site and buffer.role is not BufferRole.SCRATCH:
            sizes[buffer.tensor] += buffer.size_bytes
    tensor = max(sorted(sizes), key=lambda name: sizes[name])
    return next((node.name for node in plan.graph.nodes if tensor in (*node.inputs, *node.outputs)), tensor)
