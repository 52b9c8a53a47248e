"""Plans in which sites send a tile of a product while they compute the next (`einc.logical.tiles`).

The search finds the fastest plan without tiles, in which an exchange waits for whole kernels. Then this pass looks,
product by product, whether the plan is faster with tiles: it builds and simulates the whole. A tile takes a
launch, fills the multiprocessors worse, and may read an operand again, all of which the simulation knows. So tiles are
worth it where a product and what follows it of exchanges are long.

Products of layers that are alike have the same tiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from einc.errors import CapacityError
from einc.logical.optimize import build_choices
from einc.logical.pins import Pin, find_pinned
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import connect
from einc.logical.tiles import cut_into_tiles
from einc.machines.model import MS_PER_US, Machine
from einc.machines.site_counts import LARGE_MACHINE_SITES
from einc.physical.build import build, build_fast
from einc.physical.program import DeviceProgram
from einc.physical.synthesis import SynthesizingScheduler
from einc.plan_report import Contender
from einc.predict.costs import compute_occupied_ms, describe_kernel
from einc.search.result import SelectedPlan
from einc_runtime.plan.schema import Operation
from einc_runtime.plan.work import ProductWork

TILED = "tiles"
"""The name of the contender that is the fastest plan, with tiles."""

TILE_COUNTS = (2, 4, 8)
"""Numbers of tiles that are tried: with more, launches cost what is left to gain."""

MIN_TILES_GAIN = 0.005
"""The part of the plan's time that tiles of a product must save: what is predicted of more tasks errs by more."""

MAX_TILED_PRODUCTS = 4
"""Products that are looked at, those first that promise most, since whole plans are built for each."""


@dataclass(frozen=True, slots=True)
class _AlikeProducts:
    """Equal products that are cut alike, as nodes of the plan, and the most that tiles of all of them may save."""

    nodes: tuple[int, ...]
    saved_ms: float


def add_tiles(
    selected: SelectedPlan, machine: Machine, scheduler: SynthesizingScheduler, pins: Sequence[Pin] = ()
) -> SelectedPlan:
    """The plan with tiles where it is faster with them, and as it is otherwise.

    Operators with pins are cut as these say. Where no tiles are tried, a contender says why.
    """
    program, plan = selected.program, selected.plan
    reason = _find_obstacle(plan, machine, scheduler)
    if program is None or reason is not None:
        contenders = (*plan.contenders, Contender(TILED, reason=reason))
        plan = replace(plan, contenders=contenders)
        return SelectedPlan(plan, program and replace(program, plan=plan), selected.walk)
    best, pinned = program, find_pinned(plan.graph, pins)
    for product in _list_products(program, machine, pinned)[:MAX_TILED_PRODUCTS]:
        if scheduler.budget.left and product.saved_ms >= MIN_TILES_GAIN * best.predicted_ms:
            best = _tile(best, product, machine, scheduler)
    return selected if best is program else _describe(selected, best)


def _find_obstacle(plan: LogicalPlan, machine: Machine, scheduler: SynthesizingScheduler) -> str | None:
    """Why no tiles are tried; None where they are."""
    if machine.cores is not None:
        return "sites that share cores send nothing"
    if plan.used_sites > LARGE_MACHINE_SITES:
        return f"the plan has {plan.used_sites} sites, and tiles are tried on {LARGE_MACHINE_SITES} at most"
    return None if scheduler.budget.left else "the time of the search is over"


def _list_products(program: DeviceProgram, machine: Machine, pinned: Container[str]) -> list[_AlikeProducts]:
    """The products after which something is sent, those first that promise most."""
    operations = {operation.name: operation for operation in program.operations}
    sent_ms = _find_sent_ms(program)
    nodes_by_cut: dict[object, list[int]] = defaultdict(list)
    for n, (node, choice) in enumerate(zip(program.plan.graph.nodes, program.plan.choices, strict=True)):
        nodes_by_cut[node.operator, choice.candidate.intervals, choice.candidate.replicas].append(n)
    products = []
    for nodes in nodes_by_cut.values():
        names = [program.plan.graph.nodes[n].name for n in nodes]
        built = [operations[name] for name in names if name in operations]
        if any(name in pinned for name in names) or not all(_is_product(operation) for operation in built):
            continue
        exchange_ms = max(sent_ms[tensor] for operation in built for tensor in operation.outputs)
        hidden_ms = min(_time_kernel_ms(built[0], machine), exchange_ms - machine.transfer_latency_us * MS_PER_US)
        products.append(_AlikeProducts(tuple(nodes), len(nodes) * (1 - 1 / max(TILE_COUNTS)) * hidden_ms))
    return sorted(products, key=lambda product: -product.saved_ms)


