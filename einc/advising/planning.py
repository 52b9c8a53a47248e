"""The options of a workload, each with the times and rates that follow from its plans.

Options are planned in this process as long as that is quick, and then in several.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context

from einc.advising.cache_moves import time_cache_move
from einc.advising.figures import Figures, FiguresCache
from einc.advising.workloads import ChatWorkload, Phase, Workload
from einc.errors import ModelError
from einc.logical.pins import Pin
from einc.machines.load import count_host_cores, format_machine
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.target import Target, select_target
from einc_runtime.text import format_count

TRIED_STAGES = 2, 4, 8
"""Numbers of pipeline stages that are tried: more have more bubble, and each takes seconds to plan."""

TRIED_MICROBATCHES = 2, 1
"""Micro-batches for each stage, the first that divides the users: with two, a third of the time is bubble at most."""

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

    With `prompt_sites`, so many of the sites read prompts alone, and send the caches to the others, which make tokens.
    With `stages`, a run is made in pipeline stages, by `microbatches` of the users of each replica; or so many prompts
    are read together on the sites for prompts, in stages. `figures` are those of the slowest group. If a phase could
    not be planned, all times are None, and `problem` says why. `latency_ms` is the time of a token of every user, or of
    a run; `first_ms` that of reading a prompt, and of moving its caches; `round_ms` that of all that is done for the
    users of one replica. `rate` counts what all replicas make in a second, `unit_cost` is the price of a million of
    these. `shared` names links that several replicas use, which each was predicted to have alone.
    """

    machine: str
    sites: int
    replicas: int
    users: int
    prompt_sites: int
    figures: dict[str, Figures]
    stages: int = 1
    microbatches: int = 1
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
    prompt_sites: int
    stages: int

    @property
    def microbatches(self) -> int:
        """Of the users of a replica: as many for each stage as divide them evenly; one without stages."""
        return 1 if self.stages == 1 else choose_microbatches(self.users // self.replicas, self.stages) or 1

    @property
    def name(self) -> str:
        sites = describe_sites(len(self.target.devices), self.replicas, self.prompt_sites, self.stages)
        return f"{self.target.machine.name}, {sites}"


def plan_options(
    workload: Workload,
    offers: Sequence[Offer],
    cache: FiguresCache,
    divide: bool,
    deadline: float | None,
    phase: Callable[[str], None],
) -> list[AdviceOption]:
    """All options, in the order of the offers; `deadline` is a moment of `time.monotonic`. Without `divide`, all sites
    of an offer work together.

    Raises MachineError for an offer that does not exist, ModelError for a model that nobody can run.
    """
    combinations = [
        _Combination(workload, offer, target, replicas, users, prompt_sites, stages)
        for offer, target in [(offer, select_target(offer.options)) for offer in offers]
        for users in workload.batches
        for replicas, prompt_sites, stages in _list_divisions(len(target.devices), users, divide, workload)
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
    with ProcessPoolExecutor(workers, get_context("spawn"), _end_silently) as pool:
        try:
            # Not by `map`, which cancels what is left: in Python 3.11, the pool fails on cancelled work when it ends.
            futures = [pool.submit(_plan_quietly, cache, deadline, combination) for combination in combinations]
            for future in futures:
                yield future.result()
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _end_silently() -> None:
    """Leaves it to the process that started this one to say why all end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _plan_quietly(cache: FiguresCache, deadline: float | None, combination: _Combination) -> AdviceOption:
    return _plan_option(combination, _Planner(cache, deadline, lambda _: None))


def describe_sites(sites: int, replicas: int, prompt_sites: int = 0, stages: int = 1) -> str:
    """`8 sites`, `2 replicas on 4 sites each`, or `6 sites for tokens and 2 in 2 stages for prompts`."""
    divided = f" in {stages} stages" if stages > 1 else ""
    if prompt_sites:
        return f"{format_count(sites - prompt_sites, 'site')} for tokens and {prompt_sites}{divided} for prompts"
    if replicas == 1:
        return format_count(sites, "site") + divided
    return f"{replicas} replicas on {format_count(sites // replicas, 'site')} each{divided}"


def choose_microbatches(users: int, stages: int) -> int | None:
    """Into how many micro-batches the users of a replica are divided; None where that is not possible."""
    return next((stages * times for times in TRIED_MICROBATCHES if users % (stages * times) == 0), None)


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
        options = replace(options, definitions=(*options.definitions, *phase.definitions), step=phase.step)
        return self.cache.find(phase.text, f"{name}, {phase.name}", options, self.phase)


def _list_divisions(sites: int, users: int, divide: bool, workload: Workload) -> Iterator[tuple[int, int, int]]:
    """Replicas, sites for prompts alone, and stages: numbers of replicas that divide the sites, of which each has a
    user; a half or a quarter of the sites for prompts; and stages that divide the sites of a replica, and its users.

    Of a decoder, only prompts that have sites of their own are read in stages: tokens would take longer, as a step
    begins when the one before it has gone through all stages.
    """
    yield 1, 0, 1
    if not divide:
        return
    chat = isinstance(workload, ChatWorkload)
    groups = [(n, 0) for n in range(2, sites + 1) if sites % n == 0 and n <= users]
    groups += [(1, sites // part) for part in (4, 2) if sites % part == 0] if chat else []
    yield from ((replicas, prompt_sites, 1) for replicas, prompt_sites in groups)
    for replicas, prompt_sites in groups if chat else [(1, 0), *groups]:
        size = prompt_sites if chat else sites // replicas
        for stages in TRIED_STAGES if size else ():
            if size % stages == 0 and users % replicas == 0 and choose_microbatches(users // replicas, stages):
                yield replicas, prompt_sites, stages


def _plan_option(combination: _Combination, planner: _Planner) -> AdviceOption:
    workload, offer, target = combination.workload, combination.offer, combination.target
    replicas, users = combination.replicas, combination.users
    option = AdviceOption(
        target.machine.name,
        len(target.devices),
        replicas,
        users,
        combination.prompt_sites,
        {},
        combination.stages,
        combination.microbatches,
        offer.hourly,
    )
    per_replica = -(-users // replicas)
    try:
        together = combination.microbatches if combination.prompt_sites else 1
        work = workload.plan_round(per_replica, together)
        figures = _plan_phases(combination, work.phases, planner)
    except ModelError as error:
        if replicas == 1:
            raise
        return replace(option, problem=error.message)
    option = replace(option, figures=figures, shared=_find_shared_links(target.machine, option.sites // replicas))
    problem = next((plan.problem for plan in figures.values() if plan.problem is not None), None)
    if problem is not None:
        return replace(option, problem=problem)
    times = {name: plan.predicted_ms or 0.0 for name, plan in figures.items()}
    phase_ms = [times[phase.name] * phase.runs for phase in work.phases]
    first_ms, round_ms = times.get("prompt"), sum(phase_ms)
    if combination.prompt_sites and isinstance(workload, ChatWorkload):
        moving_ms = _time_cache_move(workload, combination, figures["token"])
        if moving_ms is None:
            return replace(option, problem="sites that read prompts cannot reach those that make tokens")
        # Each group of sites works for itself; the slower one decides the rate.
        first_ms, round_ms = times["prompt"] + moving_ms, max(phase_ms)
    rate = users * (work.items / per_replica) / round_ms * 1e3 if round_ms else None
    return replace(
        option,
        latency_ms=times.get("token", times.get("run")),
        first_ms=first_ms,
        round_ms=round_ms,
        rate=rate,
        unit_cost=None if offer.hourly is None or not rate else offer.hourly / 3600 / rate * 1e6,
        memory_bytes=max(plan.memory_bytes or 0 for plan in figures.values()),
    )


def _time_cache_move(workload: ChatWorkload, combination: _Combination, token: Figures) -> float | None:
    """How long the caches of prompts move that were read together; a cache has places for the answer, too."""
    sites = range(len(combination.target.devices))
    places = workload.prompt_tokens + workload.answer_tokens
    size = combination.microbatches * token.state_bytes * workload.prompt_tokens // (places * combination.users)
    split = len(sites) - combination.prompt_sites
    return time_cache_move(combination.target.machine, sites[split:], sites[:split], size)


def _plan_phases(combination: _Combination, phases: Sequence[Phase], planner: _Planner) -> dict[str, Figures]:
    """The figures of the phases of a round. On the same sites, those after the first cut weights as that one does."""
    name, options, devices = combination.workload.name, combination.offer.options, combination.target.devices
    split = len(devices) - combination.prompt_sites
    size = split // combination.replicas
    groups = [devices[start : start + size] for start in range(0, split, size)]
    figures: dict[str, Figures] = {}
    staged = options
    if combination.stages > 1:
        staged = replace(options, stages=combination.stages, microbatches=combination.microbatches, replicas=1)
    options = options if combination.prompt_sites else staged
    for phase in phases:
        if combination.prompt_sites and phase.name == "prompt":
            groups, options = [devices[split:]], staged
        figures[phase.name] = _find_slowest(phase, name, options, groups, planner)
        if figures[phase.name].problem is not None:
            break  # no round is possible
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
