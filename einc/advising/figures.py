"""What is kept of a plan: its time, its memory, and what limits it.

Figures are kept in the user's cache folder, in files named by all that decides them, so that the same question, or one
that has plans in common with it, is answered without planning again.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from einc.advising.workloads import Phase
from einc.compiler import Compiled, compile_model
from einc.errors import CapacityError, UsageError
from einc.generation.decoder_plans import make_pins
from einc.generation.plan_cache import hash_request
from einc.graph.graph import Graph, count_resident_bytes
from einc.logical.pins import select_pins
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.plan_reading.timing import Limit, find_limit, read_plan_machine, time_plan
from einc.predict.ranges import name_rates
from einc.search.lower_bound import bound_kernels
from einc.target import select_target
from einc_runtime.plan.repetition import unfold_statements
from einc_runtime.plan.schema import ITEMSIZE, Bundle
from einc_runtime.plan.states import STATE
from einc_runtime.remembered import RememberedFiles, find_user_folder
from einc_runtime.text import format_count, format_memory

MAX_KEPT_FIGURES = 20_000
"""Files of some hundred bytes; if there are more, the older half of them is removed."""

MAX_KEPT_MODELS = 8
"""Graphs of models that stay in memory for other machines and replicas; each has some ten MB."""

_OF_PLANS: dict[str, Any] = dict.fromkeys(
    ("machine", "devices", "memory", "time_limit", "stages", "microbatches", "replicas")
) | {"pins": ()}
"""Options that make other plans of the same graph, as they are where nobody gives them."""

MAX_FIGURES_BYTES = 1_000_000
"""Of a file: the cuts of the weights are the longest part of it."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a plan: `predicted_ms`, the range that it is in (null where nothing was measured of the machine), the bytes of
    the fullest site, `limit`, the part of the critical path that this limit takes, and the name of the busiest link.

    `state_bytes` are those of all states, such as caches, without copies. `weight_cuts` are pins by which another plan
    of the model cuts its weights as this one does. If no plan fits into memory, `problem` says so, and nothing else is
    known.
    """

    predicted_ms: float | None = None
    range_ms: tuple[float, float] | None = None
    rates: str | None = None
    memory_bytes: int | None = None
    limit: Limit | None = None
    limit_part: float | None = None
    link: str | None = None
    state_bytes: int = 0
    weight_cuts: tuple[tuple[str, str], ...] = ()
    problem: str | None = None


class FiguresCache:
    """The figures of plans that were made before, in a folder; `find` plans what is not there."""

    def __init__(self, folder: Path) -> None:
        self._files = RememberedFiles(folder, MAX_KEPT_FIGURES, MAX_FIGURES_BYTES)

    def find(self, text: str, name: str, options: CompileOptions, phase: Callable[[str], None]) -> Figures:
        """The figures of the plan of a model text; `name` stands for its file in messages. Pins that match none of its
        operators are left out.

        With a limit of time, what a search found that ran out of it is not kept. Raises what compiling raises, but for
        a plan that does not fit into memory.
        """
        kept = self.find_kept(text, options)
        if kept is not None:
            return kept
        read = _read_model(text, name, options, phase)
        compiled = read.plan_otherwise(replace(options, pins=select_pins(read.fused, options.pins)), phase)
        try:
            figures = describe_figures(compiled.folded_bundle)
        except CapacityError as error:
            figures = Figures(problem=error.message)
        except UsageError as error:
            if not options.divides:
                raise
            figures = Figures(problem=error.message)  # a batch or a graph that has no such parts
        if compiled.budget.left > 0:
            self._files.write(_name_file(text, options), msgspec.json.encode(figures))
        return figures

    def find_kept(self, text: str, options: CompileOptions) -> Figures | None:
        """The figures of the plan of a model text, if it was made before."""
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self._files.read(_name_file(text, options)) or b"", type=Figures)
        return None

    def find_least(self, work: Phase, name: str, options: CompileOptions, phase: Callable[[str], None]) -> Figures:
        """Figures that no plan of a phase beats: its time, or the problem that it cannot fit into memory. Pins and
        limits of time are not looked at; 0 ms where nothing is known. Raises what compiling raises."""
        options = replace(options, pins=(), time_limit=None)
        file = f"{hash_request(work.text, options)[:40]}-least.json"
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self._files.read(file) or b"", type=Figures)
        text = work.part_text if options.stages and work.part_text else work.text
        read, machine = _read_model(text, name, options, phase), select_target(options).machine
        kept, available = count_resident_bytes(read.source), sum(site.memory_bytes for site in machine.sites)
        if kept > available:
            sites = format_count(len(machine.sites), "site")
            memory = f"{format_memory(kept)}, and the memory of {sites} is {format_memory(available)}"
            figures = Figures(problem=f"weights and caches take {memory}")
        else:
            figures = Figures(predicted_ms=_bound_division(read.fused, machine, options, text == work.part_text))
        self._files.write(file, msgspec.json.encode(figures))
        return figures


def _name_file(text: str, options: CompileOptions) -> str:
    return f"{hash_request(text, options)[:40]}.json"


def _bound_division(graph: Graph, machine: Machine, options: CompileOptions, is_part: bool) -> float:
    """The least milliseconds of a plan, or of stages on equal sites, each of which works at every part of the batch;
    then the graph must be that of a part, whose kernels are other ones."""
    if not options.divides:
        return bound_kernels(graph, machine, len(machine.sites))
    if not is_part or options.stages is None or options.microbatches is None or len(set(machine.sites)) > 1:
        return 0.0
    sites = len(machine.sites) // options.stages
    return bound_kernels(graph, machine, sites, options.microbatches / options.stages)


@functools.lru_cache(maxsize=MAX_KEPT_MODELS)
def _read_graph(text: str, name: str, options: CompileOptions) -> Compiled:
    return compile_model(text, name, options)


def _read_model(text: str, name: str, options: CompileOptions, phase: Callable[[str], None]) -> Compiled:
    """A compilation that has the graph of a model, which is the same for all machines and cuts."""
    phase("reading the model")
    return _read_graph(text, name, replace(options, **_OF_PLANS))


def describe_figures(folded: Bundle) -> Figures:
    """The figures of a plan, as its file says it, on the machine of its sites."""
    bundle = unfold_statements(folded)
    machine = read_plan_machine(bundle)
    timing = time_plan(bundle, machine)
    limit, part = find_limit(timing, machine) if machine.cores is None else (None, None)
    links = () if timing.breakdown is None else timing.breakdown.links
    busiest = max(links, key=lambda link: link.full, default=None)
    return Figures(
        predicted_ms=timing.predicted_ms,
        range_ms=timing.range_ms,
        rates=name_rates(machine),
        memory_bytes=max(bundle.memory),
        limit=limit,
        limit_part=part,
        link=busiest.name if busiest is not None and busiest.carried else None,
        state_bytes=sum(math.prod(t.shape) * ITEMSIZE[t.dtype] for t in bundle.tensors if t.kind == STATE),
        weight_cuts=tuple((pin.pattern, pin.cut) for pin in make_pins(bundle)),
    )


def find_figures_folder() -> Path:
    """The folder of figures in the user's cache folder."""
    return find_user_folder("figures")
