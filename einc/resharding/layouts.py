"""Where two plans of one model have the blocks of their weights and states: what resharding starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from einc.errors import MachineError
from einc.machines.load import load_machine, parse_machine
from einc.machines.model import Machine
from einc_runtime.errors import PlanFault
from einc_runtime.plan.boxes import StepBudget, find_uncovered
from einc_runtime.plan.schema import HOST, Block, Bundle, Tensor
from einc_runtime.plan.states import is_weight
from einc_runtime.text import format_count, quote_names

Layout = tuple[tuple[Block, ...], ...]
"""The blocks of a tensor at every site, ascending; no block at a site lies in another one there."""

MAX_CELLS = 1 << 20
"""Cells of the overlay of all blocks of a tensor. Plans of the compiler have some thousands."""

MAX_CONTRADICTIONS = 8
"""As many contradictions between two plans are shown."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """A tensor that both plans have, as a weight, and where its blocks lie before and after."""

    tensor: Tensor
    before: Layout
    after: Layout


@dataclass(frozen=True, slots=True)
class Resharding:
    """What has to change from one plan to another, on a machine of the sites of both, which are numbered from 0.

    `devices` are their numbers in the whole machine. `notes` name the tensors that only one of the plans has.
    """

    model: str
    machine: Machine
    devices: tuple[int, ...]
    relocations: tuple[Relocation, ...]
    notes: tuple[str, ...]


def compare_layouts(first: Bundle, second: Bundle, machine: str | None = None, *, ideal: bool = False) -> Resharding:
    """What has to change from the first plan to the second.

    `machine` names the whole machine, a preset or a file; otherwise it is that of the plan whose sites include those of
    the other. Raises PlanFault where the plans are not of one model, or the first lacks a weight that the second needs;
    MachineError where no machine is known that has the sites of both.
    """
    chosen, devices = _choose_machine(first, second, machine)
    at = {device: site for site, device in enumerate(devices)}
    before, after = _find_layouts(first, at), _find_layouts(second, at)
    kept = {tensor.name: tensor for tensor in first.tensors if tensor.name in before}
    tensors_after = {tensor.name: tensor for tensor in second.tensors if tensor.name in after}
    both = [name for name in tensors_after if name in kept]
    if not both:
        raise PlanFault(
            f"the plans have no weight or state in common: one is of {first.model}, the other of {second.model}",
            hint="both plans must be compiled from one model",
        )
    _require_alike([(kept[name], tensors_after[name]) for name in both])
    _require_weights(second, after, before)
    notes = _note_others(first, before, after, "only the first plan has {}, which the result leaves out")
    notes += _note_others(second, after, before, "only the second plan has {}, which begins with zeros")
    relocations = tuple(_make_relocation(tensors_after[name], before[name], after[name]) for name in both)
    return Resharding(second.model, chosen.ideal() if ideal else chosen, devices, relocations, tuple(notes))


def _make_relocation(tensor: Tensor, before: Layout, after: Layout) -> Relocation:
    """Raises PlanFault where a plan has only a part of the tensor, or the blocks have too many parts in common."""
    full_block, where = Block.whole(tensor.shape), f"tensor '{tensor.name}'"
    blocks = [block for layout in (before, after) for site_blocks in layout for block in site_blocks]
    bounds = [{end for block in blocks for end in (block.lower[d], block.upper[d])} for d in range(full_block.rank)]
    budget = StepBudget(MAX_CELLS)
    budget.spend(math.prod(map(len, bounds)), where)
    for layout, plan in ((before, "first"), (after, "second")):
        missing = find_uncovered(full_block, [block for site_blocks in layout for block in site_blocks], budget, where)
        if missing is not None:
            raise PlanFault(
                f"no site of the {plan} plan has {missing} of '{tensor.name}'",
                hint="only what all sites together have as a whole can be resharded",
            )
    return Relocation(msgspec.structs.replace(tensor, kind="weight"), before, after)


def _find_layouts(plan: Bundle, at: Mapping[int, int]) -> dict[str, Layout]:
    """The layout of every weight and state that the plan has in memory; `at` is the site of each device."""
    layouts: dict[str, list[set[Block]]] = {}
    for buffer in plan.buffers:
        tensor = plan.tensors[buffer.tensor]
        if tensor.kind in ("weight", "state") and buffer.role in ("weight", "state"):
            sites = layouts.setdefault(tensor.name, [set() for _ in at])
            sites[at[plan.devices[buffer.site]]].add(buffer.block)
    budget = StepBudget(MAX_CELLS)
    return {
        name: tuple(_drop_contained(site_blocks, budget, name) for site_blocks in sites)
        for name, sites in layouts.items()
    }


def _drop_contained(blocks: set[Block], budget: StepBudget, name: str) -> tuple[Block, ...]:
    budget.spend(len(blocks) ** 2, f"tensor '{name}'")
    ordered = sorted(blocks)
    return tuple(
        block for block in ordered if not any(container != block and container.contains(block) for container in ordered)
    )


def _require_alike(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raises PlanFault where tensors of one name are not of one type and shape."""
    faults = [
        f"'{a.name}' is {_describe(a)} in the first plan and {_describe(b)} in the second"
        for a, b in pairs
        if (a.dtype, a.shape, a.kind) != (b.dtype, b.shape, b.kind)
    ]
    if faults:
        more = f"; and {len(faults) - MAX_CONTRADICTIONS} more" if len(faults) > MAX_CONTRADICTIONS else ""
        raise PlanFault(
            "the plans are not of one model: " + "; ".join(faults[:MAX_CONTRADICTIONS]) + more,
            hint="compile both plans from one model, with the same dims and dtype",
        )


