"""The pipeline from a model to a plan: one stage per property of `Compiled`, each verified before the next sees it.

A stage runs when it is first asked for, so that showing an early one neither waits for the later ones nor fails with
them (paper, Section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from einc.errors import CapacityError
from einc.options import FASTEST, CompileOptions
from einc.physical.budget import HELD_BACK, SearchBudget
from einc.target import Target, select_target

if TYPE_CHECKING:
    from einc.exchange.synthesis.proposers import Proposer
    from einc.graph.graph import Graph
    from einc.logical.plan import LogicalPlan
    from einc.machines.model import Machine
    from einc.physical.program import DeviceProgram
    from einc.physical.refining import OtherPrograms
    from einc.physical.schedule import NaiveScheduler
    from einc.physical.synthesis import SynthesizingScheduler
    from einc.search.competition import Competition
    from einc.search.result import SelectedPlan
    from einc_runtime.plan.schema import Bundle


class Compiled:
    """All stages of one compilation.

    `graph` is the computation after fusion, `plan` the logical plan, `program` the device program, `bundle` the plan
    that the runtime reads. `phase` is called with the name of every stage as it begins, and of its parts. `budget` is
    what the search for exchange programs may take. `proposers` are asked for faster ones; `proposals` gets a line on
    every proposal, and `remarks` on every exchange program of the user's, and on tiles that were not tried.
    `make_small` makes the same of a few of a model's layers; None where it has no more.
    """

    def __init__(
        self,
        source: Graph,
        options: CompileOptions,
        phase: Callable[[str], None] = lambda _: None,
        proposers: Sequence[Proposer] = (),
        make_small: Callable[[], Graph | None] = lambda: None,
    ) -> None:
        self.source = source
        self._make_small = make_small
        self.proposers = tuple(proposers)
        self.options = options
        self.budget = SearchBudget(options.time_limit)
        self.proposals: list[str] = []
        self.remarks: list[str] = []
        self._phase = phase

    def plan_otherwise(self, options: CompileOptions, phase: Callable[[str], None]) -> Compiled:
        """Another compilation of the same graph, which is not fused again: for options that do not change it, as
        machines, sites and pins are."""
        sibling = Compiled(self.source, options, phase, self.proposers, self._make_small)
        sibling.fused = self.fused
        return sibling

    @cached_property
    def target(self) -> Target:
        return select_target(self.options)

    @property
    def graph(self) -> Graph:
        """The computation: with scans in blocks, where a plan of these is faster, or with what is computed again."""
        return self.fused if self._blocked is None and not self.options.may_recompute else self._competing[0]

    @cached_property
    def _competing(self) -> tuple[Graph, SelectedPlan]:
        """The fastest plan, and what it computes; also of plans with stages and replicas, where they are asked for.

        Raises CapacityError if a run of it is predicted to take longer than the options allow.
        """
        graph, selected = self._find_divided() if self.options.divides else self._undivided
        if self.options.tiles:
            selected = self._add_tiles(selected)
        limit, program = self.options.latency_at_most, selected.program
        if limit is not None and program is not None and program.predicted_ms > limit:
            raise CapacityError(
                f"no plan takes at most {limit:g} ms: the fastest that was found takes {program.predicted_ms:.4g} ms",
                hint="give more sites (--devices), a faster machine (-m), or a smaller batch (-D)",
            )
        return graph, selected

    def _find_divided(self) -> tuple[Graph, SelectedPlan]:
        from einc.stages.choice import find_divided

        target = self.target
        machine, sites = target.machine, len(target.devices)
        return find_divided(
            self.fused, machine, sites, self.options, self.budget, lambda: self._undivided, self._report_search
        )

    @cached_property
    def fused(self) -> Graph:
        """The computation of the model with fewer operators, before anything is known of plans."""
        self._phase("fusing operators")
        return self._fuse(self.source)

    def _fuse(self, source: Graph) -> Graph:
        from einc.graph.fuse import fuse
        from einc.graph.graph import verify_graph
        from einc.graph.reproducible import make_reproducible

        verify_graph(source)
        graph = fuse(source)
        verify_graph(graph)
        return make_reproducible(graph) if self.options.reproducible else graph

    @cached_property
    def _blocked(self) -> Graph | None:
        """The computation with scans in blocks, where these may be faster. Pins and programs of the user's are for the
        operators of the model, and a reproducible plan adds up in its order."""
        options = self.options
        if options.selector != FASTEST or options.reproducible or options.pins or options.exchanges:
            return None
        if not any(node.operator.is_program for node in self.fused.nodes):
            return None
        from einc.graph.blocked_scans import block_scans
        from einc.graph.graph import verify_graph
        from einc.search.scan_choice import choose_blocks

        blocks = choose_blocks(self.fused, self.target.machine, len(self.target.devices))
        if not blocks:
            return None
        graph = block_scans(self.fused, blocks)
        verify_graph(graph)
        return graph

    @cached_property
    def _undivided(self) -> tuple[Graph, SelectedPlan]:
        """The faster of the computation as it is, and of that with scans in blocks; of a training step, one that
        computes values again for gradients, where neither fits."""
        if self.options.train is None:
            return self._find_kept()
        from einc.search.recomputing import StepSearch

        options, target = self.options, self.target
        small = None if options.pins or options.exchanges or options.reproducible else self._make_small()

        def build(plan: LogicalPlan) -> DeviceProgram:
            return self._schedule(plan)[0]

        return StepSearch(
            self.source, small, self.options.train, options.may_recompute, target.machine, len(target.devices),
            self._fuse, self._find_fastest, self._promise_plans, self._find_kept, build, self._phase,
        ).find()  # fmt: skip

    def _find_kept(self) -> tuple[Graph, SelectedPlan]:
        """The faster of the computation as it is, and of that with scans in blocks."""
        machine = self.target.machine
        unblocked = self._find_fastest(self.fused, machine)
        if self._blocked is None:
            return self.fused, unblocked
        self._phase("comparing with scans in blocks")
        blocked = self._find_fastest(self._blocked, machine)
        if blocked.program is None or (
            unblocked.program is not None and unblocked.program.predicted_ms <= blocked.program.predicted_ms
        ):
            return self.fused, unblocked
        return self._blocked, blocked

    @property
    def selected(self) -> SelectedPlan:
        """The answer of the selector `fastest`, which builds device programs to choose a plan."""
        return self._competing[1]

    def _find_fastest(self, graph: Graph, machine: Machine, part: str = "") -> SelectedPlan:
        """The fastest plan of a graph; `part` is what progress says of one that is not the whole."""
        from einc.search.idle_site import find_fastest_or_idle

        options = self.options
        self._begin()
        return find_fastest_or_idle(
            graph,
            machine,
            len(self.target.devices),
            naive=options.schedule == "naive",
            budget=self.budget,
            seed=options.seed,
            pins=options.pins,
            input_placement=options.input_placement,
            progress=lambda step, best_ms: self._report_search(step + part, best_ms),
            report=self._report,
        )

    def _promise_plans(self, graph: Graph, machine: Machine) -> dict[str, LogicalPlan]:
        """Plans of a graph that none is built for."""
        from einc.search.fastest import promise_plans

        self._phase("weighing cuts by their time")
        naive, placement = self.options.schedule == "naive", self.options.input_placement
        return promise_plans(graph, machine, len(self.target.devices), naive=naive, input_placement=placement)

    def _add_tiles(self, selected: SelectedPlan) -> SelectedPlan:
        from einc.physical.synthesis import SynthesizingScheduler
        from einc.search.tiles import TILED, add_tiles

        machine, used_sites = self.target.machine, selected.plan.used_sites
        self._phase("cutting products into tiles")
        self._begin()
        scheduler = SynthesizingScheduler(
            machine, used_sites, budget=self.budget, seed=self.options.seed, report=self._report
        )
        tiled = add_tiles(selected, machine, scheduler, self.options.pins)
        self.budget.end()
        self.remarks += [f"no tiles: {c.reason}" for c in tiled.plan.contenders if c.name == TILED and c.reason]
        return tiled

    @cached_property
    def plan(self) -> LogicalPlan:
        return self._competition.program.plan if self.options.baselines else self._optimum

    @cached_property
    def _optimum(self) -> LogicalPlan:
        from einc.logical.optimize import optimize

        if self.options.selector == FASTEST or self.options.divides:
            return self.selected.plan

        graph, sites = self.graph, len(self.target.devices)
        self._phase("choosing how operators are cut")
        plan = optimize(graph, sites, self.options.selector, self.options.seed, self.options.pins)
        return replace(plan, input_placement=self.options.input_placement)

    @cached_property
    def _competition(self) -> Competition:
        """The optimum against the baselines that were asked for, all with the compiler's own exchange programs."""
        from einc.search.competition import compete

        plan = self._optimum
        self._phase("comparing with well-known plans")
        return compete(plan, self.options.baselines, self.options.pins, self._build, self.budget)

    @cached_property
    def program(self) -> DeviceProgram:
        from einc.physical.verify import verify

        user_programs = self.user_programs  # first, so that a mistake in them is told before the cuts are chosen
        plan = self.plan
        if self.options.baselines and user_programs is None:
            program = self._competition.program
        else:
            self._phase("placing blocks and moving data")
            program = self._build(plan, user_programs)
        verify(program)
        return program

    @cached_property
    def user_programs(self) -> OtherPrograms | None:
        """The programs that may stand in place of the compiler's; None where nothing was asked for."""
        if not self.options.exchanges and not self.proposers:
            return None
        from einc.physical.given import GivenExchanges
        from einc.physical.proposals import ProposedExchanges
        from einc.physical.refining import OtherPrograms

        machine, given_exchanges, proposed = self.target.machine, None, None
        if self.options.exchanges:
            given_exchanges = GivenExchanges(self.options.exchanges, self.graph, machine, self.remarks)
        if self.proposers:
            proposed = ProposedExchanges(machine, self.proposers, self.budget, self.proposals, self._report)
        return OtherPrograms(given_exchanges, proposed)

    def _build(self, plan: LogicalPlan, user_programs: OtherPrograms | None = None) -> DeviceProgram:
        is_built = user_programs is None and self.options.selector == FASTEST and plan is self.selected.plan
        if is_built and self.selected.program:
            return self.selected.program
        program, scheduler = self._schedule(plan)
        self.budget.release()
        if user_programs is not None:
            from einc.physical.refining import refine

            program = refine(program, self.target.machine, scheduler, user_programs)
        self.budget.end()
        return program

    def _schedule(self, plan: LogicalPlan) -> tuple[DeviceProgram, NaiveScheduler | SynthesizingScheduler]:
        """The program of a plan with the exchanges that were asked for."""
        from einc.physical.build import build, build_fast
        from einc.physical.schedule import NaiveScheduler
        from einc.physical.synthesis import SynthesizingScheduler

        machine, options = self.target.machine, self.options
        self._begin()
        if options.schedule == "naive":
            naive = NaiveScheduler(machine, plan.used_sites)
            return build(plan, machine, naive), naive
        scheduler = SynthesizingScheduler(
            machine, plan.used_sites, budget=self.budget, seed=options.seed, report=self._report
        )
        return build_fast(plan, machine, scheduler), scheduler

    def _begin(self) -> None:
        """Starts the clock, and keeps some of the time for proposals."""
        self.budget.begin()
        if self.proposers:
            self.budget.hold_back(HELD_BACK)

    def _report_search(self, step: str, best_ms: float) -> None:
        self._phase(f"{step}: {best_ms:.4g} ms" if best_ms else step)

    def _report(self, step: str, best_ms: float, bound_ms: float) -> None:
        self._phase(f"{step}: {best_ms:.4g} ms, at least {bound_ms:.4g} ms")

    @cached_property
    def bundle(self) -> Bundle:
        """The whole plan, as a reader of its file gets it."""
        from einc_runtime.plan.repetition import unfold

        return unfold(self.folded_bundle)

    @cached_property
    def folded_bundle(self) -> Bundle:
        """What the plan file says, a repeated layer once."""
        from einc.logical.pins import find_pinned
        from einc.physical.records import emit, require_valid

        program, options = self.program, self.options
        self._phase("writing the plan")
        pinned = {node: pin.cut for node, pin in find_pinned(self.graph, options.pins).items()}
        baselines = self._competition.baselines if options.baselines else ()
        machine, devices = self.target.machine, self.target.devices
        bundle = emit(
            program,
            machine,
            devices,
            options.schedule,
            pinned=pinned,
            baselines=baselines,
            unrestricted_ms=self._predict_unrestricted(),
        )
        return require_valid(bundle)

    def _predict_unrestricted(self) -> float | None:
        """What a plan would take that need not be reproducible, and has no pins; None where that is not asked or has no
        time."""
        options = self.options
        hurried = options.time_limit is not None or self.budget.interrupted
        restricted = options.reproducible or (options.price_pins and options.pins)
        if not restricted or options.selector != FASTEST or hurried:
            return None
        self._phase(f"comparing with a plan that {'is not reproducible' if options.reproducible else 'has no pins'}")
        chosen = replace(options, reproducible=False, pins=(), baselines=(), exchanges=())
        program = Compiled(self.source, chosen).selected.program
        return None if program is None else program.predicted_ms


