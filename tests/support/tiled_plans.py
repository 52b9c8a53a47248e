"""Plans in which a product is computed in tiles, however small it is: the search makes tiles of long ones alone."""

from __future__ import annotations

from dataclasses import replace

from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import connect
from einc.logical.tiles import cut_into_tiles
from einc.machines.load import load_machine
from einc.physical.build import build
from einc.physical.records import emit
from einc.physical.verify import verify
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle


def tile(plan: LogicalPlan, node: str, index: int, count: int) -> LogicalPlan:
    """The plan with functions of a node cut into tiles along an index."""
    number = plan.graph.positions[node]
    chosen = [choice.candidate for choice in plan.choices]
    tiled = cut_into_tiles(plan.graph.nodes[number].operator, chosen[number], index, count)
    assert tiled is not None
    chosen[number] = tiled
    offered = tuple((candidate,) for candidate in chosen)
    return replace(plan, choices=build_choices(plan.graph, connect(plan.graph, offered), [0] * len(chosen)))


def make_bundle(plan: LogicalPlan) -> Bundle:
    """The plan file's records, as a reader of the file gets them."""
    machine = load_machine("dgx-h100").restrict(range(plan.sites))
    program = build(plan, machine)
    verify(program)
    return decode(encode(emit(program, machine, tuple(range(plan.sites)), "naive")))
