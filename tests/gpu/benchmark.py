"""One benchmark on one GPU: a plan for one site and one for eight, against PyTorch and JAX, in turns.

Everybody computes on the same arrays. A measurement is the time on the wall of several computations that are enqueued
one after another without waiting, divided by their number, so that nobody's launch is counted that the GPU does not
wait for. The turns are interleaved, and the medians are reported.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.execution.session import Session
from einc_runtime.kernels.cuda import attention_libraries
from einc_runtime.kernels.cuda.tuning import Tuning
from einc_runtime.plan.schema import Bundle
from tests.gpu import gpu_states
from tests.gpu.cases import Benchmark, Definitions
from tests.gpu.ceilings import Ceilings
from tests.gpu.correctness import attention_by, largest_error
from tests.gpu.places import Place
from tests.gpu.products import by_algorithm
from tests.gpu.steps import by_pytorch, steps

ROUNDS = 7
PROPOSALS, FOR_TUNING = 8, 10.0
"""Algorithms of cuBLASLt that are tried for each product, and seconds after which no product is begun."""
LONGEST = 4000
"""Characters of a traceback."""
SITES = 8
ONE, MANY, OWN, TUNED = "einc", f"einc, {SITES} sites", "einc, own attention", "einc, tuned"
EAGER, FAST, JAX = "torch eager", "torch compiled, CUDA graph", "jax"
NO_TIME = "there was no time for it"

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Contender:
    """`enqueue` starts one computation, `wait` waits for all of them, `result` gives the output.

    `steps` tells where the milliseconds of a computation go, and `products` what other algorithms take for them.
    """

    enqueue: Callable[[], Any]
    wait: Callable[[], Any]
    result: Callable[[], Any]
    close: Callable[[], Any] = _nothing
    steps: Callable[[Ceilings, float], list[str]] | None = None
    products: Callable[[], list[str]] = list


@dataclass(slots=True)
class Outcome:
    """Milliseconds by contender; what went wrong with others; einc's largest errors against PyTorch, by contender.

    `complete` once all contenders have been measured in turns; before that each was measured by itself. `samples` are
    the milliseconds of every round, of which `ms` are the medians, and `states` the GPU's between the rounds. `steps`
    are lines for the page, `step_ms` the milliseconds of products and attention in the plan for one site, and `alone`
    what libraries take for each of them; `tracebacks` are what the problems say in full.
    """

    name: str
    ms: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    states: list[dict[str, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    tracebacks: dict[str, str] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)
    step_ms: dict[str, float] = field(default_factory=dict)
    alone: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    host_us: dict[str, float] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    def take(self, samples: Mapping[str, list[float]]) -> None:
        self.samples |= samples
        self.ms |= {name: median(own) for name, own in samples.items()}


def compiled(benchmark: Benchmark, definitions: Definitions, sites: int) -> Bundle:
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    options = CompileOptions(machine="dgx-h100", devices=sites, definitions=definitions, schedule="naive")
    return compile_model(benchmark.text(), f"{benchmark.model}.ein", options).bundle


def run(benchmark: Benchmark, place: Place, seconds: float, ceilings: Ceilings | None = None) -> Iterator[Outcome]:
    """Outcomes with one contender more each, then all of them in turns, and in the end with where the time goes; no
    contender is begun after the time. Without ceilings there is nothing to hold the steps against, and no table."""
    begin = perf_counter()
    outcome = Outcome(benchmark.name)
    definitions = place.definitions(benchmark)
    bundle = compiled(benchmark, definitions, 1)
    arrays = _drawn(bundle, place)
    makers: dict[str, Callable[[], Contender]] = {
        ONE: partial(_einc, ONE, bundle, arrays, outcome, place),
        EAGER: partial(_torch, bundle, arrays, outcome, place, "eager"),
        MANY: lambda: _einc(MANY, compiled(benchmark, definitions, SITES), arrays, outcome, place),
        FAST: partial(_torch, bundle, arrays, outcome, place, "compiled"),
        JAX: partial(_jax, bundle, arrays, outcome, place),
        TUNED: partial(_tuned, bundle, arrays, outcome, place),
        OWN: partial(_with_own_attention, bundle, arrays, outcome, place),
    }
    is_block = benchmark.model == "llama_block"
    for name, there in ((OWN, is_block), (TUNED, is_block), (MANY, benchmark.many), (JAX, benchmark.many)):
        if not there:
            del makers[name]
    contenders: dict[str, Contender] = {}
    try:
        for name, make in makers.items():
            if perf_counter() - begin > seconds:
                outcome.problems[name] = NO_TIME
                continue
            try:
                contender = make()
                contenders[name] = contender
                outcome.take(measured({name: contender}, place.seconds, rounds=1))
                if EAGER in contenders and name in (ONE, EAGER, MANY, OWN, TUNED):
                    _compare(contenders, outcome)
            except Exception as error:
                contenders.pop(name, None)
                _blame(outcome, name, error)
            yield outcome
        rounds, states = (2, None) if place.rehearsal else (ROUNDS, outcome.states)
        outcome.take(measured(contenders, place.seconds, rounds, states))
        outcome.complete = True
        yield outcome
        for name, tell in _tellers(bundle, contenders, outcome, place, ceilings).items():
            try:
                outcome.steps[name] = tell()
            except Exception as error:
                _blame(outcome, f"steps of {name}", error)
        yield outcome
    finally:
        for contender in contenders.values():
            contender.close()
        contenders.clear()
        makers.clear()
        place.tidy()


def _blame(outcome: Outcome, name: str, error: Exception) -> None:
    outcome.problems[name] = f"{type(error).__name__}: {error}"[:400]
    outcome.tracebacks[name] = traceback.format_exc()[-LONGEST:]


def _tellers(
    bundle: Bundle, contenders: Mapping[str, Contender], outcome: Outcome, place: Place, ceilings: Ceilings | None
) -> dict[str, Callable[[], list[str]]]:
    found = {
        name: partial(contender.steps, ceilings, outcome.ms[name])
        for name, contender in contenders.items()
        if ceilings is not None and contender.steps is not None and name in (ONE, MANY)
    }
    if EAGER in contenders:
        found["torch"] = partial(by_pytorch, bundle, outcome.alone, place)
    if ONE in contenders and not place.rehearsal:
        found["products"] = contenders[ONE].products
    return found


def _compare(contenders: Mapping[str, Contender], outcome: Outcome) -> None:
    """Errors of einc's that are not known yet."""
    new = [name for name in (ONE, MANY, OWN, TUNED) if name in contenders and name not in outcome.errors]
    theirs = {"y": contenders[EAGER].result()}
    for name in new:
        outcome.errors[name] = largest_error({"y": contenders[name].result()}, theirs)


