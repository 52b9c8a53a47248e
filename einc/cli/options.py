"""What commands that compile share: their options, how values are read, and what an interrupt does."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from einc.cli.files import read_text
from einc.cli.training_options import training_options
from einc.options import (
    BASELINES,
    INPUT_PLACEMENTS,
    MAX_DIVISIONS,
    OBJECTIVES,
    SCHEDULES,
    SELECTORS,
    CompileOptions,
    GivenExchange,
)
from einc_runtime.cli import output
from einc_runtime.cli.base import DEVICE_NUMBERS, ParamType, TextType
from einc_runtime.text import parse_memory

if TYPE_CHECKING:
    from einc.compiler import Compiled
    from einc.exchange.synthesis.proposers import Proposer
    from einc.graph.decode_step import StepRequest
    from einc.logical.pins import Pin
    from einc.physical.budget import SearchBudget

MAX_TOKENS = 2**31
"""Of a text, as positions are 32-bit integers."""

MAX_PROGRAM_LINES = 60
"""Lines about exchange programs from others that a command shows."""

F = TypeVar("F", bound=Callable[..., Any])


ignore_option = click.option(
    "--ignore", "ignored", metavar="FIELD", multiple=True, help="Accept a field of config.json that einc does not know."
)

tokenizer_option = click.option(
    "--tokenizer", metavar="DIR2", help="A folder whose files about text come before those of the model."
)


def _read_seconds(text: str) -> float:
    with suppress(ValueError):
        if float(text) > 0:  # NaN is not
            return float(text)
    raise ValueError(f"{text!r} is not a time above 0 in seconds")


def _read_duration(text: str) -> float:
    parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s)", text.strip())
    if parts is None or float(parts[1]) == 0:
        raise ValueError(f"{text!r} is not a time such as 50ms or 1.5s")
    return float(parts[1]) * (1e3 if parts[2] == "s" else 1.0)


def _read_token_count(text: str) -> int:
    parts = re.fullmatch(r"([0-9]{1,10}|[0-9]{1,3}(?:,[0-9]{3}){1,3})([kK]?)", text.strip())
    count = 0 if parts is None else int(parts[1].replace(",", "")) * (1024 if parts[2] else 1)
    if not 1 <= count <= MAX_TOKENS:
        raise ValueError(f"{text!r} is not a number of tokens such as 2048 or 16K")
    return count


def _read_pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"{text!r} is not of the form {form}")
    return name.strip(), value


def _read_definition(text: str) -> tuple[str, str]:
    name, value = _read_pair(text, "NAME=VALUE")
    return name, value.strip()


def _read_memory_size(text: str) -> int:
    size = parse_memory(text)
    if size is None:
        raise ValueError(f"{text!r} is not an amount of memory such as 24GiB, 24GB or 800MiB")
    return size


def _read_step(text: str) -> StepRequest:
    from einc.graph.decode_step import StepRequest as Request
    from einc.ops.step_forms import CacheBlocks

    number = "[1-9][0-9]{0,8}"
    form = f"([^=]+?) *= *([0-9]{{1,9}})(?:x({number}))?(?: *, *blocks=({number})x({number}))?"
    parts = re.fullmatch(form, text.strip(), re.ASCII)
    if parts is None:
        raise ValueError(
            f"{text!r} is not of the form DIM=N or DIM=NxS, as in tokens=1 or tokens=1x8; blocks=BxT may follow"
        )
    blocks = CacheBlocks(int(parts[4]), int(parts[5])) if parts[4] else None
    return Request(parts[1], int(parts[2]), int(parts[3] or 1), blocks)


def _read_pins(text: str) -> tuple[Pin, ...]:
    from einc.logical.pins import parse_pin, parse_pin_file

    if text.startswith("@"):
        return parse_pin_file(read_text(text[1:]), text[1:])
    return (parse_pin(text),)


def _read_schedule(text: str) -> str:
    if text not in SCHEDULES:
        raise ValueError(f"{text!r} is not one of 'synthesized' (or 'ai'), 'naive'.")
    return text


SECONDS = TextType("SECONDS", _read_seconds)
"""A time to wait, above 0."""
DURATION = TextType("TIME", _read_duration)
"""`50ms` or `1.5s`, in milliseconds."""
TOKEN_COUNT = TextType("N", _read_token_count)
"""`16384`, `16,384` or `16K`, which is 16 times 1,024."""
PARAM_VALUE = TextType("NAME=VALUE", _read_definition)
MEMORY_SIZE = TextType("SIZE", _read_memory_size)
"""An amount of memory in bytes: `24GiB`, `24 GB`, `800MiB`."""
STEP_SIZE = TextType("DIM=N[xS][,blocks=BxT]", _read_step)
"""`DIM=N`: so many new tokens along a dimension; `DIM=NxS`: of each of S sequences; `DIM=NxS,blocks=BxT`: whose caches
lie in B blocks of T tokens."""
SCHEDULE_NAME = TextType("synthesized | naive", _read_schedule, lambda: SCHEDULES)
"""A schedule in any spelling; help and messages show the current ones."""


class BaselineList(ParamType):
    """Names of baselines, separated by commas."""

    name = ",".join(BASELINES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for name in names:
            if name not in BASELINES:
                self.fail(f"{name!r} is not a baseline; there are {', '.join(BASELINES)}", param, ctx)
        return names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [click.shell_completion.CompletionItem(before + comma + n) for n in BASELINES if n.startswith(last)]


def step_option(function: F) -> F:
    text = (
        "Derive a decode step of N new tokens of each sequence, which run along the dimension DIM of the model; of S "
        "sequences, where the model reads one; with caches in B blocks of T tokens, which sequences share."
    )
    return click.option("--step", type=STEP_SIZE, help=text)(function)


def complete_machines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from einc.machines.load import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


def machine_option(**more: Any) -> Callable[[F], F]:
    text = "A name (see `einc machine list`) or file; dgx-h100:0,1 is some of its sites, dgx-h100x4 four hosts."
    return click.option("-m", "--machine", metavar="MACHINE", help=text, shell_complete=complete_machines, **more)


_COMPILE: tuple[Callable[[Any], Any], ...] = (
    machine_option(),
    click.option("--devices", type=DEVICE_NUMBERS, help="How many sites of it, or which ones.  [default: all]"),
    click.option("-D", "definitions", type=PARAM_VALUE, multiple=True, help="Replace a param or dim of the model."),
    click.option("--preset", metavar="NAME", help="Apply a preset of the model."),
    step_option,
    training_options,
    click.option("--dtype", metavar="DTYPE", help="Replace the floating dtypes of the model: f16, bf16, f32 or f64."),
    click.option(
        "--selector",
        type=click.Choice(SELECTORS),
        help="How the cuts are chosen: for the least predicted time (fastest), the least cost of the paper (eindecomp),"
        " each operator by itself (greedy), or at random.  [default: fastest]",
    ),
    click.option(
        "--schedule",
        type=SCHEDULE_NAME,
        metavar="[synthesized|naive]",
        help="How data movement is planned.  [default: synthesized]",
    ),
    click.option(
        "--input-placement",
        type=click.Choice(INPUT_PLACEMENTS),
        help="Where inputs and weights lie before the clock starts: every site has all that it reads (replicated), or"
        " every block lies on one site, and others get it while the clock runs (once).  [default: replicated]",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Seeds all random choices.  [default: 0]"),
    click.option(
        "--time-limit",
        type=SECONDS,
        help="End the search for cuts and exchange programs after this time, with the best plan found.",
    ),
    click.option(
        "--propose",
        "proposers",
        multiple=True,
        metavar="SOURCE",
        help="Ask for faster exchange programs: a FILE, command:LINE or llm:URL?model=NAME.",
    ),
    click.option(
        "--exchange",
        "exchanges",
        type=TextType("NAME=FILE", partial(_read_pair, form="NAME=FILE")),
        multiple=True,
        help="Use this exchange program for the operator NAME, for 'output NAME', or for all that match a pattern.",
    ),
    click.option(
        "--memory", type=MEMORY_SIZE, help="The most that a plan may take of each site: 24GiB.  [default: all of it]"
    ),
    click.option(
        "--pin",
        "pins",
        type=TextType("PATTERN=CUT | @FILE", _read_pins),
        multiple=True,
        help="Cut the operators of these names so: 'layer.*.up=d_ff/8'; the rest is optimized around them.",
    ),
    click.option(
        "--baseline",
        "baselines",
        type=BaselineList(),
        metavar="single,data,sequence,megatron,fsdp",
        help="Compare the plan with well-known ones of the same model, and take the fastest.",
    ),
    click.option(
        "--tiles", is_flag=True, help="Send a part of a product while the next is computed, where that is faster."
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        help="Plan one run on all sites together (latency), or also try stages, micro-batches and replicas of a"
        " large batch (throughput).  [default: latency]",
    ),
    click.option("--latency-at-most", type=DURATION, help="Fail if a run is predicted to take longer: 50ms."),
    click.option("--stages", type=click.IntRange(1, MAX_DIVISIONS), help="Pipeline stages, on disjoint sites."),
    click.option(
        "--microbatches", type=click.IntRange(1, MAX_DIVISIONS), help="Parts of the batch of each replica, in turn."
    ),
    click.option("--replicas", type=click.IntRange(1, MAX_DIVISIONS), help="Copies of the model, on disjoint sites."),
    click.option(
        "--reproducible", is_flag=True, help="Results have the same bits for any number of sites and any cuts."
    ),
    click.option("--price-pins", is_flag=True, help="Also search for a plan without the pins, and say what they cost."),
    click.option("--ideal", is_flag=True, help="Assume no latencies, and peaks of GPUs and links."),
)


def compile_options(function: F) -> F:
    """Adds the options of `einc compile` to a command; `read_options` makes them one value."""
    for option in reversed(_COMPILE):
        function = option(function)
    return function


def read_options(arguments: dict[str, Any]) -> CompileOptions:
    """The options as the compiler takes them; what was not given keeps its default."""
    names = [name for name, _ in arguments["definitions"]]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"-D gives {name} twice")
    values = {name: value for name, value in arguments.items() if value is not None}
    values["exchanges"] = tuple(GivenExchange(name, read_text(file), file) for name, file in arguments["exchanges"])
    values["pins"] = tuple(pin for some in arguments["pins"] for pin in some)
    del values["proposers"]
    return CompileOptions(**values)


def read_proposers(arguments: dict[str, Any]) -> tuple[Proposer, ...]:
    if not arguments["proposers"]:
        return ()
    from einc.exchange.synthesis.sources import make_proposer

    return tuple(make_proposer(source, read_text) for source in arguments["proposers"])


def find_option(name: str) -> str:
    """The spelling of the option whose value has this name among the arguments."""
    spelled = {
        "definitions": "-D",
        "pins": "--pin",
        "baselines": "--baseline",
        "proposers": "--propose",
        "undecayed": "--no-decay",
        "exchanges": "--exchange",
    }
    return spelled.get(name, f"--{name.replace('_', '-')}")


@contextmanager
def keep_best_on_interrupt(budget: SearchBudget) -> Iterator[None]:
    """Inside, the first interrupt during the search for exchange programs ends the search alone.

    The best programs found so far are kept, and one line says so at the end.
    """
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # ignored, for example in a background job of a script
        signal.signal(signal.SIGINT, lambda number, frame: budget.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if budget.interrupted:
        output.note("einc: interrupted; the plan has the best exchange programs found so far")


def note_programs(compiled: Compiled) -> None:
    """One line on every proposal and every exchange program of the user's, as far as they are not too many."""
    lines = [*compiled.remarks, *compiled.proposals]
    for line in lines[:MAX_PROGRAM_LINES]:
        output.note(f"einc: {line}")
    if len(lines) > MAX_PROGRAM_LINES:
        output.note(f"einc: and {len(lines) - MAX_PROGRAM_LINES} more; --json has all")


BIT_FORMS = {"8": "i8", "4": "i4", "f8": "f8e4m3", "mxfp8": "mxfp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
"""What `--bits` says, and the form of the language that it is."""


def bits_option(default: str | None, text: str) -> Callable[[F], F]:
    return click.option("--bits", type=click.Choice(list(BIT_FORMS)), default=default, help=text)


def round_inputs_option(function: F) -> F:
    text = "Have products round what they multiply with the weights to 8 bits, token by token."
    return click.option("--round-inputs", is_flag=True, help=text)(function)
