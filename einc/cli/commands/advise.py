"""`einc advise`: on which machine, on how many of its sites and with how many replicas a model runs best."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import read_model_text, require_page
from einc.cli.model_folders import CONFIGURATION, PublishedModel, find_model_folder, read_published_model
from einc.cli.options import (
    BIT_FORMS,
    DURATION,
    PARAM_VALUE,
    SECONDS,
    TOKEN_COUNT,
    bits_option,
    complete_machines,
    round_inputs_option,
)
from einc.cli.training_options import training_step_options
from einc.errors import UsageError
from einc.options import CompileOptions
from einc_runtime.cli import output
from einc_runtime.cli.base import TextType, command, json_option
from einc_runtime.cli.files import STDIN
from einc_runtime.cli.progress import show_phases

if TYPE_CHECKING:
    from einc.advising.option import Offer
    from einc.advising.workloads import Workload

MAX_USERS = 1 << 20
"""Users at once, as sequences of `einc import hf`."""

MAX_OFFERS = 64
"""Machines of one question; each has several plans."""


def read_users(text: str) -> tuple[int, ...]:
    """`1,8,32`, or `1..64` for all doublings of the first up to the last, which is one of them. Raises ValueError."""
    numbers = re.fullmatch(r" *([0-9]{1,9}) *\.\. *([0-9]{1,9}) *", text, re.ASCII)
    first, last = (1, 1) if numbers is None else (int(numbers[1]), int(numbers[2]))
    doubled = [first << k for k in range(MAX_USERS.bit_length()) if first << k < last] + [last]
    parts = [part.strip() for part in (text.split(",") if numbers is None else map(str, doubled))]
    if not 0 < first <= last or not all(
        part.isascii() and part.isdigit() and 0 < int(part[:9]) <= MAX_USERS for part in parts
    ):
        raise ValueError(f"{text!r} is not a list of numbers of users such as 1,8,32, or 1..64")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _read_price(text: str) -> tuple[str, float]:
    """`h100=2.5/h`: what one GPU of a kind, one site of a machine, or a whole instance of a cloud costs for an hour."""
    parts = re.fullmatch(r"([^=]+)=\W?([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?:/ ?h(?:r|our)?)?", text.strip())
    if parts is None or float(parts[2]) == 0:
        raise ValueError(f"{text!r} is not a price for an hour, such as h100=2.5/h")
    return parts[1].strip(), float(parts[2])


@dataclass(frozen=True, slots=True)
class AdviseArguments:
    """The arguments of `advise` that say what is asked, as click gives them."""

    model: str
    machines: tuple[str, ...]
    users: tuple[int, ...] | None
    users_param: str | None
    prompt: int | None
    answer: int | None
    definitions: tuple[tuple[str, str], ...]
    preset: str | None
    dtype: str | None
    bits: str | None
    round_inputs: bool
    train: str | None
    optimizer: str | None
    precision: str | None
    prices: tuple[tuple[str, float], ...]
    ignored: tuple[str, ...]


@command(
    "advise",
    "einc advise llama-3.1-70b -m dgx-h100:4 -m dgx-h100 --users 32 --prompt 8192",
    "einc advise llama-3.1-8b -m dgx-a100 -m dgx-h100 --users 1,8,64 --price a100=1.5/h --price h100=2.5/h",
    "einc advise llama-3.1-70b -m dgx-h100:2 -m dgx-h100:4 --bits f8 --round-inputs --users 32",
    "einc advise llama-3.1-8b --users 64 --objective throughput --latency-at-most 30ms --html advice.html",
    "einc advise moe.ein -m dgx-h100 --users-param batch --users 1,4,16",
    short_help="Say on which machine, and how, a model runs best.",
)
@click.argument("model", metavar="MODEL.ein|NAME|DIR|config.json")
@click.option(
    "-m",
    "--machine",
    "machines",
    multiple=True,
    metavar="MACHINE[:N | :0,1,2]",
    shell_complete=complete_machines,
    help="A machine to consider, or some of its sites; several may be given.  [default: this computer]",
)
@click.option(
    "--users",
    type=TextType("N,N,... | N..M", read_users),
    help="How many users there are at once: 1,8,32, or 1..64 for 1, 2, 4, ... 64.  [default: 1]",
)
@click.option("--users-param", metavar="NAME", help="The param of MODEL.ein that is the number of users.")
@click.option("--prompt", type=TOKEN_COUNT, help="Tokens of each prompt, or text.  [default: 1024]")
@click.option("--answer", type=TOKEN_COUNT, help="Tokens of each answer of a decoder.  [default: 256]")
@click.option("-D", "definitions", type=PARAM_VALUE, multiple=True, help="Replace a param or dim of MODEL.ein.")
@click.option("--preset", metavar="NAME", help="Apply a preset of MODEL.ein.")
@click.option("--dtype", metavar="DTYPE", help="Replace the floating dtypes of the model: f16, bf16, f32 or f64.")
@bits_option(None, "Plan as if `einc quantize --bits` had stored the weights of a published model: f8, 8, 4, ...")
@round_inputs_option
@training_step_options
@click.option(
    "--price",
    "prices",
    type=TextType("NAME=PRICE/h", _read_price),
    multiple=True,
    help="What one GPU of a kind, one site of a machine, or an instance of a cloud costs for an hour, in any currency.",
)
@click.option(
    "--objective",
    type=click.Choice(["latency", "throughput", "cost"]),
    help="What is best: the shortest time for a token or a run, the highest rate, or the lowest price of what is made."
    "  [default: cost if there are prices, else throughput]",
)
@click.option("--latency-at-most", "latency_ms", type=DURATION, help="The longest time for a token or a run: 50ms.")
@click.option("--first-at-most", "first_ms", type=DURATION, help="The longest time for the first token: 2s.")
@click.option("--rate-at-least", type=click.FloatRange(min=0), default=0.0, help="The lowest rate: tokens a second.")
@click.option(
    "--price-at-most", type=click.FloatRange(min=0, min_open=True), help="The highest price of an hour of all sites."
)
@click.option(
    "--undivided", is_flag=True, help="All sites of a machine work together: no replicas, no sites for prompts."
)
@click.option("--time-limit", type=SECONDS, help="Leave out what has not been planned after this time.")
@click.option("--ignore", "ignored", metavar="FIELD", multiple=True, help="Accept a field that einc does not know.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table; - is standard output.")
@click.option("--html", metavar="FILE", help="Write a page with a picture of it; - is standard output.")
@json_option
def advise_command(
    objective: str | None,
    latency_ms: float | None,
    first_ms: float | None,
    rate_at_least: float,
    price_at_most: float | None,
    undivided: bool,
    time_limit: float | None,
    csv_file: str | None,
    html: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Say on which machine, on how many of its sites and with how many replicas a model runs best.

    MODEL is a model text, the folder or config.json of a published model, or the name of a well-known one, which `einc
    models list` shows. A decoder reads a prompt for each user and
    answers: its prompts and its tokens are planned apart, and rates count both. Each option is a plan that `einc
    compile` would make. Nothing runs, and no weights are needed. Figures of plans are kept for the next time.
    """
    from einc.advising.advice import Objective, advise
    from einc.advising.documents import describe_advice, format_advice, write_csv
    from einc.advising.figures import FiguresCache, find_figures_folder
    from einc.advising.option import Limits
    from einc.advising.page import write_advice_page
    from einc.advising.workloads import describe_excess

    if [csv_file, html].count(output.STDOUT) + as_json > 1:
        raise click.UsageError("only one of --csv -, --html - and --json can be written to standard output")
    question = AdviseArguments(**arguments)
    targets = [path for path in (csv_file, html) if path is not None]
    output.require_outputs(targets, [question.model])
    require_page(html)
    offers = _read_offers(question)
    chosen: Objective = objective or ("cost" if question.prices else "throughput")  # type: ignore[assignment]
    if price_at_most is not None and not question.prices:
        raise UsageError("--price-at-most needs prices", hint="--price h100=2.5/h says what one GPU costs for an hour")
    if chosen == "cost" and all(offer.hourly is None for offer in offers):
        raise UsageError("the lowest cost needs prices", hint="--price h100=2.5/h says what one GPU costs for an hour")
    workload = _read_workload(question)
    excess = describe_excess(workload)
    if excess is not None:
        output.note(f"einc: {excess}")
    with show_phases() as phase:
        advice = advise(
            workload,
            offers,
            chosen,
            Limits(latency_ms, first_ms, price_at_most, rate_at_least),
            FiguresCache(find_figures_folder()),
            divide=not undivided and question.train is None,  # replicas of a training step are not independent
            time_limit=time_limit,
            phase=phase,
        )
    document = describe_advice(advice, chosen)
    if csv_file is not None:
        output.write_bytes(csv_file, write_csv(document).encode())
    if html is not None:
        output.write_bytes(html, write_advice_page(advice, document).encode())
    if as_json:
        output.say_json(document)
    elif output.STDOUT not in targets:
        output.say(format_advice(advice, document))