def measured(
    contenders: Mapping[str, Contender],
    seconds: float,
    rounds: int = ROUNDS,
    states: list[dict[str, str]] | None = None,
) -> dict[str, list[float]]:
    """The milliseconds of one computation in every round, by contender; the GPU's states after rounds go to `states`,
    each while the GPU computes, untimed."""
    counts = {}
    for name, contender in contenders.items():
        _time(contender, 2)
        counts[name] = max(3, int(seconds / max(_time(contender, 2), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(1e3 * _time(contenders[name], counts[name]))
        if states is not None:
            for _ in range(counts[name]):
                contenders[name].enqueue()
            states.append({"round": str(turn), **gpu_states.sample()})
            contenders[name].wait()
    return times


def _time(contender: Contender, count: int) -> float:
    contender.wait()
    begin = perf_counter()
    for _ in range(count):
        contender.enqueue()
    contender.wait()
    return (perf_counter() - begin) / count


def _drawn(bundle: Bundle, place: Place) -> Arrays:
    """N(0, 1) in the tensors' type, weights divided by the square root of their fan-in; drawn on the GPU. Ids are any,
    and new tokens of decoding stand in the last places of their caches."""
    import torch

    generator = torch.Generator(place.torch).manual_seed(7)
    arrays = {}
    rows = {tensor.name: tensor.shape for tensor in bundle.tensors}
    for tensor in bundle.tensors:
        if tensor.kind == "value":
            continue
        kind = storage_dtype(tensor.dtype)
        if tensor.name == "positions":
            arrays[tensor.name] = np.full(tensor.shape, rows["keys.0"][1] // tensor.shape[0] - 1, kind)
        elif tensor.dtype == "i64":
            drawn = torch.randint(rows["table"][0], tensor.shape, generator=generator, device=place.torch)
            arrays[tensor.name] = drawn.cpu().numpy()
        else:
            values = torch.randn(tensor.shape, generator=generator, device=place.torch, dtype=torch.float32)
            values /= tensor.fan_in**0.5 if tensor.kind == "weight" else 1.0
            narrow = values.bfloat16() if tensor.dtype == "bf16" else values.half()
            arrays[tensor.name] = narrow.view(torch.int16).cpu().numpy().view(kind)
    return arrays


def _tuned(bundle: Bundle, arrays: Arrays, outcome: Outcome, place: Place) -> Contender:
    """One site, with the algorithms and kernels of our own that `einc tune` would choose."""
    from einc_runtime.execution.cuda.tuning import collect_choices

    begin, executor = perf_counter(), place.executor(bundle)
    try:
        session = Session(bundle, executor=executor)
        session.load_all(arrays)
        session.execute()
        timed = executor.tune(PROPOSALS, FOR_TUNING)
    finally:
        executor.close()
    lines = [
        f"{TUNED}: {one.alternatives.name}: {one.ms[0]:.4f} -> {one.ms[one.chosen]:.4f} ms"
        f"{_name_record(one.alternatives.records[one.chosen])}, {len(one.ms)} ways, {one.ms.count(math.inf)} refused"
        for one in timed
    ]
    outcome.kernels += [*lines, f"{TUNED}: {len(timed)} products in {perf_counter() - begin:.0f} s"]
    return _einc(TUNED, bundle, arrays, outcome, place, collect_choices(timed))


def _name_record(record: bytes | str) -> str:
    return f" by our own kernel {record}" if isinstance(record, str) else ""


def _einc(
    name: str, bundle: Bundle, arrays: Arrays, outcome: Outcome, place: Place, tunings: Sequence[Tuning] = ()
) -> Contender:
    executor = place.executor(bundle, tunings=tunings)
    session = Session(bundle, executor=executor)
    session.load_all(arrays)
    launches = []
    for _ in range(30):
        session.execute()
        launches.append(executor.host_us)
    outcome.host_us[name] = median(launches)
    facts = executor.facts().cuda
    assert facts is not None
    outcome.kernels += [f"{name}: {k.tasks} {k.kernel} by {k.provider} {k.version} {k.variant}" for k in facts.kernels]
    outcome.notes[name] = "; ".join([f"{asdict(facts.graph)}", *executor.notes])
    times = outcome.step_ms if name == ONE else {}
    tell = partial(steps, executor, times), partial(by_algorithm, executor, outcome.alone, place)
    output = output_name(bundle)
    return Contender(executor.enqueue, executor.wait, lambda: session.offload(output), executor.close, *tell)


def output_name(bundle: Bundle) -> str:
    names = [bundle.tensors[output.tensor].name for output in bundle.outputs]
    return "logits" if "logits" in names else "y"


def _with_own_attention(bundle: Bundle, arrays: Arrays, outcome: Outcome, place: Place) -> Contender:
    """One site, with our own kernel for attention instead of that of flash-attn or PyTorch."""
    with attention_by(attention_libraries.EINC_KERNEL):
        return _einc(OWN, bundle, arrays, outcome, place)


def _torch(bundle: Bundle, arrays: Arrays, outcome: Outcome, place: Place, how: str) -> Contender:
    import torch

    from tests.gpu.torch_models import given as torch_given
    from tests.gpu.torch_models import model_of

    torch.set_grad_enabled(False)
    model = model_of(bundle)
    assert model is not None, "every benchmark has a model in PyTorch"
    given = torch_given(bundle, arrays, device=place.torch)
    outcome.notes[f"torch {how}"] = torch.__version__
    if how == "eager":
        last = None

        def enqueue() -> None:
            nonlocal last
            last = model(given)

        return Contender(enqueue, place.wait, lambda: model(given).float().cpu().numpy())
    backend = "eager" if place.rehearsal else "inductor"
    fast = model_of(bundle, partial(torch.compile, fullgraph=True, dynamic=False, backend=backend))
    assert fast is not None
    if place.rehearsal:
        return Contender(lambda: fast(given), place.wait, lambda: fast(given).float().numpy())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fast(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # whatever threads of JAX do meanwhile
        result = fast(given)
    return Contender(graph.replay, place.wait, lambda: result.float().cpu().numpy(), graph.reset)


def _jax(bundle: Bundle, arrays: Arrays, outcome: Outcome, place: Place) -> Contender:
    from tests.gpu.jax_models import prepared

    function, version = prepared(bundle, arrays, "cpu" if place.rehearsal else "gpu")
    outcome.notes["jax"] = version
    last: list[Any] = [function()]

    def enqueue() -> None:
        last[0] = function()

    return Contender(enqueue, lambda: last[0].block_until_ready(), lambda: np.asarray(last[0]))
