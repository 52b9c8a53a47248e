"""The options of a workload, each with the times and rates that follow from its plans.

Options are planned in this process as long as that is quick, and then in several.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children, get_context

from einc.advising.figures import Figures, FiguresCache
from einc.advising.workloads import Phase, Workload
from einc.compiler import Target, select_target
from einc.errors import ModelError
from einc.logical.pins import Pin
from einc.machines.load import count_host_cores, format_machine
from einc.machines.model import Machine
from einc.options import CompileOptions

ALONE_SECONDS = 3.0
"""After this time, more processes plan what is left: starting one takes about a second."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine with its sites, as the options of a compilation name them; `hourly` is the price of all its sites for
    an hour, None where no price is known."""

    options: CompileOptions
    hourly: float | None = None


@dataclass(frozen=True, slots=True)
class AdviceOption:
    """`replicas` of a model on groups of equal numbers of sites of an offer, for `users` at once.

    `figures` are those of the slowest group. If a phase could not be planned, all times are None, and `problem` says
    why. `latency_ms` is the time of a token of every user, or of a run; `first_ms` that of reading one prompt;
    `round_ms` that of all that is done for the users of one replica. `rate` counts what all replicas make in a second,
    `unit_cost` is the price of a million of these. `shared` names links that several replicas use, which each was
    predicted to have alone.
    """

    machine: str
    sites: int
    replicas: int
    users: int
    figures: dict[str, Figures]
    hourly: float | None = None
    latency_ms: float | None = None
    first_ms: float | None = None
    round_ms: float | None = None
    rate: float | None = None
    unit_cost: float | None = None
    memory_bytes: int | None = None
    shared: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Combination:
    """What one option is made of."""

    workload: Workload
    offer: Offer
    target: Target
    replicas: int
    users: int

    @property
    def name(self) -> str:
        return f"{self.target.machine.name}, {describe_sites(len(self.target.devices), self.replicas)}"


def plan_options(
    workload: Workload,
    offers: Sequence[Offer],
    cache: FiguresCache,
    replicate: bool,
    deadline: float | None,
    phase: Callable[[str], None],
) -> list[AdviceOption]:
    """All options, in the order of the offers; `deadline` is a moment of `time.monotonic`.

    Raises MachineError for an offer that does not exist, ModelError for a model that nobody can run.
    """
    combinations = [
        _Combination(workload, offer, target, replicas, users)
        for offer, target in [(offer, select_target(offer.options)) for offer in offers]
        for users in workload.batches
        for replicas in _list_replicas(len(target.devices), users, replicate)
    ]
    options: list[AdviceOption] = []
    begin, count = time.monotonic(), len(combinations)
    for number, combination in enumerate(combinations, 1):
        if time.monotonic() - begin > ALONE_SECONDS and number < count and count_host_cores() > 1:
            break
        name = f"option {number} of {count}: {combination.name}"
        planner = _Planner(cache, deadline, lambda step, name=name: phase(f"{name}: {step}"))  # type: ignore[misc]
        options.append(_plan_option(combination, planner))
    remaining = combinations[len(options) :]
    for option in _plan_in_processes(remaining, cache, deadline):
        options.append(option)
        phase(f"option {min(len(options) + 1, count)} of {count}")
    return options


def _plan_in_processes(
    combinations: Sequence[_Combination], cache: FiguresCache, deadline: float | None
) -> Iterator[AdviceOption]:
    """The options of combinations, in their order, from a process for each core; an exception ends these at once."""
    if not combinations:
        return
    workers = min(count_host_cores(), len(combinations))
    # Processes that are spawned take no thread or lock of this one along.
    with ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        try:
            yield from pool.map(partial(_plan_quietly, cache, deadline), combinations)
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _plan_quietly(cache: FiguresCache, deadline: float | None, combination: _Combination) -> AdviceOption:
    return _plan_option(combination, _Planner(cache, deadline, lambda _: None))


def describe_sites(sites: int, replicas: int) -> str:
    """`8 sites`, or `2 replicas on 4 sites each`."""
    if replicas == 1:
        return f"{sites} site{'s' if sites > 1 else ''}"
    each = sites // replicas
    return f"{replicas} replicas on {each} site{'s' if each > 1 else ''} each"


@dataclass(frozen=True, slots=True)
class _Planner:
    """Finds figures while there is time."""

    cache: FiguresCache
    deadline: float | None
    phase: Callable[[str], None]

    def find(self, phase: Phase, name: str, options: CompileOptions) -> Figures:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return Figures(problem="not planned: the time limit was reached")
            options = replace(options, time_limit=left)
        options = replace(options, definitions=(*options.definitions, *phase.definitions))
        return self.cache.find(phase.text, f"{name}, {phase.name}", options, self.phase)


def _list_replicas(sites: int, users: int, replicate: bool) -> Iterator[int]:
    """The numbers of replicas that divide the sites, of which each has a user."""
    for replicas in range(1, sites + 1):
        if sites % replicas == 0 and replicas <= users and (replicate or replicas == 1):
            yield replicas


def _plan_option(combination: _Combination, planner: _Planner) -> AdviceOption:
    workload, offer, target = combination.workload, combination.offer, combination.target
    replicas, users = combination.replicas, combination.users
    option = AdviceOption(target.machine.name, len(target.devices), replicas, users, {}, offer.hourly)
    size = len(target.devices) // replicas
    groups = [target.devices[start : start + size] for start in range(0, len(target.devices), size)]
    per_replica = -(-users // replicas)
    try:
        work = workload.plan_round(per_replica)
        figures = _plan_phases(work.phases, workload.name, offer.options, groups, planner)
    except ModelError as error:
        if replicas == 1:
            raise
        return replace(option, problem=error.message)
    option = replace(option, figures=figures, shared=_find_shared_links(target.machine, size))
    problem = next((plan.problem for plan in figures.values() if plan.problem is not None), None)
    if problem is not None:
        return replace(option, problem=problem)
    times = {name: plan.predicted_ms or 0.0 for name, plan in figures.items()}
    round_ms = sum(times[phase.name] * phase.runs for phase in work.phases)
    rate = users * (work.items / per_replica) / round_ms * 1e3 if round_ms else None
    return replace(
        option,
        latency_ms=times.get("token", times.get("run")),
        first_ms=times.get("prompt"),
        round_ms=round_ms,
        rate=rate,
        unit_cost=None if offer.hourly is None or not rate else offer.hourly / 3600 / rate * 1e6,
        memory_bytes=max(plan.memory_bytes or 0 for plan in figures.values()),
    )


def _plan_phases(
    phases: Sequence[Phase], name: str, options: CompileOptions, groups: Sequence[tuple[int, ...]], planner: _Planner
) -> dict[str, Figures]:
    """The figures of the phases of a round, of which those after the first cut weights as that one does."""
    figures: dict[str, Figures] = {}
    for phase in phases:
        figures[phase.name] = _find_slowest(phase, name, options, groups, planner)
        if len(figures) == 1:
            cuts = figures[phase.name].weight_cuts
            options = replace(options, pins=tuple(Pin(pattern, cut) for pattern, cut in cuts))
    return figures


def _find_slowest(
    phase: Phase, name: str, options: CompileOptions, groups: Sequence[tuple[int, ...]], planner: _Planner
) -> Figures:
    """The figures of a phase on the group where it takes longest; groups that are alike are planned once."""
    different: dict[str, CompileOptions] = {}
    for group in groups:
        on_group = replace(options, devices=group)
        different.setdefault(format_machine(select_target(on_group).machine), on_group)
    all_figures = [planner.find(phase, name, on_group) for on_group in different.values()]
    return max(all_figures, key=lambda figures: (figures.problem is not None, figures.predicted_ms or 0.0))


def _find_shared_links(machine: Machine, size: int) -> tuple[str, ...]:
    """Links that sites of several groups of `size` sites use, each within its group."""
    shared = []
    for resource in machine.resources:
        groups = {first // size for first, second in resource.pairs if first // size == second // size}
        if len(groups) > 1:
            shared.append(resource.name)
    return tuple(shared)