def compile_model(
    text: str,
    file: str,
    options: CompileOptions,
    phase: Callable[[str], None] = lambda _: None,
    proposers: Sequence[Proposer] = (),
) -> Compiled:
    """The compilation of a model text; `file` is the name that messages give it. Raises ModelError here, not later."""
    from einc.graph.layers import fold

    phase("reading the model")
    model = build_model(text, file, options)

    def make_small() -> Graph | None:
        folded = fold(model)
        return None if folded is None else derive(folded.graph, options)

    return Compiled(derive(model, options), options, phase, proposers, make_small)


def build_model(text: str, file: str, options: CompileOptions) -> Graph:
    """The graph of a model text. Raises ModelError."""
    from einc.frontend import build

    return build(text, file, options.definitions, options.preset, options.dtype)


def read_model(text: str, file: str, options: CompileOptions) -> Graph:
    """The graph of a model text, or of what is derived from it, before fusion. Raises ModelError."""
    return derive(build_model(text, file, options), options)


def derive(graph: Graph, options: CompileOptions) -> Graph:
    """The graph, or its decode step, or the graph with its gradients, as the options say. Raises ModelError for an
    operator that has none, UsageError for options that contradict each other."""
    if options.trains:
        from einc.training.deriving import derive_training

        return derive_training(graph, options)
    if options.step is None:
        return graph
    from einc.graph.decode_step import derive_step

    return derive_step(graph, options.step).graph
