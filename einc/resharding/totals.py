"""What a resharding takes, tensor by tensor and in all: the document of `einc reshard`, and its text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from einc.exchange.bounds import bound
from einc.exchange.language.program import Holding, Program, Requirement
from einc.physical.atoms import Grid
from einc.predict.ranges import find_moving_range, name_rates
from einc.report.tables import align_columns, describe_trust
from einc.resharding.layouts import Relocation, Resharding
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import ITEMSIZE, Block, Bundle, Exchange, TransferTask
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory


def describe_resharding(resharding: Resharding, plan: Bundle) -> Document:
    """The bytes, the time, the bound and their ratio, of every tensor and in all; null where nothing moves.

    The time of a tensor is that of its exchange alone. `predicted_ms` is that of the whole plan, and its bound holds
    for all ways to bring all tensors where they must be.
    """
    moved = [0] * len(plan.tensors)
    for task in plan.tasks:
        if isinstance(task, TransferTask):
            moved[plan.buffers[task.write.buffer].tensor] += region_bytes(plan, task.write)
    rows = [
        _describe_relocation(relocation, moved[n], plan.outputs[n].exchange)
        for n, relocation in enumerate(resharding.relocations)
    ]
    certificate = bound(merge_demands(resharding.relocations, len(plan.devices)), resharding.machine)
    return {
        "model": plan.model,
        "machine": plan.machine,
        "devices": list(plan.devices),
        "schedule": plan.schedule,
        "moved_bytes": sum(moved),
        "predicted_ms": plan.predicted_ms,
        "predicted_range_ms": find_moving_range(plan.predicted_ms, resharding.machine),
        "rates": name_rates(resharding.machine),
        "bound_ms": certificate.bound_ms,
        "bound_by": certificate.bound_by,
        "ratio": _divide(plan.predicted_ms, certificate.bound_ms),
        "memory_bytes": max(plan.memory),
        "tensors": rows,
        "notes": list(resharding.notes),
    }


def _describe_relocation(relocation: Relocation, moved: int, exchange: Exchange | None) -> Document:
    taken, least = (None, None) if exchange is None else (exchange.completion_ms, exchange.bound_ms)
    return {
        "name": relocation.tensor.name,
        "dtype": relocation.tensor.dtype,
        "shape": list(relocation.tensor.shape),
        "moved_bytes": moved,
        "predicted_ms": taken,
        "naive_ms": None if exchange is None else exchange.naive_ms,
        "bound_ms": least,
        "bound_by": None if exchange is None else exchange.bound_by,
        "ratio": _divide(taken, least),
    }


def _divide(taken: float | None, least: float | None) -> float | None:
    return taken / least if taken is not None and least else None


def merge_demands(relocations: Sequence[Relocation], sites: int) -> Program:
    """What all tensors together ask for, as a program without a body.

    Elements that lie at the same sites and have to come to the same sites are one atom. That changes no bound: bounds
    count bytes, and hold for bodies that cut atoms.
    """
    sizes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for relocation in relocations:
        for ends, size in _list_demands(relocation):
            sizes[ends] = sizes.get(ends, 0) + size
    atoms = [(f"X{n}", ends, size) for n, (ends, size) in enumerate(sorted(sizes.items()), start=1)]
    holdings = tuple(Holding((name,), holders, size) for name, (holders, _), size in atoms)
    requirements = tuple(Requirement((name,), targets) for name, (_, targets), _ in atoms)
    return Program(tuple(range(sites)), (), holdings, requirements, ())


def _list_demands(relocation: Relocation) -> list[tuple[tuple[tuple[int, ...], tuple[int, ...]], int]]:
    """The holders and targets of every cell that has to move, and its bytes."""
    full_block = Block.whole(relocation.tensor.shape)
    blocks = {
        block for layout in (relocation.before, relocation.after) for site_blocks in layout for block in site_blocks
    }
    cuts = [sorted({lo, up, *(end for b in blocks for end in (b.lower[d], b.upper[d]))})
            for d, (lo, up) in enumerate(zip(full_block.lower, full_block.upper, strict=True))]  # fmt: skip
    grid = Grid(tuple(map(tuple, cuts)))
    held, required = _find_sites(grid, relocation.before), _find_sites(grid, relocation.after)
    volumes, width = grid.volumes(), ITEMSIZE[relocation.tensor.dtype]
    demands = []
    for cell, sites in required.items():
        targets = tuple(site for site in sites if site not in held[cell])
        if targets:
            demands.append(((tuple(held[cell]), targets), volumes[cell] * width))
    return demands


def _find_sites(grid: Grid, layout: Sequence[Sequence[Block]]) -> Mapping[int, list[int]]:
    """The sites of every cell, ascending."""
    sites_of_cell: dict[int, list[int]] = {}
    for site, blocks in enumerate(layout):
        for cell in sorted({cell for block in blocks for cell in grid.cells(block)}):
            sites_of_cell.setdefault(cell, []).append(site)
    return sites_of_cell


MAX_TENSOR_LINES = 40
"""Rows of the table, those with most bytes first; the document has all."""


def format_resharding(document: Document) -> str:
    """Tensors of equal layers are one row, with the figures of one of them."""
    groups = _group_alike([row for row in document["tensors"] if row["moved_bytes"]])
    groups.sort(key=lambda group: -len(group) * int(group[0]["moved_bytes"]))
    lines = []
    if groups:
        table = [["", "moves", "predicted", "naive", "bound", "ratio"]]
        table += [_format_row(group) for group in groups[:MAX_TENSOR_LINES]]
        lines = align_columns(table, right=range(1, 6))
        if len(groups) > MAX_TENSOR_LINES:
            lines.append(f"and {len(groups) - MAX_TENSOR_LINES} more; --json has all")
        lines.append("")
    kept = sum(not row["moved_bytes"] for row in document["tensors"])
    if kept:
        lines.append(f"{format_count(kept, 'tensor')} of {len(document['tensors'])} move nothing between sites")
    lines.append(_summarize(document))
    if document["plan"] is not None:
        lines.append(
            f"{document['plan']}: {format_memory(document['memory_bytes'])} on the fullest site, for both plans"
        )
    return "\n".join(lines)


def _summarize(document: Document) -> str:
    sites = format_count(len(document["devices"]), "site")
    if not document["moved_bytes"]:
        return f"nothing moves between the {sites} of {document['machine']}"
    ratio = "" if document["ratio"] is None else f", {document['ratio']:.2f} times that"
    return (
        f"{format_memory(document['moved_bytes'])} move between the {sites} of {document['machine']}\n"
        f"no way to move it takes less than {document['bound_ms']:.4g} ms: {document['bound_by']}\n"
        f"this one is predicted to take {document['predicted_ms']:.4g} ms{describe_trust(document)}{ratio}"
    )


def _format_row(group: Sequence[Document]) -> list[str]:
    first = group[0]
    name = first["name"] if len(group) == 1 else f"{first['name']} (x{len(group)})"
    times = [
        f"{first[key]:.4g} ms" if first[key] is not None else "-" for key in ("predicted_ms", "naive_ms", "bound_ms")
    ]
    ratio = "-" if first["ratio"] is None else f"{first['ratio']:.2f}"
    return [name, format_memory(first["moved_bytes"]), *times, ratio]


def _group_alike(rows: Sequence[Document]) -> list[list[Document]]:
    """Rows that differ in the numbers in their names alone, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Document]] = {}
    for row in rows:
        key = (re.sub(r"\d+", "#", row["name"]), *(row[name] for name in ("moved_bytes", "predicted_ms", "bound_ms")))
        groups.setdefault(key, []).append(row)
    return list(groups.values())
