"""`einc train`: make the steps of a training run, with its data, held-out losses and checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import require_page
from einc.training_runs.settings import MAX_TRAINING_STEPS
from einc_runtime.cli import files, output
from einc_runtime.cli.base import DEVICE_NUMBERS, command, json_option, ranks_option, shares_option
from einc_runtime.cli.blas import load_numpy
from einc_runtime.cli.progress import show_phases
from einc_runtime.cli.signals import Terminated
from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc.training_runs.checkpoints import RunProgress
    from einc.training_runs.settings import RunSettings
    from einc_runtime.cli.ranks import World
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle

_COUNT = click.IntRange(min=0, max=MAX_TRAINING_STEPS)


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The arguments of `train`, as click gives them, beside the settings of the run."""

    plan: str
    data: tuple[str, ...]
    weights: tuple[str, ...]
    evaluate: tuple[str, ...]
    length: int | None
    checkpoints: str | None
    resume: bool
    losses: str | None
    page: str | None
    backend: str
    devices: int | tuple[int, ...] | None
    ranks: int | None
    sites_per_rank: int | tuple[int, ...] | None
    as_json: bool


@command(
    "train",
    "einc compile model.ein --train loss --optimizer adamw -o step.bin",
    "einc train step.bin --data tokens.npy --weights init:0 --steps 1000 --rate 3e-4 --checkpoints run",
    "einc train step.bin --data x=x.npy --data t=t.npy --weights w.safetensors --steps 50 --rate 0.1",
    "einc train step.bin --data tokens.npy --steps 2000 --rate 3e-4 --checkpoints run --resume",
    short_help="Train a model: run a training step on data, again and again.",
)
@click.argument("plan", metavar="PLAN")
@click.option(
    "--data",
    multiple=True,
    required=True,
    metavar="tokens.npy | NAME=x.npy",
    help="A text of tokens for inputs `ids` and `targets`, or rows of an input.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE | DIR | init:SEED | rand:SEED",
    help="The weights to begin with; with --resume, the checkpoint has them.",
)
@click.option("--steps", type=click.IntRange(1, MAX_TRAINING_STEPS), required=True, help="Steps of the whole run.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="The learning rate.")
@click.option(
    "--schedule",
    type=click.Choice(["constant", "cosine"]),
    default="constant",
    help="What becomes of the rate after the warm-up.",
)
@click.option("--warmup", type=_COUNT, default=0, help="Steps over which the rate rises evenly.")
@click.option(
    "--floor",
    type=click.FloatRange(0, 1),
    default=0.1,
    help="Part of the rate at the end of a cosine.  [default: 0.1]",
)
@click.option(
    "--accumulate", type=click.IntRange(1, 2**20), default=1, metavar="N",
    help="Runs of a step, each with a part of its samples, for a plan that was compiled with --accumulate.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**62), default=0, help="Decides in which order samples come.")
@click.option("--length", type=click.IntRange(min=1), help="Tokens of a sample, if the plan does not say it.")
@click.option("--evaluate", multiple=True, metavar="held.npy | NAME=x.npy", help="Held-out data, as --data.")
@click.option("--evaluate-every", type=_COUNT, default=0, help="Steps between held-out losses; always at the end.")
@click.option(
    "--evaluate-batches", type=click.IntRange(1, MAX_TRAINING_STEPS), default=8, help="Batches of a held-out loss."
)
@click.option("--checkpoints", metavar="DIR", help="Where checkpoints are written and existing.")
@click.option("--checkpoint-every", type=_COUNT, default=0, help="Steps between checkpoints; always at the end.")
@click.option("--keep", type=click.IntRange(min=1), default=2, help="How many checkpoints stay.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint.")
@click.option("--losses", metavar="losses.csv", help="Where to write the loss of every step.")
@click.option("--page", metavar="losses.html", help="Where to write a page with a plot of the losses.")
@click.option(
    "--backend", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Run on GPUs (cuda) or on the CPU."
)
@click.option("--devices", type=DEVICE_NUMBERS, help="The GPU of every site, such as 0,0,1,1.")
@ranks_option
@shares_option
@json_option
def train_command(
    steps: int, rate: float, schedule: Any, warmup: int, floor: float, seed: int, evaluate_every: int,
    evaluate_batches: int, checkpoint_every: int, keep: int, accumulate: int, **arguments: Any,
) -> None:  # fmt: skip
    """Train a model: run a training step on data, again and again.

    PLAN is a training step, which `einc compile --train LOSS --optimizer NAME` plans. It runs where other plans do:
    on GPUs, on the CPU, or in several processes. A run that goes on from a checkpoint gives the same bits as one that
    was never interrupted.
    """
    from einc.training_runs.settings import RunSettings

    settings = RunSettings(
        steps,
        rate,
        schedule,
        warmup,
        floor,
        seed,
        evaluate_every,
        evaluate_batches,
        checkpoint_every,
        keep,
        accumulate,
    )
    options = TrainOptions(**arguments)
    if options.checkpoints is None and (options.resume or checkpoint_every):
        raise click.UsageError("--resume and --checkpoint-every need --checkpoints DIR")
    if not options.evaluate and evaluate_every:
        raise click.UsageError("--evaluate-every needs held-out data: --evaluate FILE")
    if options.losses == output.STDOUT and options.as_json:
        raise click.UsageError("--losses - and --json both need standard output")
    load_numpy()
    from einc_runtime.cli.placement import run_on_ranks

    run_on_ranks(
        options.plan, options.ranks, options.sites_per_rank, lambda world: _train(options, settings, world),
        as_json=options.as_json,
    )  # fmt: skip


def _train(options: TrainOptions, settings: RunSettings, world: World | None) -> None:
    """Trains here, or a part of the plan if other ranks run the others; then only rank 0 writes and reports."""
    from einc.training_runs.loop import TrainingRun, require_training_step
    from einc.training_runs.losses import write_page, write_table

    leads = world is None or world.reports
    reads = [options.plan, *(text.rpartition("=")[2] for text in (*options.data, *options.evaluate))]
    output.require_outputs([path for path in (options.losses, options.page) if path is not None], reads)
    require_page(options.page)
    with contextlib.ExitStack() as stack:
        with show_phases() as phase:
            phase("reading the plan")
            bundle = files.read_plan(options.plan)
            phase("proving the plan")
            session = stack.enter_context(_open_session(bundle, options, world))
            require_training_step(session, settings.accumulate)
            phase("reading the data")
            batches = _open_data(bundle, options.data, settings.seed, options.length)
            held_out = _open_data(bundle, options.evaluate, settings.seed, options.length) if options.evaluate else None
            phase("loading weights")
            folder = None if options.checkpoints is None else _prepare_folder(options.checkpoints)
            progress = _begin(session, options, settings, folder, batches.fingerprint)
        first = progress.step

        def write_files(progress: RunProgress, *, last: bool = True) -> None:
            if leads and options.losses is not None and (last or options.losses != output.STDOUT):
                output.write_text(options.losses, write_table(progress, settings))
            if leads and options.page is not None:
                output.write_text(options.page, write_page(bundle.model, progress, settings))

        try:
            with _show_steps(settings, first, shown=leads) as show:

                def note(progress: RunProgress) -> None:
                    show(progress)
                    if settings.checkpoint_every and progress.step % settings.checkpoint_every == 0:
                        write_files(progress, last=False)

                TrainingRun(session, settings, batches, progress, held_out, folder, leads, note).run()
        except (KeyboardInterrupt, Terminated):
            if leads:
                output.note(_describe_stop(progress, settings, folder))
            raise
    write_files(progress)
    if not leads:
        return
    held = progress.held_out_loss
    document = {
        "steps": progress.step, "from_step": first, "first_loss": progress.losses[0], "loss": progress.losses[-1],
        "held_out_loss": held, "backend": session.backend,
    }  # fmt: skip
    if options.as_json:
        output.say_json(document)
        return
    held_text = "" if held is None else f", held-out {held:.6g}"
    counted = f"{format_count(progress.step - first, 'step')} of {settings.steps:,}"
    text = f"{bundle.model}: {counted}, loss {progress.losses[0]:.6g} to {progress.losses[-1]:.6g}{held_text}"
    (output.note if options.losses == output.STDOUT else output.say)(text)


def _describe_stop(progress: RunProgress, settings: RunSettings, folder: Path | None) -> str:
    """What a run that was ended has done, and what is left of it."""
    from einc.training_runs.checkpoints import list_checkpoints

    existing = [] if folder is None else list_checkpoints(folder)
    left = "nothing was kept: --checkpoints DIR --checkpoint-every N keeps states on the way"
    if existing:
        left = f"--resume goes on from {existing[-1]}"
    return f"stopped after step {progress.step:,} of {settings.steps:,}; {left}"


def _open_session(bundle: Bundle, options: TrainOptions, world: World | None) -> Session:
    """The session of the plan, or of this rank's part of it; the plan is proved once."""
    from einc_runtime.address_space import OF_RUNS, OF_WORKERS, require_address_space
    from einc_runtime.execution.backends import uses_gpus
    from einc_runtime.execution.proved_plans import require_proof
    from einc_runtime.execution.session import Session

    on_gpus = uses_gpus(bundle, options.backend) if world is None else world.uses_gpus(bundle, options.backend)
    if not on_gpus:
        require_address_space(sum(bundle.memory) + OF_RUNS + OF_WORKERS * (os.cpu_count() or 1))
    if world is not None:
        world.require_same_plan(bundle)
    if world is None or world.reports:
        with files.reading(options.plan):
            require_proof(bundle, decoded=True)
    devices = (options.devices,) if isinstance(options.devices, int) else options.devices
    executor = None
    if world is not None:
        executor = world.make_gpu_executor(bundle, devices, "stage", (), ()) if on_gpus else world.make_executor(bundle)
    session = Session(bundle, options.backend, devices, executor=executor, verify=False)
    for note in session.notes:
        output.note(note)
    return session


def _open_data(bundle: Bundle, arguments: tuple[str, ...], seed: int, length: int | None) -> Any:
    from einc.training_runs.batches import open_batches

    for text in arguments:
        named = "=" in text and text.split("=", 1)[0] in {t.name for t in bundle.tensors}
        files.require_present(text.split("=", 1)[1] if named else text)
    return open_batches(bundle, arguments, seed, length)


def _prepare_folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFault(f"no checkpoints can be written there: {error.strerror}", where=path) from None
    return folder


def _begin(
    session: Session, options: TrainOptions, settings: RunSettings, folder: Path | None, fingerprint: bytes
) -> RunProgress:
    """The weights of the last checkpoint, or those to begin with, and how far the run has come."""
    from einc.training_runs.checkpoints import RunProgress, list_checkpoints, read_checkpoint
    from einc.training_runs.initial import INITIAL_PREFIX, make_weights

    existing = [] if folder is None else list_checkpoints(folder)
    if options.resume and existing:
        with files.reading(str(existing[-1])):
            progress = read_checkpoint(existing[-1], session)
        if progress.fingerprint != fingerprint or progress.seed != settings.seed:
            hint = "go on with the same --data and --seed, or begin a run in another folder"
            raise ArrayFault("it is of a run with other data or another seed", where=str(existing[-1]), hint=hint)
        if progress.step > settings.steps:
            raise UsageFault(f"it has made {progress.step:,} steps, and --steps asks for {settings.steps:,}",
                             where=str(existing[-1]))  # fmt: skip
        return progress
    if existing:
        hint = "--resume goes on from there; or name another folder"
        raise UsageFault(f"there is a checkpoint already: {existing[-1].name}", where=str(folder), hint=hint)
    if not options.weights:
        raise ArrayFault(f"nothing is given for the weights of {session.bundle.model}",
                         hint="--weights FILE.safetensors, or --weights init:0 for random ones")  # fmt: skip
    if len(options.weights) == 1 and options.weights[0].startswith(INITIAL_PREFIX):
        session.load_all(make_weights(session.bundle, options.weights[0]))
    else:
        with files.reading(options.weights[0]):
            session.load_weights(files.require_weights(options.weights, may_be_random=True))
    return RunProgress(settings.seed, fingerprint)


@contextlib.contextmanager
def _show_steps(settings: RunSettings, first: int, *, shown: bool) -> Iterator[Callable[[RunProgress], None]]:
    """A bar of the steps with the last losses, on stderr if that is a terminal."""
    if not shown or not output.show_progress():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("training", total=settings.steps, completed=first)

        def show(progress: RunProgress) -> None:
            at, loss = progress.evaluations[-1] if progress.evaluations else (0, 0.0)
            held = f", held-out {loss:.4g} after {at:,}" if at else ""
            bar.update(task, completed=progress.step, description=f"loss {progress.losses[-1]:.4g}{held}")

        yield show
