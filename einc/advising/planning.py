"""The options of a workload, each with the times and rates that follow from its plans.

Options are planned in this process as long as that is quick, and then in several. Of an offer with a number of users,
one is not planned whose kernels alone show that another one has no longer latency and no lower rate.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context

from einc.advising.figures import Figures, FiguresCache
from einc.advising.option import TIME_LIMIT_REACHED, AdviceOption, Limits, Offer, describe_sites
from einc.advising.workloads import ChatWorkload, Phase, Round, Workload
from einc.errors import ModelError
from einc.exchange.language.program import Action, Holding, Program, Requirement
from einc.exchange.simulation.simulator import simulate
from einc.logical.pins import Pin
from einc.machines.load import count_host_cores, format_machine
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.target import Target, select_target

TRIED_STAGES = 2, 4, 8
"""Numbers of pipeline stages that are tried: more have more bubble, and each takes seconds to plan."""

TRIED_MICROBATCHES = 2, 1
"""Micro-batches for each stage, the first that divides the users: with two, a third of the time is bubble at most."""

ALONE_SECONDS = 3.0
"""After this time, more processes plan what is left: starting one takes about a second."""


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
        return f"{self.target.named}, {sites}"


@dataclass(frozen=True, slots=True)
class _Group:
    """All divisions of an offer for a number of users, of which the first ones were planned."""

    combinations: Sequence[_Combination]
    planned: tuple[AdviceOption, ...] = ()

    @property
    def left(self) -> int:
        return len(self.combinations) - len(self.planned)

    @property
    def next_name(self) -> str:
        return self.combinations[len(self.planned)].name

    def plan_next(self, planner: _Planner) -> _Group:
        combination = self.combinations[len(self.planned)]
        rivals = [option for option in self.planned if planner.limits.allow(option)]
        return replace(self, planned=(*self.planned, _plan_option(combination, planner, rivals)))


def plan_options(
    workload: Workload,
    offers: Sequence[Offer],
    limits: Limits,
    cache: FiguresCache,
    divide: bool,
    deadline: float | None,
    phase: Callable[[str], None],
) -> list[AdviceOption]:
    """All options, in the order of the offers; `deadline` is a moment of `time.monotonic`. Without `divide`, all sites
    of an offer work together.

    Raises MachineError for an offer that does not exist, ModelError for a model that nobody can run.
    """
    targets = [(offer, select_target(offer.options)) for offer in offers]
    groups = [
        _Group(
            [
                _Combination(workload, offer, target, replicas, users, prompt_sites, stages)
                for replicas, prompt_sites, stages in _list_divisions(len(target.devices), users, divide, workload)
            ]
        )
        for users in workload.batches  # outermost, as machines share the graphs of a number of users
        for offer, target in targets
    ]
    begin, count = time.monotonic(), sum(group.left for group in groups)
    while (n := _find_next(groups)) is not None and (
        time.monotonic() - begin <= ALONE_SECONDS or count_host_cores() == 1
    ):
        name = f"option {1 + sum(len(group.planned) for group in groups)} of {count}: {groups[n].next_name}"
        planner = _Planner(cache, limits, deadline, functools.partial(_say_step, phase, name))
        groups[n] = groups[n].plan_next(planner)
    for n, group in _plan_in_processes(groups, _Planner(cache, limits, deadline, _say_nothing)):
        groups[n] = group
        phase(f"option {sum(len(group.planned) for group in groups)} of {count}")
    return [option for n in range(len(offers)) for group in groups[n :: len(offers)] for option in group.planned]


def _find_next(groups: Sequence[_Group], busy: Collection[int] = ()) -> int | None:
    """The group whose next option is planned: the first one that has none, so that something is known of each where
    time runs out, or else the first with one left."""
    free = [n for n, group in enumerate(groups) if group.left and n not in busy]
    return next((n for n in free if not groups[n].planned), next(iter(free), None))


def _plan_in_processes(groups: Sequence[_Group], planner: _Planner) -> Iterator[tuple[int, _Group]]:
    """Positions of groups, each with the group and its next option, until all are planned, by a process for each core;
    an exception ends these at once."""
    groups = list(groups)
    workers = min(count_host_cores(), sum(group.left > 0 for group in groups))
    if not workers:
        return
    # Processes that are spawned take no thread or lock of this one along.
    with ProcessPoolExecutor(workers, get_context("spawn"), _end_silently) as pool:
        try:
            running: dict[Future[_Group], int] = {}
            while True:
                # As many as there are processes: in Python 3.11, the pool fails on cancelled work when it ends.
                while len(running) < workers and (n := _find_next(groups, running.values())) is not None:
                    running[pool.submit(groups[n].plan_next, planner)] = n
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    n = running.pop(future)
                    groups[n] = future.result()
                    yield n, groups[n]
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _end_silently() -> None:
    """Leaves it to the process that started this one to say why all end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _say_step(phase: Callable[[str], None], name: str, step: str) -> None:
    phase(f"{name}: {step}")