def _read_offers(question: AdviseArguments) -> list[Offer]:
    """The machines with their prices; each must be there, and each price must be that of one of them."""
    from einc.advising.option import Offer
    from einc.machines.load import load_instances, split_sites
    from einc.target import select_target

    if len(question.machines) > MAX_OFFERS:
        raise UsageError(f"{len(question.machines)} machines were given; at most {MAX_OFFERS} are compared")
    offers, used = [], set()
    for text in question.machines or ("",):
        options = CompileOptions(
            machine=text or None,
            dtype=question.dtype,
            preset=question.preset,
            train=question.train,
            optimizer=question.optimizer,
            precision=question.precision,
        )
        target = select_target(options)
        names = [
            split_sites(options.machine or "")[0],
            target.machine.name,
            *(site.gpu_name for site in target.machine.sites),
        ]
        words = {word.lower() for told in names for word in (told, *told.split("-"))}
        price = next(((key, value) for key, value in question.prices if key.lower() in words), None)
        used |= {price[0]} if price is not None else set()
        # Clouds name prices of whole instances, also where not all of their sites are used.
        priced = 1 if price is not None and price[0].lower() in load_instances() else len(target.devices)
        offers.append(Offer(options, None if price is None else price[1] * priced))
    for key, _ in question.prices:
        if key not in used:
            kinds = sorted({site.gpu_name for o in offers for site in select_target(o.options).machine.sites} - {""})
            machines = ", ".join([*dict.fromkeys(str(o.options.machine) for o in offers if o.options.machine), *kinds])
            raise UsageError(f"--price {key}: no machine here is or has a {key}", hint=f"there are {machines}")
    return offers