def _find_sent_ms(program: DeviceProgram) -> Mapping[int, float]:
    """For every tensor, what the longest exchange takes that brings it to readers, or home."""
    sent_ms: dict[int, float] = defaultdict(float)
    read = [(operation.inputs, operation.exchange) for operation in program.operations]
    for tensors, exchange in (*read, *(((output.tensor,), output.exchange) for output in program.outputs)):
        for tensor in tensors:
            sent_ms[tensor] = max(sent_ms[tensor], (exchange and exchange.completion_ms) or 0.0)
    return sent_ms


def _is_product(operation: Operation) -> bool:
    of_products = all(isinstance(function.work, ProductWork) for function in operation.functions)
    return of_products and operation.replicas == operation.parts == 1


def _time_kernel_ms(operation: Operation, machine: Machine) -> float:
    """What its slowest function takes."""
    return max(
        compute_occupied_ms(
            describe_kernel(operation, function), machine.sites[function.site], machine.kernel_latency_us
        )
        for function in operation.functions
    )


def _tile(
    program: DeviceProgram, product: _AlikeProducts, machine: Machine, scheduler: SynthesizingScheduler
) -> DeviceProgram:
    """The program with the best tiles of a product, if they save enough, and else the one that was given."""
    plan = program.plan
    naive_ms = build(plan, machine, scheduler.naive, check_memory=False).predicted_ms
    tried = []
    for candidate in _list_candidates(plan, product):
        tiled = _replace(plan, product, candidate)
        tried.append((build(tiled, machine, scheduler.naive, check_memory=False).predicted_ms, tiled))
    if not tried:
        return program
    tiled_ms, tiled = min(tried, key=lambda pair: pair[0])
    if tiled_ms > (1 - MIN_TILES_GAIN) * naive_ms:
        return program
    with suppress(CapacityError):
        faster = build_fast(tiled, machine, scheduler, tiled_ms).forget_times()
        if faster.predicted_ms <= (1 - MIN_TILES_GAIN) * program.predicted_ms:
            return faster
    return program


def _list_candidates(plan: LogicalPlan, product: _AlikeProducts) -> Iterator[Candidate]:
    """The ways to cut a product into tiles. Tiles along an index that is summed would have to be added up."""
    node, chosen = plan.graph.nodes[product.nodes[0]], plan.choices[product.nodes[0]].candidate
    for index in range(len(node.operator.indices)):
        for count in TILE_COUNTS:
            candidate = cut_into_tiles(node.operator, chosen, index, count)
            if candidate is not None and candidate.aggregation == chosen.aggregation:
                yield candidate


def _replace(plan: LogicalPlan, product: _AlikeProducts, candidate: Candidate) -> LogicalPlan:
    chosen = [choice.candidate for choice in plan.choices]
    for n in product.nodes:
        chosen[n] = candidate
    offered = tuple([(candidate,) for candidate in chosen])
    choices = build_choices(plan.graph, connect(plan.graph, offered), [0] * len(chosen))
    return replace(plan, choices=choices)


def _describe(selected: SelectedPlan, program: DeviceProgram) -> SelectedPlan:
    """The faster program beside what the search compared."""
    contenders = [msgspec.structs.replace(contender, chosen=False) for contender in selected.plan.contenders]
    contenders.append(
        Contender(
            TILED, True, program.predicted_ms, max(program.memory), program.plan.total_cost, None, synthesized=True
        )
    )
    plan = replace(program.plan, contenders=tuple(contenders))
    return SelectedPlan(plan, replace(program, plan=plan), selected.walk)
