"""Whether any plan that is drawn or well known is predicted faster than the one that the compiler chooses.

    python -m tests.bench.optimality [--draws 20] [--schedule naive|synthesized] [--case NAME | FILE]...
        [--machine NAME]... [--sites P]... [--climb STEPS] [--climb-seconds S] [--shapes] [--growth] [--known]
        [--processes 2] [--file build/optimality.json] [--write]

A case is a workload, or the model of a file, on the first sites of a machine. Its draws come from the candidates of
`--selector random` and, in turn, from all those that `fastest` chooses among. Well-known plans are those of
`--baseline`. Models that decode have four layers here. With `--climb`, a random plan is also improved by so many random
changes of single operators, of which those are kept that make it faster, for so many seconds of the processor at most.
With `--shapes`, plans of data x tensor x sequence x pipeline are compared, too, in all shapes that divide
(`hand_made`), and each case has a row of its own. `--growth` compares instead what is chosen for 1 to 8 sites: no
preset may get slower with another site, and attention over 128K tokens must speed up nearly as the sites do.

Plans that must take longer than the chosen one, whatever their placement and exchanges (`plan_bounds`), are counted and
not built.
What is known already is not computed again while the compiler's sources are the same, and further draws are added to
it. Exits 1 if anything is faster than what was chosen, or slower than it should be. `--known` computes nothing, and
shows what is known of all cases. `--write` puts the tables into docs/optimality.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.bench.experiments.configurations import BLOCKS, CHAINS, MODELS, TITLES
from tests.bench.experiments.runner import digest_sources

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "build" / "optimality.json"
PAGE = ROOT / "docs" / "optimality.md"
MACHINES = ("dgx-a100", "dgx-h100", "dgx-v100")
SITES = (5, 7, 8)
ROUNDING = 1e-9
"""Times that differ by this part are the same."""

LAYERS = (("n_layers", "4"),)
LARGE = (("d_model", "8192"), ("heads_q", "64"), ("heads_kv", "8"), ("d_ff", "28672"))
DECODES = {
    f"decode-{size}-b{batch}": (*LAYERS, *definitions, ("batch", str(batch)))
    for size, definitions in (("8b", ()), ("70b", LARGE))
    for batch in (1, 8, 64)
}
"""Steps of decoding with four layers of Llama 8B and 70B, by the number of sequences."""

FIGURES = {("chain_b", "dgx-v100", 8): 5.109}
"""What a first version of the search found with naive exchanges, in ms with three decimals: nothing may be slower."""

SPEEDUP = 1.15
"""On n of 8 sites, attention over 128K tokens takes at most so many times the time on 8 sites times 8 / n."""


@dataclass(frozen=True, order=True, slots=True)
class Case:
    """A workload on the first `sites` sites of a machine."""

    schedule: str
    workload: str
    machine: str
    sites: int

    def __str__(self) -> str:
        return f"{self.workload} on {self.sites} of {self.machine}, {self.schedule}"


@dataclass(slots=True)
class Result:
    """Predicted ms. A draw is None if it was not built, since it must be slower than the chosen plan (`slower` counts
    these), since it does not fit, or since its sites cannot talk. So are well-known plans; `slower_baselines` has the
    names of those that must be slower. `climbed` is what hill climbing of `steps` steps reached, of which `climbs` were
    made in time. `shapes` has what plans of shapes by hand take; None before they are compared."""

    chosen_ms: float = math.inf
    contender: str = ""
    draws: list[float | None] = field(default_factory=list)
    slower: int = 0
    baselines: dict[str, float | None] = field(default_factory=dict)
    slower_baselines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    climbed: float = math.inf
    steps: int = 0
    climbs: int = 0
    shapes: dict[str, float | None] | None = None

    @property
    def fastest_draw(self) -> float:
        return min((draw for draw in self.draws if draw is not None), default=math.inf)

    @property
    def fastest_baseline(self) -> tuple[float, str]:
        built = [(ms, name) for name, ms in self.baselines.items() if ms is not None]
        return min(built, default=(math.inf, "no well-known plan"))

    @property
    def fastest_shape(self) -> tuple[float, str]:
        built = [(ms, name) for name, ms in (self.shapes or {}).items() if ms is not None]
        return min(built, default=(math.inf, "no shape"))


@dataclass(frozen=True, slots=True)
class Effort:
    """What is compared with each chosen plan."""

    draws: int
    steps: int = 0
    climb_seconds: float = math.inf
    shapes: bool = False

    def lacks(self, known: Result | None) -> bool:
        """Whether something is missing in what is known."""
        if known is None or len(known.draws) < self.draws or known.steps < self.steps:
            return True
        return self.shapes and known.shapes is None


def compare(case: Case, known: Result | None, effort: Effort) -> Result:
    """What is chosen, and the plans beside it. Takes from `known` what it has, and draws as many as are missing."""
    from einc.logical.problem import build_problem
    from einc.search.baselines import build_baselines

    start = time.monotonic()
    result = known or _choose(case)
    if effort.lacks(result):
        compiled = _compile(case, schedule="naive", selector="random")  # the graph is the same, and this is quick
        builder = _Builder(case, compiled.graph, compiled.target.machine, result.chosen_ms)
        problem = build_problem(compiled.graph, case.sites, flexible=True)
        if not result.baselines:
            for baseline in build_baselines(compiled.graph, problem, case.sites):
                if baseline.chosen is not None:
                    ms = builder.build(problem, baseline.chosen, spread=baseline.spread)
                    result.baselines[baseline.name] = ms
                    result.slower_baselines += [baseline.name] * builder.was_slower
        strict = build_problem(compiled.graph, case.sites)
        for seed in range(len(result.draws), effort.draws):
            offered = problem if seed % 2 else strict
            generator = random.Random(seed)  # as `--selector random --seed` draws
            ms = builder.build(offered, [int(generator.random() * len(one)) for one in offered.candidates])
            result.draws.append(ms)
            result.slower += builder.was_slower
        if effort.shapes and result.shapes is None:
            result.shapes = builder.time_shapes(problem)
        if effort.steps > result.steps:
            result.climbed, result.climbs = climb(builder, problem, effort.steps, effort.climb_seconds)
            result.steps = effort.steps
    result.seconds += time.monotonic() - start
    return result


def climb(builder: _Builder, problem: Any, steps: int, seconds: float, seed: int = 0) -> tuple[float, int]:
    """The predicted ms of a random plan after so many random changes of single operators, those that are kept; and how
    many were tried in so many seconds of the processor."""
    generator, deadline = random.Random(seed), time.process_time() + seconds
    plan = [generator.randrange(len(options)) for options in problem.candidates]
    fastest = math.inf
    for step in range(1 + steps):  # the plan itself is first
        if time.process_time() >= deadline:
            return fastest, step
        changed = list(plan)
        if fastest < math.inf:
            node = generator.randrange(len(plan))
            changed[node] = generator.randrange(len(problem.candidates[node]))
        ms = builder.build(problem, changed, limit=fastest)
        if ms is not None and ms < fastest:
            plan, fastest = changed, ms
    return fastest, steps


def _compile(case: Case, **how: str) -> Any:
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    model = case.workload if case.workload in CHAINS else "llama_block"
    model = "llama_decode" if case.workload in DECODES else model
    file = Path(case.workload) if case.workload.endswith(".ein") else MODELS / f"{model}.ein"
    options = CompileOptions(
        machine=case.machine,
        devices=case.sites,
        definitions=DECODES.get(case.workload, ()),
        preset=case.workload if case.workload in BLOCKS else None,
    )
    return compile_model(file.read_text(encoding="utf-8"), file.name, replace(options, **how))


def _choose(case: Case) -> Result:
    """What `einc compile` chooses."""
    from einc.errors import CapacityError

    compiled = _compile(case, schedule=case.schedule)
    with suppress(CapacityError):  # otherwise infinitely many ms
        contender = next(one.name for one in compiled.plan.contenders if one.chosen)
        return Result(compiled.program.predicted_ms, contender)
    return Result()


class _Builder:
    """Builds and predicts plans of one graph; exchanges that were found for one serve the next."""

    def __init__(self, case: Case, graph: Any, machine: Any, limit: float) -> None:
        from einc.physical.schedule import NaiveScheduler
        from einc.physical.synthesis import SynthesizingScheduler
        from tests.support.plan_bounds import PlanBounds

        self._graph, self._machine, self._sites, self._limit = graph, machine, case.sites, limit
        self._bounds = PlanBounds(graph, machine, case.sites)
        self._naive = NaiveScheduler(machine, case.sites, timed=False)
        self._synthesizing = None if case.schedule == "naive" else SynthesizingScheduler(machine, case.sites)
        self.was_slower = False

    def build(
        self, problem: Any, chosen: Sequence[int], spread: bool = True, limit: float | None = None
    ) -> float | None:
        """The predicted ms; None where the plan does not fit, where sites cannot talk, or if it must be slower than the
        limit, by default that of the chosen plan: then `was_slower` is true."""
        from einc.errors import CapacityError, MachineError
        from einc.logical.optimize import build_choices
        from einc.logical.plan import LogicalPlan
        from einc.physical.build import build, build_fast

        candidates = [options[c] for options, c in zip(problem.candidates, chosen, strict=True)]
        limit = (self._limit if limit is None else limit) * (1 + ROUNDING)
        self.was_slower = self._bounds.bound(candidates, limit) > limit
        if self.was_slower:
            return None
        choices = build_choices(self._graph, problem, chosen)
        plan = LogicalPlan(self._graph, self._sites, "random", choices, exact=False, cut_cost=0, spread=spread)
        try:
            if self._synthesizing is None:
                return build(plan, self._machine, self._naive).predicted_ms
            return build_fast(plan, self._machine, self._synthesizing).predicted_ms
        except (CapacityError, MachineError):
            return None

    def time_shapes(self, problem: Any) -> dict[str, float | None]:
        """The predicted ms of plans of data x tensor x sequence x pipeline; None where one does not fit or must be
        slower than the chosen plan."""
        from tests.bench.hand_made import list_undivided, time_pipelines

        times = {
            name: self.build(problem, chosen) for name, chosen in list_undivided(self._graph, problem, self._sites)
        }
        naive = self._synthesizing is None
        return times | dict(time_pipelines(self._graph, self._machine, self._sites, naive=naive))


def list_cases(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    if options.growth:
        workloads = tuple(options.case or BLOCKS)
        machines = tuple(options.machine or ("dgx-h100", "dgx-a100"))
        sites = tuple(options.sites or range(1, 9))
    else:
        workloads = tuple(options.case or (*BLOCKS, *CHAINS, *DECODES))
        machines, sites = tuple(options.machine or MACHINES), tuple(options.sites or SITES)
    cases = [Case(options.schedule, w, m, p) for m in machines for p in sites for w in workloads]
    return sorted(cases, key=lambda case: case.workload in DECODES)  # these take longest


def list_faults(results: dict[Case, Result], growth: bool) -> Iterator[str]:
    """What should not be, one line each."""
    for case, own in sorted(results.items()):
        limit = own.chosen_ms * (1 - ROUNDING)
        if own.fastest_draw < limit:
            seed = own.draws.index(own.fastest_draw)
            yield f"{case}: {own.chosen_ms:.4f} ms, and draw {seed} takes {own.fastest_draw:.4f}"
        if own.climbed < limit:
            yield f"{case}: {own.chosen_ms:.4f} ms, and hill climbing of {own.climbs} steps takes {own.climbed:.4f}"
        for known_ms, name in (own.fastest_baseline, own.fastest_shape):
            if known_ms < limit:
                yield f"{case}: {own.chosen_ms:.4f} ms, and {name} takes {known_ms:.4f}"
        figure = FIGURES.get((case.workload, case.machine, case.sites))
        if figure is not None and case.schedule == "naive" and own.chosen_ms > figure + 0.0005:
            yield f"{case}: {own.chosen_ms:.4f} ms, and it should be at most {figure:.3f}"
    for case, own in sorted(results.items()) if growth else ():
        fewer = results.get(Case(case.schedule, case.workload, case.machine, case.sites - 1))
        if fewer is not None and own.chosen_ms > fewer.chosen_ms * (1 + ROUNDING):
            yield f"{case}: {own.chosen_ms:.4f} ms, and {fewer.chosen_ms:.4f} on one site less"
        all_sites = results.get(Case(case.schedule, case.workload, case.machine, 8))
        if case.workload == "b1x128k" and case.sites >= 4 and all_sites is not None:
            most = SPEEDUP * all_sites.chosen_ms * 8 / case.sites
            if own.chosen_ms > most:
                yield f"{case}: {own.chosen_ms:.4f} ms, and it should be at most {most:.4f}"


def tabulate(results: dict[Case, Result]) -> str:
    """For every workload and schedule: how many plans must be slower than what was chosen, and the fastest of the rest
    relative to it."""
    rows = [
        "| workload | exchanges | cases | drawn | slower by bound | fastest drawn "
        "| well-known | slower by bound | fastest well-known |",
        "| --- | --- " + "| ---: " * 7 + "|",
    ]
    groups: dict[tuple[str, str], list[Result]] = {}
    for case, own in results.items():
        if own.draws and own.chosen_ms < math.inf:
            groups.setdefault((case.workload, case.schedule), []).append(own)
    for (workload, schedule), group in groups.items():
        cells: list[object] = [TITLES.get(workload, workload), schedule, len(group)]
        cells += [sum(len(own.draws) for own in group), sum(own.slower for own in group)]
        cells.append(_ratio(min(own.fastest_draw / own.chosen_ms for own in group)))
        cells += [sum(len(own.baselines) for own in group), sum(len(own.slower_baselines) for own in group)]
        cells.append(_ratio(min(own.fastest_baseline[0] / own.chosen_ms for own in group)))
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def tabulate_cases(results: dict[Case, Result]) -> str:
    """For every case: the fastest of the plans that were drawn, well known, made by hand in shapes, and climbed to,
    relative to what was chosen."""
    rows = [
        "| workload | sites of | exchanges | chosen, ms | drawn | fastest | well-known | fastest "
        "| shapes | fastest | climbed, steps | reached |",
        "| --- | --- | --- " + "| ---: " * 9 + "|",
    ]
    for case, own in results.items():
        name = Path(case.workload).stem if case.workload.endswith(".ein") else TITLES.get(case.workload, case.workload)
        cells: list[object] = [name, f"{case.machine}, {case.sites}", case.schedule, _milliseconds(own.chosen_ms)]
        for count, ms in (
            (len(own.draws), own.fastest_draw),
            (len(own.baselines), own.fastest_baseline[0]),
            (len(own.shapes or {}), own.fastest_shape[0]),
            (own.climbs, own.climbed),
        ):
            cells += [count, _ratio(ms / own.chosen_ms)]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def _ratio(value: float) -> str:
    return "" if value == math.inf else f"{value:.3f}"


def tabulate_growth(results: dict[Case, Result]) -> str:
    """Predicted ms on 1 to 8 sites."""
    sites = sorted({case.sites for case in results})
    rows = [
        "| workload | machine | exchanges | " + " | ".join(map(str, sites)) + " |",
        "| --- | --- | --- " + "| ---: " * len(sites) + "|",
    ]
    lines: dict[tuple[str, str, str], dict[int, float]] = {}
    for case, own in results.items():
        lines.setdefault((case.workload, case.machine, case.schedule), {})[case.sites] = own.chosen_ms
    for (workload, machine, schedule), own in sorted(lines.items()):
        cells = " | ".join("" if p not in own else _milliseconds(own[p]) for p in sites)
        rows.append(f"| {TITLES.get(workload, workload)} | {machine} | {schedule} | {cells} |")
    return "\n".join(rows)


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < math.inf else "does not fit"


class Memory:
    """Results in a JSON file, for one state of the sources; those of other states are forgotten."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sources = digest_sources()
        self.results: dict[Case, Result] = {}
        if file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["sources"] == self._sources:
                for record in document["results"]:
                    self.results[Case(**record["case"])] = Result(**record["result"])

    def keep(self, case: Case, result: Result) -> None:
        """Writes under another name first, so that what is there is whole."""
        self.results[case] = result
        records = [{"case": asdict(one), "result": asdict(own)} for one, own in sorted(self.results.items())]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({"sources": self._sources, "results": records}, indent=1), encoding="utf-8")
        draft.replace(self._file)


