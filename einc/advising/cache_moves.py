"""Moving the caches of a prompt from the sites that read it to those that make tokens."""

from __future__ import annotations

from collections.abc import Sequence

from einc.exchange.language.program import Action, Holding, Program, Requirement
from einc.exchange.simulation.simulator import simulate
from einc.machines.model import Machine


def time_cache_move(machine: Machine, sources: Sequence[int], targets: Sequence[int], size: int) -> float | None:
    """Milliseconds until caches of `size` bytes, of which each source has an equal part, lie in equal parts at the
    targets: every source sends a piece to every target, all at once. None where sites cannot reach each other."""
    pairs = [(source, target) for source in sources for target in targets]
    if not all(pair in machine.routes for pair in pairs):
        return None
    piece = max(1, -(-size // len(pairs)))
    names = {pair: (f"C{pair[0]}x{pair[1]}",) for pair in pairs}
    program = Program(
        gpus=None,
        partitions=(),
        holdings=tuple(Holding(names[pair], (pair[0],), piece) for pair in pairs),
        requirements=tuple(Requirement(names[pair], (pair[1],)) for pair in pairs),
        actions=tuple(sorted(Action(names[pair], pair[0], (pair[1],)) for pair in pairs)),
    )
    return simulate(program, machine).completion_ms
