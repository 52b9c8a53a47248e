"""Says of one mutant of a plan how it ends, as `einc verify` and `einc run` treat it."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import TypeVar

import numpy as np

from einc.compiler import derive
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.graph.graph import Graph
from einc.plan_reading.restore import restore_graph
from einc.report.document import explain
from einc.report.terminal import format_overview
from einc.verification.figures import verify_figures
from einc.verification.model import verify_model
from einc_runtime.cli.comparison import compare, tolerance_of
from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ReportedError
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.proved_plans import prove
from einc_runtime.plan.codec import decode
from einc_runtime.plan.schema import Bundle, Tensor
from tests.mutation.plans import CASES, make_plan
from tests.mutation.running import RunningProcess, name_of_result
from tests.support.graph_interpreter import interpret_steps

MAX_SECONDS = 30
"""Of a processor, that reading and proving one mutant may take; all plans are small."""

EXPLAINED, COMPILED = 8, 16
"""One in so many mutants is shown by `explain`, too, and one in so many run with kernels in machine code, whose results
are not compared: they round in other places."""

REFUSED = ("refused when read", "refused by the proof", "refused by its figures", "refused by the model")
SAME = "the same in meaning"
ACCEPTED_WRONG = "accepted and wrong"
PROVED_WRONG = "proved and wrong"
PROVED_NOT_RUN = "proved and refused by the run"
FAULTS = (
    ACCEPTED_WRONG, PROVED_WRONG, PROVED_NOT_RUN, "proved and failed", "internal error", "hung", "died",
)  # fmt: skip
"""Accepted is what all of `einc verify --model` accepts, proved what the runtime's proof does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a mutant ended: one of `REFUSED`, `SAME` or `FAULTS`, and why."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a plan must compute: the model's graph; of each step, the arrays that it loads by the names of tensors; and
    of all steps, by `name_of_result`, the outputs and states in f64, and how far results may be off."""

    graph: Graph
    steps: list[dict[str, Array]]
    expected: dict[str, Array]
    allowed: dict[str, float]


@cache
def find_meaning(case: str, process: RunningProcess) -> Meaning:
    """By the model's operators, without cuts: on f64, or where the case says so in its own types.

    The unchanged plan says how far rounding goes: results may be off four times as far, as sums may be added up in
    another order.
    """
    bundle = decode(make_plan(case))
    loaded = [t for t in bundle.tensors if t.kind != "value"]
    steps = [
        {t.name: _draw(t, CASES[case].arrays | chosen, number) for t in loaded if t.kind == "input" or number == 0}
        for number, chosen in enumerate(CASES[case].steps)
    ]
    reference = CASES[case].reference
    given = steps if reference is None else [_widen_all(step) for step in steps]
    expected = _name_results(interpret_steps(_build_graph(case, reference), given))
    found = process.run(bundle, steps)
    assert not isinstance(found, str), found
    assert found.keys() == expected.keys()
    allowed = {}
    for name, exact in expected.items():
        scale = float(np.abs(exact).max())
        error = float(np.abs(_widen(found[name]) - _widen(exact)).max())
        allowed[name] = max(4 * error, 1e-6 * scale if exact.dtype.kind == "f" else 0.0)
        assert error <= 0.1 * scale, (case, name, error, scale)
    return Meaning(fuse(_build_graph(case, None)), steps, expected, allowed)


def judge(case: str, data: bytes, process: RunningProcess) -> Verdict:
    """How the plan file `data`, a mutant of the case's plan, ends.

    What the runtime's proof accepts is run, and must compute what the plan itself says; what all accept, what the
    original model says. A plan with states is run for several steps, from the same states as the original.
    """
    reading = _try("refused when read", lambda: decode(data))
    if isinstance(reading, Verdict):
        return reading
    number = zlib.crc32(data)
    if number % EXPLAINED == 0:
        shown = _try(REFUSED[0], lambda: format_overview(explain(reading), str))
        if isinstance(shown, Verdict) and shown.outcome in FAULTS:
            return shown
    proof = _try("refused by the proof", lambda: prove(reading))
    if isinstance(proof, Verdict):
        return proof
    meaning = find_meaning(case, process)
    steps = _steps_of(meaning, reading)
    results = process.run(reading, steps)
    if number % COMPILED == 0 and not isinstance(results, str):
        compiled = process.run(reading, steps, native=True)
        results = compiled if isinstance(compiled, str) else results
    if isinstance(results, str):
        kind = results.partition(":")[0]
        fault = Verdict({"refused": PROVED_NOT_RUN, "failed": "proved and failed"}.get(kind, kind), results)
        if kind != "refused":
            return fault
    further: object = _try("refused by its figures", lambda: verify_figures(reading))
    if not isinstance(further, Verdict):
        further = _try("refused by the model", lambda: verify_model(reading, meaning.graph))
    if isinstance(further, Verdict) and further.outcome not in REFUSED:
        return further
    if isinstance(results, str):
        # Another computation may allow other values of its inputs than the original, whose values it is given.
        foreign = results.startswith("refused: value:")
        return further if foreign and isinstance(further, Verdict) else fault
    difference = _find_difference(results, meaning)
    if not isinstance(further, Verdict):
        return Verdict(ACCEPTED_WRONG, difference) if difference else Verdict(SAME)
    if difference is not None:
        own = _try(PROVED_WRONG, lambda: _name_results(interpret_steps(restore_graph(reading), steps)))
        if isinstance(own, Verdict):
            return own
        comparison = compare(results, own, tolerance_of(reading))
        if not comparison.holds:
            return Verdict(PROVED_WRONG, f"{comparison}; {further.outcome}: {further.reason}")
    return further


Result = TypeVar("Result")


def _try(outcome: str, step: Callable[[], Result]) -> Result | Verdict:
    """The result of a step, or `outcome` where it refuses the plan as it may."""
    try:
        with _time_limit():
            return step()
    except ReportedError as error:
        if error.exit_code == 70:
            return Verdict("internal error", f"{outcome}: {error.render()}")
        return Verdict(outcome, error.render())
    except _Hung:
        return Verdict("hung", outcome)
    except Exception as error:
        return Verdict("internal error", f"{outcome}: {type(error).__name__}: {error}")


def _steps_of(meaning: Meaning, bundle: Bundle) -> list[dict[str, Array]]:
    """The original's arrays, by position, where they fit what the plan asks for, and else random ones."""
    known = list(meaning.steps[0])
    steps = []
    for number, arrays in enumerate(meaning.steps):
        given = meaning.steps[0] | arrays
        found = {}
        for k, tensor in enumerate(t for t in bundle.tensors if t.kind != "value"):
            if number and tensor.kind != "input":
                continue  # weights and states stay
            array = given.get(tensor.name, given[known[k]] if k < len(known) else None)
            fits = array is not None and (array.shape, array.dtype) == (tensor.shape, storage_dtype(tensor.dtype))
            found[tensor.name] = array if array is not None and fits else make_random_array(tensor, 3 + number)
        steps.append(found)
    return steps


