"""Says of one mutant of a plan how it ends, as `einc verify` and `einc run` treat it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType

import numpy as np

from einc.frontend import build
from einc.graph.graph import Graph
from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ReportedError
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.plan.codec import decode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Bundle, Tensor
from tests.mutation.plans import CASES, make_plan
from tests.mutation.running import RunningProcess, run_plan
from tests.support.graph_interpreter import interpret

MAX_SECONDS = 30
"""That reading and proving one mutant may take; all plans are small."""

_STAGES: dict[str, Callable[[Bundle], object]] = {"refused by the proof": prove}
REFUSED = ("refused when read", "refused by the proof", "refused by its figures", "refused by the model")
SAME = "the same in meaning"
FAULTS = (
    "accepted and wrong", "accepted and refused by the run", "accepted and failed", "internal error", "hung", "died",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a mutant ended: one of `REFUSED`, `SAME` or `FAULTS`, and why."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a plan must compute: arrays by the names of tensors, the outputs in f64, and how far results may be off."""

    arrays: dict[str, Array]
    expected: dict[str, Array]
    allowed: dict[str, float]


@cache
def find_meaning(case: str) -> Meaning:
    """By the model's operators on f64, without cuts. The unchanged plan says how far rounding goes: results may be off
    four times as far, as sums may be added up in another order."""
    bundle = decode(make_plan(case))
    arrays = {t.name: _draw(t, CASES[case].arrays) for t in bundle.tensors if t.kind != "value"}
    graph = _build_graph(case, "f64")
    wide = {name: array if array.dtype.kind in "biu" else _widen(array) for name, array in arrays.items()}
    expected = interpret(graph, wide)
    found = run_plan(bundle, arrays)
    allowed = {}
    for name, reference in expected.items():
        scale = float(np.abs(reference).max())
        error = float(np.abs(_widen(found[name]) - _widen(reference)).max())
        allowed[name] = max(4 * error, 1e-6 * scale if reference.dtype.kind == "f" else 0.0)
        assert error <= 0.1 * scale, (case, name, error, scale)
    return Meaning(arrays, expected, allowed)


def judge(case: str, data: bytes, process: RunningProcess) -> Verdict:
    """How the plan file `data`, a mutant of the case's plan, ends."""
    outcome = "refused when read"
    try:
        with _time_limit():
            bundle = decode(data)
            for stage, check in _STAGES.items():
                outcome = stage
                check(bundle)
    except ReportedError as error:
        if error.exit_code == 70:
            return Verdict("internal error", f"{outcome}: {error.render()}")
        return Verdict(outcome, error.render())
    except _Hung:
        return Verdict("hung", outcome)
    except Exception as error:
        return Verdict("internal error", f"{outcome}: {type(error).__name__}: {error}")
    meaning = find_meaning(case)
    results = process.run(bundle, _arrays_of(bundle, meaning))
    if isinstance(results, str):
        kind = results.partition(":")[0]
        known = {"refused": "accepted and refused by the run", "failed": "accepted and failed"}
        return Verdict(known.get(kind, kind), results)
    difference = _find_difference(results, meaning)
    return Verdict("accepted and wrong", difference) if difference else Verdict(SAME)


def _arrays_of(bundle: Bundle, meaning: Meaning) -> dict[str, Array]:
    """The arrays under the names that the plan asks for. A plan that asks for others gets what it says it is: that the
    names are not the model's is found by comparing the outputs, or by the model."""
    return {t.name: meaning.arrays[t.name] for t in bundle.tensors if t.name in meaning.arrays}


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
    return build(one.source, one.file, options.definitions, options.preset, dtype)


def _draw(tensor: Tensor, given: Mapping[str, list[int]]) -> Array:
    """Small inputs, so that an epsilon beside their squares counts."""
    if tensor.name in given:
        return np.array(given[tensor.name], storage_dtype(tensor.dtype)).reshape(tensor.shape)
    array = make_random_array(tensor, 3)
    wants_small = tensor.kind == "input" and array.dtype.kind not in "biu"
    return (array * np.asarray(0.125, array.dtype)).astype(array.dtype) if wants_small else array


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind not in "biu" else array.astype(np.int64)


class _Hung(BaseException):
    """Reading or proving took too long."""


@contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise _Hung

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
