"""`einc run`: execute a plan on arrays, and hold what it computed against what it should have."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from einc.cli import files, output
from einc.cli.failures import ComparisonFailed
from einc.cli.lazy import Command, examples
from einc.cli.options import Devices, json_option
from einc.cli.progress import phases
from einc_runtime.errors import ArrayFault
from einc_runtime.text import counted, sized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from einc.cli.comparison import Comparison
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle

    Array = np.ndarray[Any, np.dtype[Any]]


@click.command(
    "run",
    cls=Command,
    short_help="Execute a plan on arrays.",
    epilog=examples(
        "einc run ffn.bin --inputs x.npy --weights w.safetensors -o y.npy",
        "einc run ffn.bin --inputs x=rand:0 --weights rand:1 --check",
        "einc run ffn.bin --inputs x.npy --weights w.npz --expect y=expected.npy --repeat 10 --json",
    ),
)
@click.argument("plan", metavar="PLAN")
@click.option(
    "--inputs",
    multiple=True,
    metavar="x.npy | NAME=x.npy | all.npz | NAME=rand:SEED",
    help="The inputs; rand:SEED alone draws all that are not given.",
)
@click.option(
    "--weights", metavar="FILE | DIR | rand:SEED", help="A safetensors file or folder of them, or an npz file."
)
@click.option(
    "-o",
    "--output",
    "targets",
    multiple=True,
    metavar="y.npy | NAME=y.npy | all.npz",
    help="Where to write outputs; - is standard output.",
)
@click.option("--backend", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="What to run on.")
@click.option("--devices", type=Devices(), help="The device of every site, such as 0,0,1,1.")
@click.option(
    "--no-peer",
    type=click.Choice(["stage", "refuse"]),
    default="stage",
    help="What GPUs do that cannot reach each other's memory: send through the host's, or not run.",
)
@click.option("--check", is_flag=True, help="Compare with the unpartitioned computation.")
@click.option("--expect", multiple=True, metavar="y.npy", help="Compare an output with a file.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Run this many times, and time each.")
@click.option("--trace", metavar="t.json", help="Write the measured timeline.")
@json_option
def run_command(
    plan: str,
    inputs: tuple[str, ...],
    weights: str | None,
    targets: tuple[str, ...],
    backend: str,
    devices: int | tuple[int, ...] | None,
    no_peer: str,
    check: bool,
    expect: tuple[str, ...],
    repeat: int,
    trace: str | None,
    as_json: bool,
) -> None:
    """Execute a plan on arrays.

    Plans run on GPUs where some are visible, one site each or as --devices says. Every plan runs on the CPU, too,
    whatever machine it was compiled for, with its sites in memory.
    """
    on_stdout = _wanting_stdout(targets, trace, as_json)
    if len(on_stdout) > 1:
        raise click.UsageError(f"{' and '.join(on_stdout)} both need standard output")
    from einc.cli import arrays
    from einc_runtime.execution.session import Session
    from einc_runtime.execution.trace import task_events, trace_json
    from einc_runtime.plan.schema import HOST

    with phases() as phase:
        phase("reading the plan")
        bundle = files.read_plan(plan)
        if backend == "cuda" or bundle.machine != HOST:
            from einc_runtime.kernels.cuda import kernel_cache

            kernel_cache.add_directory(kernel_cache.directory_beside(plan))
        arrays.check_outputs(bundle, targets, trace, [plan, weights, *inputs, *expect])
        phase("loading inputs and weights")
        sites = (devices,) if isinstance(devices, int) else devices
        with Session(bundle, backend, sites, no_peer=no_peer) as session:
            for note in session.notes:
                output.note(note)
            given = _load(session, inputs, weights, keep=check)
            phase("running the plan")
            times, facts = _execute(session, repeat, traced=trace is not None)
            results = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
        phase("writing the outputs")
        arrays.write_outputs(targets, results)
        if trace is not None and session.trace is not None:
            output.write_text(trace, trace_json(task_events(bundle, session.trace.runs), "measured", bundle.model))
        comparison = None
        if check or expect:
            phase("comparing with the unpartitioned computation")
            comparison = _compare(bundle, results, given if check else None, expect)
    _report(bundle, session.backend, times, facts, comparison, as_json=as_json, quiet=bool(on_stdout))


def _execute(session: Session, repeat: int, *, traced: bool) -> tuple[list[float], dict[str, Any]]:
    """The milliseconds of every run, and what the backend has to say of itself.

    Tracing costs the CPU nothing worth speaking of. On GPUs it takes the plan's graph apart, and gets a run of its own.
    """
    apart = session.backend == "cuda"
    times, launches = [], []
    for _ in range(repeat):
        times.append(session.execute(trace=traced and not apart))
        if apart:
            launches.append(session.facts["host_us"])
    facts = session.facts
    if apart:
        facts["host_us"] = launches
    if traced and apart:
        session.execute(trace=True)
    return times, facts


def _load(session: Session, inputs: tuple[str, ...], weights: str | None, *, keep: bool) -> dict[str, Array]:
    """Loads everything. Returns the arrays if they are to be kept, for a comparison."""
    from einc.cli.arrays import read_inputs
    from einc_runtime.execution.data.weights import read_weights, weights_of

    given = read_inputs(session.bundle, inputs)
    session.load_all(given)
    wanted = weights_of(session.bundle)
    if weights is None and wanted:
        hint = "--weights FILE.safetensors, or --weights rand:0"
        raise ArrayFault(f"nothing is given for the {len(wanted)} weights of {session.bundle.model}", hint=hint)
    if weights is not None:
        if not weights.startswith("rand:"):
            files.require_present(weights, or_folder=True)
        with files.reading(weights):
            if keep:
                loaded = read_weights(wanted, weights)
                session.load_all(loaded)
                given |= loaded
            else:
                session.load_weights(weights)
    return given if keep else {}


def _compare(
    bundle: Bundle, results: Mapping[str, Array], given: Mapping[str, Array] | None, expect: tuple[str, ...]
) -> Comparison:
    from einc.cli import comparison
    from einc.cli.arrays import read_expected

    wanted = [comparison.references(bundle, given)] if given is not None else []
    wanted += [read_expected(bundle, expect)] if expect else []
    tolerance = comparison.tolerance_of(bundle)
    found = [comparison.compare(results, arrays, tolerance) for arrays in wanted]
    return reduce(comparison.Comparison.worse, found)


def _report(
    bundle: Bundle,
    backend: str,
    times: list[float],
    facts: dict[str, Any],
    comparison: Comparison | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    saved = [bundle.tensors[out.tensor] for out in bundle.outputs]
    shapes = {tensor.name: {"shape": list(tensor.shape), "dtype": tensor.dtype} for tensor in saved}
    errors = {"max_abs_error": None, "max_rel_error": None} if comparison is None else comparison.json()
    document = {"backend": backend, "outputs": shapes, "ms": times, **errors, **facts}
    if comparison is not None and not comparison.holds:
        raise ComparisonFailed(f"the results are not what they should be: {comparison}", document)
    if as_json:
        output.say_json(document)
        return
    shown = ", ".join(f"{name} {facts['dtype']}{facts['shape']}" for name, facts in shapes.items())
    tell = output.note if quiet else output.say
    where = "GPU" if backend == "cuda" else backend
    tell(f"{bundle.model} on the {where}, {counted(len(bundle.devices), 'site')}: {shown} in {_timing(times)}")
    if comparison is not None:
        tell(f"as it should be: {comparison}")
    held = [(name, count) for name, count in facts.get("memory_bytes", {}).items() if count is not None]
    if held:
        tell("memory: " + ", ".join(f"{name} {sized(count)}" for name, count in held))


def _timing(times: list[float]) -> str:
    """One time; or the median of several, the middle half and the extremes."""
    if len(times) == 1:
        return f"{times[0]:.3f} ms"
    import numpy as np

    least, low, median, high, most = np.percentile(times, [0, 25, 50, 75, 100])
    return (
        f"{median:.3f} ms (median of {len(times)}; half in {low:.3f} to {high:.3f}, all in {least:.3f} to {most:.3f})"
    )


def _wanting_stdout(targets: Sequence[str], trace: str | None, as_json: bool) -> list[str]:
    """The options that want standard output for themselves."""
    wanting = ["-o -" for target in targets if target.rpartition("=")[2] == output.STDOUT]
    wanting += ["--trace -"] if trace == output.STDOUT else []
    return [*wanting, "--json"] if as_json else wanting
