"""One plan on one GPU against the operators' meaning on whole float64 arrays, and against PyTorch where it has a model.

The reference is computed from the same (rounded) inputs, in float64 throughout.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from einc_runtime.environment import ATTENTION
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.session import Session
from einc_runtime.kernels.cuda.attention_libraries import EINC_KERNEL
from einc_runtime.plan.schema import Bundle
from tests.gpu.cases import TOLERANCE, Case
from tests.gpu.layouts import Layout

Array = np.ndarray[Any, np.dtype[Any]]
MakeSession = Callable[[Bundle], Session]
LIBRARY, OWN_KERNEL = "library", "own kernel"
"""What computes attention: as the runtime chooses, which may be a library, or our own kernel."""


@dataclass(frozen=True, slots=True)
class Result:
    """`error` is the largest difference relative to the largest value; `torch_error` that against PyTorch.

    `errors` are both of these by what computed attention, where that was done in two ways (LIBRARY, OWN_KERNEL).
    `unchecked` says why the case was not run, or not as a whole. `bits` is a hash of what a reproducible plan puts out.
    """

    case: str
    sites: int
    error: float | None = None
    torch_error: float | None = None
    tolerance: float = 0.0
    same_bits: bool = False
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str = ""
    traceback: str = ""
    errors: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    unchecked: str = ""
    layout: str = Layout.ONE.value
    bits: str = ""

    @property
    def holds(self) -> bool:
        errors = [error for error in (self.error, self.torch_error) if error is not None]
        return not self.problem and bool(errors) and max(errors) <= self.tolerance and self.same_bits

    def record(self) -> dict[str, Any]:
        return asdict(self)


def compiled(case: Case, sites: int, dtype: str | None) -> Bundle:
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    divided = {"stages": 2, "microbatches": case.microbatches} if case.microbatches and sites > 1 else {}
    options = CompileOptions(
        machine="host",
        devices=sites,
        definitions=case.definitions,
        preset=case.preset,
        dtype=dtype,
        # It cuts small operators, too, so that every kernel and aggregation occurs; pipelines are of the usual one.
        selector="fastest" if divided else "eindecomp",
        reproducible=case.reproducible,
        schedule="naive",  # sites of one GPU exchange nothing that a schedule could make faster
        train="loss" if case.optimizer else None,
        optimizer=case.optimizer or None,
        **divided,
    )
    return compile_model(case.text(), f"{case.name}.ein", options).bundle


def arrays_of(bundle: Bundle, seed: int = 5) -> dict[str, Array]:
    """Random inputs; those that say places are made to be places, and what training keeps of squares is positive."""
    arrays = {t.name: make_random_array(t, seed) for t in bundle.tensors if t.kind != "value"}
    arrays |= {name: np.abs(array) for name, array in arrays.items() if name.endswith(".square")}
    generator = np.random.default_rng(seed)
    for tensor in bundle.tensors:
        if tensor.name in PLACES and tensor.kind == "input":
            arrays[tensor.name] = PLACES[tensor.name](tensor.shape, generator).astype(arrays[tensor.name].dtype)
    return arrays


PLACES: Mapping[str, Callable[[tuple[int, ...], np.random.Generator], Array]] = {
    "learning_rate": lambda shape, rng: np.full(shape, 0.01),
    "step": lambda shape, rng: np.full(shape, 3),
    "places": lambda shape, rng: np.concatenate([rng.permutation(18)[:11], rng.permutation(22)[: shape[0] - 11]]),
}
"""Inputs whose values must be distinct rows: those of the model `rows`, of two sequences. And what a step of training
is told."""


def reference(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in float64, by the operators' meaning on whole arrays."""
    from einc.plan_reading.restore import compute_outputs

    wide = compiled(case, 1, "f64")
    return compute_outputs(wide, {name: widened(array) for name, array in arrays.items()})


