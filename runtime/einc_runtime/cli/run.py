"""The command `run`: execute a plan on arrays, and compare its outputs with the expected ones.

`einc run` has one more option, `--check`, whose reference results need the compiler's operators.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import DEVICE_NUMBERS, command, json_option, ranks_option, shares_option
from einc_runtime.cli.blas import load_numpy
from einc_runtime.cli.failures import CheckFailed
from einc_runtime.cli.progress import show_phases
from einc_runtime.errors import MissingFault
from einc_runtime.text import format_count, format_memory

if TYPE_CHECKING:
    from pathlib import Path

    from einc_runtime.cli.comparison import Comparison
    from einc_runtime.cli.ranks import World
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.ranks.executor import RankExecutor
    from einc_runtime.execution.session import Session
    from einc_runtime.kernels.cuda.tuning import Tuning
    from einc_runtime.plan.schema import Bundle


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reference:
    """What a run is compared with: the outputs of a plan for its inputs and weights, and how far each output moves if
    every value is changed by a part of itself."""

    outputs: Callable[[Bundle, Mapping[str, Array]], Mapping[str, Array]]
    movements: Callable[[Bundle, Mapping[str, Array], float], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The arguments of `run`, as click gives them."""

    plan: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    targets: tuple[str, ...]
    backend: str
    devices: int | tuple[int, ...] | None
    no_peer: str
    expect: tuple[str, ...]
    repeat: int
    trace: str | None
    no_verify: bool
    tune: bool
    ranks: int | None
    sites_per_rank: int | tuple[int, ...] | None
    shards: bool
    as_json: bool

    @property
    def uses_of_stdout(self) -> list[str]:
        """The options that write to standard output."""
        uses = ["-o -" for target in self.targets if target.rpartition("=")[2] == output.STDOUT]
        uses += ["--trace -"] if self.trace == output.STDOUT else []
        return [*uses, "--json"] if self.as_json else uses


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("plan", metavar="PLAN"),
    click.option(
        "--inputs",
        multiple=True,
        metavar="x.npy | NAME=x.npy | all.npz | NAME=rand:SEED",
        help="The inputs; rand:SEED alone draws all others at random.",
    ),
    click.option(
        "--weights",
        multiple=True,
        metavar="FILE | DIR | w.npy | NAME=w.npy | rand:SEED",
        help="Safetensors or npz files, folders, single arrays; of several, the first with a weight counts.",
    ),
    click.option(
        "-o",
        "--output",
        "targets",
        multiple=True,
        metavar="y.npy | NAME=y.npy | all.npz",
        help="Where to write an output, or all; - is standard output.",
    ),
    click.option(
        "--backend",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        help="Run on GPUs (cuda) or on the CPU.",
    ),
    click.option("--devices", type=DEVICE_NUMBERS, help="The GPU of every site, such as 0,0,1,1."),
    click.option(
        "--no-peer",
        type=click.Choice(["stage", "refuse"]),
        default="stage",
        help="If GPUs cannot reach each other's memory: send through the host's memory, or refuse to run.",
    ),
    click.option("--expect", multiple=True, metavar="y.npy", help="Compare an output with a file."),
    click.option("--repeat", type=click.IntRange(min=1), default=1, help="Run this many times, and time each run."),
    click.option("--trace", metavar="t.json", help="Write the measured timeline."),
    click.option("--no-verify", is_flag=True, help="Do not prove the plan, as `verify` does, before it runs."),
    click.option("--tune", is_flag=True, help="First tune the plan on these GPUs, as `tune` does, if it is not yet."),
    ranks_option,
    shares_option,
    click.option("--shards", is_flag=True, help="With -o y.safetensors: every process writes its own part."),
    json_option,
)


