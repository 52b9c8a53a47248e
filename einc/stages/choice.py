"""Which shape a plan has: how many stages, micro-batches and replicas.

For every number of sites of a stage and every number of parts, one part is planned once, and all shapes that have such
parts share its cuts. What a shape takes follows from that plan and from the order of a pipeline. The shapes that
promise most are built as whole plans and predicted, and the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from einc.errors import CapacityError, EincError, MachineError, UsageError
from einc.graph.graph import Graph, TensorKind, count_resident_bytes
from einc.logical.division import DivisionShape
from einc.logical.optimize import choose_by_cuts
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.model import Machine
from einc.options import FASTEST, MAX_DIVISIONS, CompileOptions
from einc.physical.budget import HELD_BACK, SearchBudget
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.physical.synthesis import SearchScope, SynthesizingScheduler
from einc.plan_report import ConsideredShape
from einc.search.idle_site import find_least_ms
from einc.search.result import SelectedPlan
from einc.stages.batch import BatchCut, cut_batch
from einc.stages.planning import PartPlan, divide_plan, make_part_graph, plan_part
from einc_runtime.text import format_memory

MICROBATCHES_PER_STAGE = 1, 2, 4
"""Micro-batches that are tried for each stage: with as many as stages, half of the time is bubble, and with four times
as many a fifth; beyond, parts are small, and kernels take longer than their share."""

MAX_BUILT = 2
"""Shapes that are built as whole plans: estimates leave out exchanges that cross, and err by some per cent."""

WORTH_BUILDING = 1.1
"""A shape is built if it is estimated to take at most this many times the best that was built, and planned if its bound
allows that."""


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """What a person fixes of a shape; None leaves it open."""

    stages: int | None = None
    microbatches: int | None = None
    replicas: int | None = None

    @property
    def is_open(self) -> bool:
        return None in (self.stages, self.microbatches, self.replicas)

    def list_shapes(self, sites: int) -> Iterator[DivisionShape]:
        """The shapes that keep to the request and whose groups have equally many sites."""
        for groups in (count for count in range(1, sites + 1) if sites % count == 0):
            for stages in (count for count in range(1, groups + 1) if groups % count == 0):
                shape = DivisionShape(stages, 1, groups // stages)
                if self.stages in (None, shape.stages) and self.replicas in (None, shape.replicas):
                    for microbatches in self._list_microbatches(stages):
                        yield replace(shape, microbatches=microbatches)

    def _list_microbatches(self, stages: int) -> tuple[int, ...]:
        if self.microbatches is not None:
            return (self.microbatches,)
        return (1,) if stages == 1 else tuple(stages * times for times in MICROBATCHES_PER_STAGE)


@dataclass(frozen=True, slots=True)
class Promise:
    """A plan of a shape, and about what it takes, in ms."""

    shape: DivisionShape
    plan: LogicalPlan
    ms: float


class ShapeSearch:
    """Plans shapes of one graph on one machine. `naive` and `seed` are as for the search."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        sites: int,
        *,
        naive: bool,
        budget: SearchBudget,
        seed: int = 0,
        progress: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self._graph = graph
        self._machine = machine
        self._sites = sites
        self._naive = naive
        self._budget = budget
        self._seed = seed
        self._progress = progress
        self._cuts: dict[int, BatchCut | UsageError] = {}
        self._parts: dict[tuple[int, int, int], PartPlan | None] = {}
        self._least_ms: dict[tuple[int, int], float] = {}
        self._scheduler = SynthesizingScheduler(machine, sites, budget=budget, seed=seed, placed=True)
        self.considered: list[ConsideredShape] = []

    def find_best(self, request: ShapeRequest, undivided: SelectedPlan | None) -> SelectedPlan:
        """The fastest plan of the shapes that a request allows; `undivided` is the plan of the shape with one of each,
        if that is allowed.

        Raises UsageError where the request allows no shape, and CapacityError where no plan fits into memory.
        """
        shapes = [shape for shape in request.list_shapes(self._sites) if undivided is None or shape != DivisionShape()]
        faults: list[EincError] = []
        best = None if undivided is None or undivided.program is None else undivided.program
        limit = inf if best is None else best.predicted_ms
        promises = sorted(self._list_promises(shapes, limit, faults), key=lambda promise: promise.ms)
        built: dict[DivisionShape, float] = {} if best is None else {DivisionShape(): best.predicted_ms}
        divided = 0
        for promise in promises:
            if divided == MAX_BUILT or (best is not None and promise.ms > WORTH_BUILDING * best.predicted_ms):
                break
            self._progress(f"building a plan of {describe_shape(promise.shape)}", promise.ms)
            try:
                program = self.build(promise.plan)
            except (CapacityError, MachineError) as error:
                faults.append(error)
                continue
            divided += 1
            built[promise.shape] = program.predicted_ms
            if best is None or program.predicted_ms < best.predicted_ms:
                best = program
        if best is None:
            if faults:
                raise next((fault for fault in faults if isinstance(fault, CapacityError)), faults[0])
            raise self._refuse(request)
        self._note(promises, built, best)
        plan = replace(best.plan, shapes=tuple(self.considered))
        if plan.division is not None:
            strict = build_problem(self._graph, self._sites)
            plan = replace(plan, cut_cost=strict.cost(choose_by_cuts(strict)))
        return SelectedPlan(plan, replace(best, plan=plan))

    def _list_promises(
        self, shapes: Sequence[DivisionShape], best_ms: float, faults: list[EincError]
    ) -> Iterator[Promise]:
        """The plans of shapes, those of the least bounds first. A shape is left out if its bound is much more than the
        best so far, which is `best_ms` in the beginning."""
        bounds: list[tuple[float, int]] = []
        for number, shape in enumerate(shapes):
            self._progress(f"bounding {describe_shape(shape)}", 0.0)
            try:
                bounds.append((self.bound_ms(shape), number))
            except UsageError as error:
                faults.append(error)
        for position, (bound_ms, number) in enumerate(sorted(bounds)):
            if bound_ms > WORTH_BUILDING * best_ms or (best_ms < inf and not self._budget.left):
                return
            self._progress(f"planning {describe_shape(shapes[number])}", 0.0 if best_ms == inf else best_ms)
            seconds = self._budget.left / (len(bounds) - position)
            try:
                promise = self.promise(shapes[number], seconds)
            except (UsageError, CapacityError) as error:
                faults.append(error)
                continue
            if promise is not None:
                best_ms = min(best_ms, promise.ms)
                yield promise

    def bound_ms(self, shape: DivisionShape) -> float:
        """A time that no plan of a shape is below: the kernels of all parts, spread evenly over the sites of a replica,
        and the bubble of stages that take equally long. Raises UsageError for a batch that has no such parts."""
        cut = self._cut_batch(shape.parts)
        key = shape.parts, self._sites // shape.groups
        if key not in self._least_ms:
            graph = make_part_graph(cut)
            timely = [node for number, node in enumerate(graph.nodes) if number not in cut.late]
            self._least_ms[key] = find_least_ms(replace(graph, nodes=tuple(timely)), self._machine, key[1])
        return self._least_ms[key] * (shape.microbatches + shape.stages - 1) / shape.stages

    def promise(self, shape: DivisionShape, seconds: float = inf) -> Promise | None:
        """The plan of a shape, before it is built; None where the graph has too few stages. The search for the plan of
        a part may take so many `seconds`. Raises UsageError for a batch that has no such parts, and CapacityError."""
        self._require_memory(shape.replicas)
        part = self._plan_part(self._cut_batch(shape.parts), self._sites // shape.groups, shape.stages, seconds)
        divided = divide_plan(part, shape, self._machine, self._sites)
        return None if divided is None else Promise(shape, divided.plan, divided.ms)

    def _require_memory(self, replicas: int) -> None:
        """Raises CapacityError where a replica cannot have all weights."""
        kept = count_resident_bytes(self._graph, (TensorKind.WEIGHT,))
        memory = sum(site.memory_bytes for site in self._machine.sites[: self._sites // replicas])
        if kept > memory:
            raise CapacityError(
                f"the weights take {format_memory(kept)}, and the sites of a replica have {format_memory(memory)}"
            )

    def _cut_batch(self, parts: int) -> BatchCut:
        cut = self._cuts.get(parts)
        if cut is None:
            try:
                cut = cut_batch(self._graph, parts)
            except UsageError as error:
                cut = error
            self._cuts[parts] = cut
        if isinstance(cut, UsageError):
            raise cut
        return cut

    def _plan_part(self, cut: BatchCut, sites: int, stages: int, seconds: float) -> PartPlan:
        """The plan of one part on so many sites. First as if memory were plenty: if its stages do not fit then, as if
        every site had the memory of all stages."""
        smallest = min(site.memory_bytes for site in self._machine.sites)
        for room in (self._sites, stages):
            key = cut.parts, sites, room
            if key not in self._parts:
                budget = SearchBudget(seconds if seconds < inf else None)
                self._parts[key] = plan_part(
                    cut, self._machine, sites, naive=self._naive, seed=self._seed, budget=budget, room=room
                )
            part = self._parts[key]
            if part is not None and (part.memory <= stages * smallest or room == stages):
                return part
        raise CapacityError(f"no plan of a part of the batch fits into {stages} stages on {sites} sites each")

    def build(self, plan: LogicalPlan) -> DeviceProgram:
        """The program of a divided plan: the faster of that with naive and that with synthesized exchanges."""
        naive = build(plan, self._machine, self._scheduler.naive)
        if self._naive or not self._budget.left:
            return naive
        parts = 1 if plan.division is None else plan.division.shape.parts
        self._scheduler.restart(SearchScope.BODY, parts * (len(self._graph.nodes) + len(self._graph.outputs)))
        synthesized = build(plan, self._machine, self._scheduler)
        return min(synthesized, naive, key=lambda program: program.predicted_ms)

    def _note(self, promises: Sequence[Promise], built: dict[DivisionShape, float], best: DeviceProgram) -> None:
        """Remembers which shapes were considered, the fastest first."""
        chosen = DivisionShape() if best.plan.division is None else best.plan.division.shape
        times = {promise.shape: promise.ms for promise in promises} | built
        for shape in sorted(times, key=lambda shape: (shape not in built, times[shape])):
            self.considered.append(
                ConsideredShape(
                    shape.stages, shape.microbatches, shape.replicas, times[shape], shape in built, shape == chosen
                )
            )

    def _refuse(self, request: ShapeRequest) -> UsageError:
        counts = " and ".join(
            f"{count} {name}"
            for name, count in (("stages", request.stages), ("replicas", request.replicas))
            if count is not None
        )
        return UsageError(
            f"{self._sites} sites have no equal groups for {counts}, or the model has too few operators for them",
            hint="stages times replicas must divide the number of sites (--devices)",
        )


def describe_shape(shape: DivisionShape) -> str:
    """`2 stages, 4 micro-batches, 1 replica`."""
    counts = ((shape.stages, "stage"), (shape.microbatches, "micro-batch"), (shape.replicas, "replica"))
    return ", ".join(
        f"{count} {name}{'' if count == 1 else 'es' if name.endswith('ch') else 's'}" for count, name in counts
    )


Competitor = tuple[Graph, SelectedPlan]
"""A graph, and its plan."""


def find_divided(
    graph: Graph,
    machine: Machine,
    sites: int,
    options: CompileOptions,
    budget: SearchBudget,
    find_undivided: Callable[[], Competitor],
    progress: Callable[[str, float], None],
) -> Competitor:
    """The fastest plan of the shapes that the options allow, and its graph: that of `find_undivided`, with one stage,
    micro-batch and replica, may be one of them.

    Raises UsageError for shapes that are not possible, and for options that say something else of the whole plan;
    CapacityError where no plan fits into memory.
    """
    _check(options)
    request = ShapeRequest(options.stages, options.microbatches, options.replicas)
    allowed = all(count in (None, 1) for count in (request.stages, request.microbatches, request.replicas))
    budget.begin()
    budget.hold_back(HELD_BACK)
    undivided_graph, undivided = find_undivided() if allowed else (graph, None)
    budget.begin()
    budget.release()
    search = ShapeSearch(
        graph, machine, sites, naive=options.schedule == "naive", budget=budget, seed=options.seed, progress=progress
    )
    best = search.find_best(request, undivided)
    budget.end()
    return (undivided_graph if best.plan.division is None else graph), best


def _check(options: CompileOptions) -> None:
    if options.selector != FASTEST:
        raise UsageError("stages, micro-batches and replicas are chosen by time", hint="leave out --selector")
    refused = {
        "--pin": options.pins,
        "--exchange": options.exchanges,
        "--train": options.train,
        "--input-placement once": options.input_placement == "once",
    }
    for spelling, is_set in refused.items():
        if is_set:
            raise UsageError(
                f"a plan with stages, micro-batches or replicas cannot have {spelling}",
                hint=f"leave out {spelling.split()[0]}, or --stages, --microbatches, --replicas and --objective",
            )
    for count, spelling in (
        (options.stages, "--stages"),
        (options.microbatches, "--microbatches"),
        (options.replicas, "--replicas"),
    ):
        if count is not None and not 1 <= count <= MAX_DIVISIONS:
            raise UsageError(f"{spelling} is {count}, and must be between 1 and {MAX_DIVISIONS}")