def run(cases: Sequence[Case], memory: Memory, effort: Effort, processes: int) -> None:
    """Computes what is missing, and says what was found of each case."""
    known = memory.results
    missing = [case for case in cases if effort.lacks(known.get(case))]
    start = time.monotonic()
    print(f"{len(cases)} cases, {len(missing)} to compute", flush=True)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_calm) as pool:
        pending = {pool.submit(compare, case, known.get(case), effort): case for case in missing}
        try:
            for number, done in enumerate(as_completed(pending)):
                case, own = pending[done], done.result()
                memory.keep(case, own)
                known_ms, name = min(own.fastest_baseline, own.fastest_shape)
                print(
                    f"{time.monotonic() - start:6.0f} s [{number + 1}/{len(missing)}] {case}: {own.chosen_ms:.4f} ms "
                    f"({own.contender}); drawn {own.fastest_draw / own.chosen_ms:.3f} "
                    f"and {own.slower} of {len(own.draws)} slower by bound; {name} {known_ms / own.chosen_ms:.3f}, "
                    f"climbed {own.climbed / own.chosen_ms:.3f}, "
                    f"{own.seconds:.0f} s",
                    flush=True,
                )
                for fault in list_faults({case: own}, growth=False):
                    print(f"  {fault}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _calm() -> None:
    """A process of the pool computes with one thread."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def write_section(name: str, text: str) -> None:
    """Puts the text between the marks of that name on the page."""
    page = PAGE.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.split(first)
    PAGE.write_text(f"{before}{first}\n{text}\n{last}{rest.split(last)[1]}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.optimality", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, help="plans drawn for each case (20; none with --growth)")
    parser.add_argument("--schedule", default="naive", choices=("naive", "synthesized"))
    parser.add_argument("--case", action="append", help=f"{', '.join((*BLOCKS, *CHAINS, *DECODES))} (all), or a file")
    parser.add_argument("--machine", action="append")
    parser.add_argument("--sites", type=int, action="append")
    parser.add_argument("--climb", type=int, default=0, help="steps of hill climbing from a random plan")
    parser.add_argument("--climb-seconds", type=float, default=60, help="of the processor, for each case (60)")
    parser.add_argument("--shapes", action="store_true", help="compare plans of all shapes that a person makes, too")
    parser.add_argument("--growth", action="store_true", help="compare what is chosen for 1 to 8 sites")
    parser.add_argument("--known", action="store_true", help="compute nothing, and show what is known of all cases")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/optimality.md")
    options = parser.parse_args(arguments)
    if options.shapes and options.write:
        parser.error("--shapes prints its table: the page has that of single runs")
    cases, memory = list_cases(options), Memory(options.file)
    if options.known:
        schedules = ("naive", "synthesized")
        both = [replace(case, schedule=schedule) for schedule in schedules for case in cases]
        cases = [case for case in both if case in memory.results]
    else:
        draws = (0 if options.growth else 20) if options.draws is None else options.draws
        effort = Effort(draws, options.climb, options.climb_seconds, options.shapes)
        run(cases, memory, effort, options.processes)
    found = {case: memory.results[case] for case in cases}
    show = tabulate_growth if options.growth else tabulate_cases if options.shapes else tabulate
    table = show(found)
    faults = list(list_faults(found, options.growth))
    print(f"\n{table}\n\n" + ("\n".join(faults) or "nothing is faster than what was chosen"))
    if options.write:
        write_section("growth" if options.growth else "optimality", table)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