def run_options(function: F) -> F:
    """Adds the arguments of `run` to a command; `RunOptions` takes them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command(
    "run",
    "PROGRAM run ffn.bin --inputs x.npy --weights w.safetensors -o y.npy",
    "PROGRAM run ffn.bin --inputs x.npy --weights w.npz --expect y=expected.npy --repeat 10 --json",
    short_help="Execute a plan on arrays.",
)
@run_options
@click.option("--check", is_flag=True, hidden=True)
def run_command(check: bool, **arguments: Any) -> None:
    """Execute a plan on arrays.

    Plans run on the visible GPUs, one site on each or as --devices says. Without GPUs they run on the CPU: every plan
    does, whatever machine it was compiled for. A plan is proved before it runs; the proofs of large plans are
    remembered.
    """
    if check:
        raise click.UsageError("--check computes with the operators of the compiler: use `einc run PLAN --check`")
    run_plan(RunOptions(**arguments))


def run_plan(options: RunOptions, reference: Reference | None = None) -> None:
    """Load, execute, write and report.

    If `reference` is given, the outputs are compared with those that it computes.
    """
    on_stdout = options.uses_of_stdout
    if len(on_stdout) > 1:
        raise click.UsageError(f"{' and '.join(on_stdout)} both need standard output")
    if reference is None:  # which computes whole arrays with all cores
        load_numpy()
    from einc_runtime.cli.placement import run_on_ranks

    run_on_ranks(
        options.plan, options.ranks, options.sites_per_rank, lambda world: _run(options, reference, world),
        as_json=options.as_json,
    )  # fmt: skip


def _run(options: RunOptions, reference: Reference | None, world: World | None) -> None:
    """Runs a plan here, or a part of it if other ranks run the others; then only rank 0 writes and reports."""
    from einc_runtime.address_space import OF_RUNS, OF_WORKERS, require_address_space
    from einc_runtime.cli import arrays
    from einc_runtime.cli.comparison import describe_not_finite
    from einc_runtime.execution.backends import uses_gpus
    from einc_runtime.execution.proved_plans import require_proof
    from einc_runtime.execution.session import Session
    from einc_runtime.execution.trace import format_trace, make_task_events

    with show_phases() as phase:
        phase("reading the plan")
        bundle = files.read_plan(options.plan)
        on_gpus = uses_gpus(bundle, options.backend) if world is None else world.uses_gpus(bundle, options.backend)
        if not on_gpus:
            require_address_space(sum(bundle.memory) + OF_RUNS + OF_WORKERS * (os.cpu_count() or 1))
        sources = [options.plan, *options.weights, *options.inputs, *options.expect]
        target = None
        if options.shards:
            target = arrays.require_target(options.targets, bool(reference or options.expect), sources)
        arrays.check_outputs(bundle, () if options.shards else options.targets, options.trace, sources)
        if world is not None:
            world.require_same_plan(bundle)
        if not options.no_verify and (world is None or world.reports):
            phase("proving the plan")
            with files.reading(options.plan):
                require_proof(bundle, decoded=True)
        devices = (options.devices,) if isinstance(options.devices, int) else options.devices
        tunings = _read_tunings(options, on_gpus, phase, alone=world is None)
        kernel_folders = _list_kernel_folders(options, on_gpus)
        executor: RankExecutor | None = None
        if world is not None and on_gpus:
            phase("connecting the GPUs")
            executor = world.make_gpu_executor(bundle, devices, options.no_peer, tunings, kernel_folders)
        elif world is not None:
            executor = world.make_executor(bundle)
        phase("loading inputs and weights")
        with Session(
            bundle,
            options.backend,
            devices,
            no_peer=options.no_peer,
            executor=executor,
            verify=False,
            tunings=tunings,
            kernel_folders=kernel_folders,
        ) as session:
            for note in session.notes:
                output.note(note)
            loaded = _load(session, options, keep=reference is not None)
            phase("running the plan")
            times, facts = _execute(session, options.repeat, traced=options.trace is not None)
            if target is not None:
                arrays.write_shards(target, session, world)
            results = {} if target else {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
        if world is not None and not world.reports:
            return
        phase("writing the outputs")
        arrays.write_outputs(() if target else options.targets, results)
        if options.trace is not None and session.trace is not None:
            events = make_task_events(bundle, session.trace.runs)
            output.write_text(options.trace, format_trace(events, "measured", bundle.model))
        comparison = None
        if reference is not None or options.expect:
            from einc_runtime.cli.comparison import Comparison

            phase("comparing the outputs")
            comparisons = [] if reference is None else [_compare_with(reference, bundle, loaded, results)]
            if options.expect:
                comparisons.append(_compare(bundle, results, arrays.read_expected(bundle, options.expect)))
            comparison = reduce(Comparison.combine, comparisons)
    for line in describe_not_finite(results):
        output.note(f"warning: {line}")
    on_stdout = options.uses_of_stdout
    document = _make_document(bundle, session.backend, times, facts, comparison)
    if comparison is not None and not comparison.holds:
        raise CheckFailed(f"the results are not as expected: {comparison}", document)
    if options.as_json:
        output.say_json(document)
    else:
        for line in _summarize(bundle, document, comparison):
            (output.note if on_stdout else output.say)(line)


def _read_tunings(options: RunOptions, on_gpus: bool, phase: Callable[[str], None], *, alone: bool) -> Sequence[Tuning]:
    """The plan's tuning, if it is to run on GPUs; with --tune, one is made where there is none, in one process."""
    if not on_gpus:
        if options.tune:
            output.note("nothing is tuned on the CPU: --tune is for GPUs")
        return ()
    from einc_runtime.cli.tune import tune_plan, tuning_file
    from einc_runtime.kernels.cuda.tuning import read_tunings

    tunings = read_tunings(tuning_file(options.plan))
    if options.tune and not tunings and not alone:
        raise MissingFault("plans are tuned in one process", hint=f"first: einc tune {options.plan} --devices 0,0,...")
    if options.tune and not tunings:
        phase("tuning the plan")
        tune_plan(options.plan, options.devices)
        tunings = read_tunings(tuning_file(options.plan))
    return tunings