def widened(array: Array) -> Array:
    """Floats (bf16 among them) as float64; anything else as it is."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def largest_error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """Over all outputs; integers and truth values must be equal."""
    worst = 0.0
    for name, array in expected.items():
        own, true = widened(found[name]), widened(array)
        if own.shape != true.shape or own.dtype.kind != true.dtype.kind:
            return float("inf")
        if true.dtype.kind in "iub":
            worst = max(worst, 0.0 if np.array_equal(own, true) else float("inf"))
            continue
        finite = np.isfinite(true)
        if not np.array_equal(own[~finite], true[~finite], equal_nan=True) or not np.isfinite(own[finite]).all():
            return float("inf")
        largest = np.abs(true[finite]).max(initial=0.0)
        worst = max(worst, float(np.abs(own - true)[finite].max(initial=0.0) / (largest or 1.0)))
    return worst


def check(
    case: Case, sites: int, make_session: MakeSession, expected: Mapping[str, Array], torch: str | None
) -> Result:
    """Runs a case twice, and once more task by task; all three must agree to the bit. `torch` is PyTorch's device.

    Where libraries may do its attention, all of that is done once more with our own kernel.
    """
    begin = perf_counter()
    bundle = compiled(case, sites, case.dtype)
    arrays = arrays_of(bundle)
    kernels: set[str] = set()
    notes: dict[str, None] = {}
    found: dict[str, dict[str, Array]] = {}
    same = True
    for name, providers in attentions(bundle).items():
        with attention_by(providers), make_session(bundle) as session:
            runs = []
            for traced in (False, False, True):
                session.load_all(arrays)  # with states, which steps of training change
                session.execute(trace=traced)
                runs.append({tensor.name: session.offload(tensor.name) for tensor in session.outputs})
            kernels |= {f"{k.kernel}: {k.provider}" for k in (session.facts.cuda.kernels if session.facts.cuda else ())}
            notes |= dict.fromkeys(session.notes)
        same = same and all(a.tobytes() == other[name].tobytes() for other in runs[1:] for name, a in runs[0].items())
        found[name] = runs[0]
    theirs = None
    if torch is not None:
        from tests.gpu.torch_models import reference as torch_reference

        theirs = torch_reference(bundle, arrays, torch)
    errors = {
        name: (largest_error(own, expected), None if theirs is None else largest_error(own, theirs))
        for name, own in found.items()
    }
    dtypes = {tensor.dtype for tensor in bundle.tensors} & TOLERANCE.keys()
    tolerance = max(TOLERANCE[dtype] for dtype in dtypes)
    error = max(own for own, _ in errors.values())
    torch_error = None if theirs is None else max(own for _, own in errors.values() if own is not None)
    told, shown = tuple(sorted(kernels)), tuple(notes)
    result = Result(case.title, sites, error, torch_error, tolerance, same, told, shown, perf_counter() - begin)
    bits = hash_of(found[LIBRARY]) if bundle.reproducible else ""
    return replace(result, errors=errors if len(errors) > 1 else {}, bits=bits)


def hash_of(outputs: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(outputs.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def attentions(bundle: Bundle) -> dict[str, str | None]:
    """The providers of attention to be checked (values of EINC_ATTENTION): as the runtime chooses, and our own kernel,
    where libraries may compute it. They compute none of a reproducible plan."""
    dtypes = {bundle.tensors[op.inputs[0]].dtype for op in bundle.operations if op.kernel == "attention"}
    both = not bundle.reproducible and dtypes & {"f16", "bf16"} and os.environ.get(ATTENTION) != EINC_KERNEL
    return {LIBRARY: None, OWN_KERNEL: EINC_KERNEL} if both else {LIBRARY: None}


@contextmanager
def attention_by(providers: str | None) -> Iterator[None]:
    """With EINC_ATTENTION set to these providers; None is the runtime's own choice."""
    if providers is None:
        yield
        return
    before = os.environ.get(ATTENTION)
    os.environ[ATTENTION] = providers
    try:
        yield
    finally:
        if before is None:
            del os.environ[ATTENTION]
        else:
            os.environ[ATTENTION] = before