def _say_nothing(step: str) -> None:
    """The progress of another process is not shown."""


def choose_microbatches(users: int, stages: int) -> int | None:
    """Into how many micro-batches the users of a replica are divided; None where that is not possible."""
    return next((stages * times for times in TRIED_MICROBATCHES if users % (stages * times) == 0), None)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Finds figures while there is time."""

    cache: FiguresCache
    limits: Limits
    deadline: float | None
    phase: Callable[[str], None]

    def find(self, phase: Phase, name: str, options: CompileOptions) -> Figures:
        options = _complete(options, phase)
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return self.cache.find_kept(phase.text, options) or Figures(problem=TIME_LIMIT_REACHED)
            options = replace(options, time_limit=left)
        return self.cache.find(phase.text, f"{name}, {phase.name}", options, self.phase)

    def find_least(self, phase: Phase, name: str, options: CompileOptions) -> Figures:
        """What no plan beats; 0 ms where there is no time left to look."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return Figures(predicted_ms=0.0)
        return self.cache.find_least(phase, f"{name}, {phase.name}", _complete(options, phase), self.phase)


def _complete(options: CompileOptions, phase: Phase) -> CompileOptions:
    return replace(options, definitions=(*options.definitions, *phase.definitions), step=phase.step)


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


def _plan_option(combination: _Combination, planner: _Planner, rivals: Sequence[AdviceOption]) -> AdviceOption:
    """An option with all that is known of it: it is not planned further once a rival is no worse than it may become."""
    workload, target, replicas = combination.workload, combination.target, combination.replicas
    option = AdviceOption(
        target.machine.name,
        target.named,
        len(target.devices),
        replicas,
        combination.users,
        combination.prompt_sites,
        {},
        combination.stages,
        combination.microbatches,
        combination.offer.hourly,
        shared=_find_shared_links(target.machine, len(target.devices) // replicas),
    )
    together = combination.microbatches if combination.prompt_sites else 1
    try:
        work = workload.plan_round(-(-combination.users // replicas), together)
        for known, least in _plan_phases(combination, work.phases, planner):
            option = replace(option, figures=known)
            problem = next((plan.problem for plan in known.values() if plan.problem is not None), None)
            if problem is not None:
                return replace(option, problem=problem)
            timed = _time_option(option, combination, work, least)
            rival = next((rival for rival in rivals if rival.is_no_worse(timed)), None)
            if least and rival is not None:
                sites = describe_sites(rival.sites, rival.replicas, rival.prompt_sites, rival.stages)
                problem = f"not planned: its kernels alone allow no shorter latency and no higher rate than {sites}"
                return replace(option, problem=problem, beaten=True)
    except ModelError as error:
        if replicas == 1:
            raise
        return replace(option, problem=error.message)
    return timed


def _time_option(
    option: AdviceOption, combination: _Combination, work: Round, least: Mapping[str, Figures]
) -> AdviceOption:
    """The option with its times: those that figures say, or the `least` of phases that were not planned."""
    times = {name: plan.predicted_ms or 0.0 for name, plan in {**least, **option.figures}.items()}
    phase_ms = [times[phase.name] * phase.runs for phase in work.phases]
    first_ms, round_ms = times.get("prompt"), sum(phase_ms)
    if option.prompt_sites and isinstance(combination.workload, ChatWorkload):
        moving_ms = 0.0 if least else _time_cache_move(combination.workload, combination, option.figures["token"])
        if moving_ms is None:
            return replace(option, problem="sites that read prompts cannot reach those that make tokens")
        # Each group of sites works for itself; the slower one decides the rate.
        first_ms, round_ms = times["prompt"] + moving_ms, max(phase_ms)
    per_replica = -(-option.users // option.replicas)
    rate = option.users * (work.items / per_replica) / round_ms * 1e3 if round_ms else None
    return replace(
        option,
        latency_ms=times.get("token", times.get("run")),
        first_ms=first_ms,
        round_ms=round_ms,
        rate=rate,
        unit_cost=None if option.hourly is None or not rate else option.hourly / 3600 / rate * 1e6,
        memory_bytes=max((plan.memory_bytes or 0 for plan in option.figures.values()), default=None),
    )


def _time_cache_move(workload: ChatWorkload, combination: _Combination, token: Figures) -> float | None:
    """How long the caches of prompts move that were read together; a cache has places for the answer, too."""
    sites = range(len(combination.target.devices))
    places = workload.prompt_tokens + workload.answer_tokens
    size = combination.microbatches * token.state_bytes * workload.prompt_tokens // (places * combination.users)
    split = len(sites) - combination.prompt_sites
    return time_cache_move(combination.target.machine, sites[split:], sites[:split], size)


def _plan_phases(
    combination: _Combination, phases: Sequence[Phase], planner: _Planner
) -> Iterator[tuple[dict[str, Figures], dict[str, Figures]]]:
    """The figures of the phases of a round that were planned so far, and the least ones of the others: first of none,
    at last of all. On the same sites, those after the first cut weights as that one does."""
    name, options, devices = combination.workload.name, combination.offer.options, combination.target.devices
    split = len(devices) - combination.prompt_sites
    size = split // combination.replicas
    groups = [devices[start : start + size] for start in range(0, split, size)]
    staged = options
    if combination.stages > 1:
        staged = replace(options, stages=combination.stages, microbatches=combination.microbatches, replicas=1)
    options = options if combination.prompt_sites else staged
    places = [
        ([devices[split:]], staged) if combination.prompt_sites and phase.name == "prompt" else (groups, options)
        for phase in phases
    ]
    least: dict[str, Figures] = {
        phase.name: _find_slowest(phase, name, chosen, on_sites, planner.find_least)
        for phase, (on_sites, chosen) in zip(phases, places, strict=True)
    }
    figures = {name: plan for name, plan in least.items() if plan.problem is not None}
    pins: tuple[Pin, ...] = ()
    for phase, (on_sites, chosen) in zip(phases, places, strict=True):
        yield figures, least
        pins = () if on_sites is not groups else pins
        figures = {
            **figures,
            phase.name: _find_slowest(phase, name, replace(chosen, pins=pins), on_sites, planner.find),
        }
        least = {name: plan for name, plan in least.items() if name not in figures}
        pins = tuple(Pin(pattern, cut) for pattern, cut in figures[phase.name].weight_cuts)
    yield figures, least


def _find_slowest(
    phase: Phase,
    name: str,
    options: CompileOptions,
    groups: Sequence[tuple[int, ...]],
    find: Callable[[Phase, str, CompileOptions], Figures],
) -> Figures:
    """The figures of a phase on the group where it takes longest; groups that are alike are planned once."""
    different: dict[str, CompileOptions] = {}
    for group in groups:
        on_group = replace(options, devices=group)
        different.setdefault(format_machine(select_target(on_group).machine), on_group)
    all_figures = [find(phase, name, on_group) for on_group in different.values()]
    return max(all_figures, key=lambda figures: (figures.problem is not None, figures.predicted_ms or 0.0))


def _find_shared_links(machine: Machine, size: int) -> tuple[str, ...]:
    """Links that sites of several groups of `size` sites use, each within its group."""
    shared = []
    for resource in machine.resources:
        groups = {first // size for first, second in resource.pairs if first // size == second // size}
        if len(groups) > 1:
            shared.append(resource.name)
    return tuple(shared)


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