def _list_kernel_folders(options: RunOptions, on_gpus: bool) -> Sequence[Path]:
    """The folder beside the plan, where its kernels are if they were compiled ahead."""
    if not on_gpus:
        return ()
    from einc_runtime.kernels.cuda.kernel_cache import directory_beside

    return (directory_beside(options.plan),)


def _execute(session: Session, repeat: int, *, traced: bool) -> tuple[list[float], dict[str, Any]]:
    """The milliseconds of every run, and what the backend reports about itself.

    On the CPU, tracing takes almost no time. On GPUs, a traced run does not use the plan's graph and is slower, so it
    is an extra run that is not timed.
    """
    from einc_runtime.execution.facts import list_facts

    apart = session.backend == "cuda"
    times, launches = [], []
    for _ in range(repeat):
        times.append(session.execute(trace=traced and not apart))
        if apart and (cuda := session.facts.cuda) is not None:
            launches.append(cuda.host_us)
    facts = list_facts(session.facts)
    if apart:
        facts["host_us"] = launches
    if traced and apart:
        session.execute(trace=True)
    return times, facts


def _load(session: Session, options: RunOptions, *, keep: bool) -> Mapping[str, Array]:
    """Loads everything. Returns the arrays if they are to be kept for a comparison."""
    from einc_runtime.cli.arrays import make_missing_fault, read_inputs, read_weight_arrays
    from einc_runtime.execution.data.weights import list_weights, read_weights

    arrays = read_inputs(session.bundle, options.inputs)
    session.load_all(arrays)
    weight_arrays, sources = read_weight_arrays(session.bundle, options.weights)
    session.load_all(weight_arrays)
    arrays |= weight_arrays
    tensors = [tensor for tensor in list_weights(session.bundle) if tensor.name not in weight_arrays]
    if not sources and tensors:
        raise make_missing_fault(tensors, bool(weight_arrays), session.bundle)
    if sources:
        source = files.require_weights(sources, may_be_random=True)
        with files.reading(sources[0]):
            if keep:
                weights = read_weights(tensors, source)
                session.load_all(weights)
                arrays |= weights
            else:
                session.load_weights(source, only_missing=True)
    return arrays if keep else {}


def _compare_with(
    reference: Reference, bundle: Bundle, loaded: Mapping[str, Array], results: Mapping[str, Array]
) -> Comparison:
    """Where sums cancel, results are compared relative to what a rounding changes: that takes several times as long, so
    it is only asked where they differ."""
    from einc_runtime.cli.comparison import ROUNDING, compare

    expected = reference.outputs(bundle, loaded)
    comparison = _compare(bundle, results, expected)
    if comparison.holds or not math.isfinite(comparison.absolute):
        return comparison
    return compare(
        results, expected, comparison.tolerance, reference.movements(bundle, loaded, comparison.tolerance * ROUNDING)
    )


def _compare(bundle: Bundle, results: Mapping[str, Array], expected: Mapping[str, Array]) -> Comparison:
    from einc_runtime.cli.comparison import compare, tolerance_of

    return compare(results, expected, tolerance_of(bundle))


def _make_document(
    bundle: Bundle, backend: str, times: list[float], facts: dict[str, Any], comparison: Comparison | None
) -> dict[str, Any]:
    saved = [bundle.tensors[out.tensor] for out in bundle.outputs]
    shapes = {tensor.name: {"shape": list(tensor.shape), "dtype": tensor.dtype} for tensor in saved}
    errors = {"max_abs_error": None, "max_rel_error": None} if comparison is None else comparison.json()
    return {"backend": backend, "outputs": shapes, "ms": times, **errors, **facts}


def _summarize(bundle: Bundle, document: dict[str, Any], comparison: Comparison | None) -> list[str]:
    outputs = ", ".join(f"{name} {out['dtype']}{out['shape']}" for name, out in document["outputs"].items())
    backend = "GPU" if document["backend"] == "cuda" else document["backend"]
    sites = format_count(len(bundle.devices), "site")
    lines = [f"{bundle.model} on the {backend}, {sites}: {outputs} in {_format_times(document['ms'])}"]
    if comparison is not None:
        lines.append(f"as expected: {comparison}")
    used = [
        f"{name} {format_memory(count)}"
        for name, count in document.get("memory_bytes", {}).items()
        if count is not None
    ]
    return [*lines, "memory: " + ", ".join(used)] if used else lines


def _format_times(times: list[float]) -> str:
    """One time; or the median of several, the middle half and the extremes."""
    if len(times) == 1:
        return f"{times[0]:.3f} ms"
    import numpy as np

    least, low, median, high, most = np.percentile(times, [0, 25, 50, 75, 100])
    return (
        f"{median:.3f} ms (median of {len(times)}; half in {low:.3f} to {high:.3f}, all in {least:.3f} to {most:.3f})"
    )