def _name_results(steps: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name_of_result(name, k): array for k, results in enumerate(steps) for name, array in results.items()}


def _find_difference(results: Mapping[str, Array], meaning: Meaning) -> str | None:
    if results.keys() != meaning.expected.keys():
        return f"outputs {', '.join(results)}"
    for name, expected in meaning.expected.items():
        found = _widen(results[name])
        if found.shape != expected.shape:
            return f"{name} has shape {found.shape}"
        off = np.abs(found - _widen(expected))
        if not (off <= meaning.allowed[name]).all():
            return f"{name} is off by {off.max():.3g}, allowed {meaning.allowed[name]:.3g}"
    return None


@cache
def _build_graph(case: str, dtype: str | None) -> Graph:
    one = CASES[case]
    options = one.compile_options()
    return derive(build(one.source, one.file, options.definitions, options.preset, dtype), options)


def _draw(tensor: Tensor, given: Mapping[str, list[int]], step: int) -> Array:
    """Small inputs, so that an epsilon beside their squares counts. Every step has its own."""
    if tensor.name in given:
        return np.array(given[tensor.name], storage_dtype(tensor.dtype)).reshape(tensor.shape)
    array = make_random_array(tensor, 3 + step)
    wants_small = tensor.kind == "input" and array.dtype.kind not in "biu"
    return (array * np.asarray(0.125, array.dtype)).astype(array.dtype) if wants_small else array


def _widen_all(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """In f64; integers and truth values as they are."""
    return {name: array if array.dtype.kind in "biu" else _widen(array) for name, array in arrays.items()}


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind not in "biu" else array.astype(np.int64)


class _Hung(BaseException):
    """Reading or proving took too long."""


@contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise _Hung

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