def _read_workload(question: AdviseArguments) -> Workload:
    """What the model is to do: MODEL is a folder, a configuration, or else a model text."""
    from einc.advising.workloads import TextWorkload, read_folder_workload

    folder = find_model_folder(question.model)
    is_configuration = os.path.basename(folder) == CONFIGURATION
    is_text = question.model == STDIN or folder.endswith(".ein") or (os.path.isfile(folder) and not is_configuration)
    if not is_text or folder.endswith(".gguf"):
        folder = (os.path.dirname(folder) or os.curdir) if is_configuration else folder
        of_texts = (
            ("-D", question.definitions), ("--preset", question.preset), ("--users-param", question.users_param),
            ("--train", question.train), ("--optimizer", question.optimizer), ("--precision", question.precision),
        )  # fmt: skip
        for option, value in of_texts:
            if value:
                raise UsageError(f"{option} is for model texts, and {question.model} is a published model")
        model = read_published_model(folder)
        lengths = (question.prompt or 1024, question.answer or 256)
        config = (_quantize(question, model), model.where)
        stored = model.stored if question.bits is None else None  # names of other tensors
        return read_folder_workload(model.name, config, stored, question.users or (1,), lengths, question.ignored)
    for option, setting in (("--prompt", question.prompt), ("--answer", question.answer), ("--bits", question.bits)):
        if setting is not None:
            raise UsageError(f"{option} is for published models; -D sets the params of a model text")
    if question.users is not None and question.users_param is None:
        raise UsageError(
            "a model text has users only through a param of it",
            hint="--users-param batch says that the param `batch` is their number",
        )
    name = os.path.basename(question.model).removesuffix(".ein")
    users = question.users or (1,)
    unit = "runs" if question.train is None else "steps" if question.users_param is None else "samples"
    return TextWorkload(name, read_model_text(question.model), users, question.users_param, question.definitions, unit)


def _quantize(question: AdviseArguments, model: PublishedModel) -> bytes:
    """The configuration of the model, or of what `einc quantize` would make of it."""
    from einc.quantizing.schemes import choose_scheme, quantize_configuration

    if question.bits is None:
        if question.round_inputs:
            raise UsageError("--round-inputs goes with --bits 8 or --bits f8")
        return model.config
    scheme = choose_scheme(BIT_FORMS[question.bits], round_inputs=question.round_inputs)
    return quantize_configuration(model.config, model.where, scheme, question.round_inputs)