def _describe(tensor: Tensor) -> str:
    return f"a {tensor.kind} {tensor.dtype}{list(tensor.shape)}"


def _require_weights(second: Bundle, after: Mapping[str, Layout], before: Mapping[str, Layout]) -> None:
    """Raises PlanFault where the second plan has a weight in memory that the first one has not."""
    weights = [tensor.name for tensor in second.tensors if is_weight(tensor) and tensor.name in after]
    missing = [name for name in weights if name not in before]
    if missing:
        raise PlanFault(
            f"the first plan lacks {format_count(len(missing), 'weight')} that the second one needs: "
            f"{quote_names(missing)}",
            hint="both plans must be compiled from one model",
        )


def _note_others(
    plan: Bundle, layouts: Mapping[str, Layout], other_layouts: Mapping[str, Layout], text: str
) -> list[str]:
    names = [tensor.name for tensor in plan.tensors if tensor.name in layouts and tensor.name not in other_layouts]
    return [text.format(quote_names(names))] if names else []


def _choose_machine(first: Bundle, second: Bundle, name: str | None) -> tuple[Machine, tuple[int, ...]]:
    """The machine of the sites of both plans, renumbered from 0, and their numbers in the whole machine."""
    union = tuple(sorted({*first.devices, *second.devices}))
    if name is not None:
        full_machine = load_machine(name, union[-1] + 1 if name == HOST else None)
        if union[-1] >= len(full_machine.sites):
            raise MachineError(
                f"the plans use site {union[-1]}, and machine {full_machine.name} has "
                f"{len(full_machine.sites)}, numbered from 0",
                hint="`einc machine list` shows the machines",
            )
        return full_machine.restrict(union), union
    for plan in (second, first):
        if set(union) == set(plan.devices):
            machine = parse_machine(plan.machine_file, connected=False)
            if len(machine.sites) != len(plan.devices):
                raise PlanFault(
                    f"{len(machine.sites)} sites, where the plan has {len(plan.devices)}", where="machine_file"
                )
            return machine, plan.devices
    raise MachineError(
        f"neither plan has all sites of the other: the first uses {_list(first.devices)} of {first.machine}, "
        f"the second {_list(second.devices)} of {second.machine}",
        hint="name the whole machine: -m MACHINE",
    )


def _list(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices))
