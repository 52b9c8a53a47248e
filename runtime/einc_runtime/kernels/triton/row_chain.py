"""Rows that are combined, computed and normalized by one kernel: an aggregation, a map and a norm.

What one of them makes is rounded as it is stored, before the next one computes with it, so that the results have the
bits that they would have by one kernel each.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.calls.rows import NormCall
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.rows import RowTiles, name_vectors, write_norm
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.kernels.triton.source import LANGUAGE
from einc_runtime.kernels.views import merge_leading_axes
from einc_runtime.plan.scalar_programs import ScalarInput


def build_row_chain(parts: Sequence[Invocation[Array]], kept: Sequence[bool]) -> LaunchSequence | None:
    """One launch of maps, each of whose results the next part reads, and a norm of the last one's result; those that
    are `kept` are written, also to further outputs of their part. None where rows are too long for a program."""
    *maps, last = parts
    calls, norm = [MapCall.parse(part) for part in maps], NormCall.parse(last)
    results = [call.output for call in calls]
    views = [view for call in calls for view in call.views]
    copied = [(f"r{n}", copy) for n, part in enumerate(maps) for copy in part.outputs[1:]]
    copied += [("y", copy) for copy in last.outputs[1:]]
    copies = [copy for _, copy in copied]
    merged = merge_leading_axes([*results, *views, *copies, norm.target])
    vectors = [vector[(None,) * (merged[0].ndim - 1)] for vector in norm.vectors]
    names = [f"r{n}" for n in range(len(calls))] + [f"x{n}" for n in range(len(views))]
    names += [f"{of}_{k}" for k, (of, _) in enumerate(copied)]
    copies_of = {of: [f"{of}_{k}" for k, (part, _) in enumerate(copied) if part == of] for of in ("y", *names)}
    gains = name_vectors(norm)
    ordered = [merged[len(calls) - 1], *merged[: len(calls) - 1], *merged[len(calls) : -1], *vectors, merged[-1]]
    labels = [names[len(calls) - 1], *names[: len(calls) - 1], *names[len(calls) :], *gains, "y"]
    rows = RowTiles(ordered, [f"{label}_ptr" for label in labels])
    if not rows.fits_at_once:
        return None
    lines: list[str] = []
    helpers: dict[str, None] = {}
    producers = {_place(call.output): number for number, call in enumerate(calls)}
    first = 0
    for number, call in enumerate(calls):
        used = {o.position for step in call.steps for o in step.operands if isinstance(o, ScalarInput)}
        for position in sorted(used):
            source = producers.get(_place(call.views[position]), number)
            name = f"v{position}"
            lines.append(f"{name} = s{source}" if source < number else rows.load(f"x{first + position}", "0", name))
        chain = ScalarSource(call.steps, [f"v{position}" for position in range(len(call.views))])
        helpers[chain.source()] = None
        stored = LANGUAGE[call.kinds[-1]]
        lines += [*chain.lines, f"w{number} = ({chain.value}).to({stored})"]
        stores = [f"r{number}", *copies_of[f"r{number}"]] if kept[number] else []
        lines += [rows.store(f"w{number}", name) for name in stores]
        lines.append(f"s{number} = w{number}.to({rows.type})")
        first += len(call.views)
    inside = f"tl.where({rows.inside}, s{len(calls) - 1}, 0)" if rows.inside else f"s{len(calls) - 1}"
    lines += [f"x = {inside}", *write_norm(norm, rows, copies_of["y"])]
    title = f"{'; '.join(call.source for call in calls)}; {last.name} of rows of {rows.extent}, eps {norm.eps}"
    return rows.call("row_chain", title, lines, "".join(helpers))


def _place(view: Array) -> tuple[object, ...]:
    """Where a view lies, and how; extents of 1 may have any stride."""
    strides = tuple(0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return view.__array_interface__["data"][0], view.shape, strides, view.dtype
