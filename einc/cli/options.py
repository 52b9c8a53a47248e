"""The options that compile and explain share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from einc.options import SELECTORS, CompileOptions

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in newer versions of click only
else:
    ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


class Devices(ParamType):
    """`4` or `0,1,4,5`."""

    name = "N | 0,1,2"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | tuple[int, ...] | None:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
            self.fail(f"{value!r} is neither a number of devices nor a list such as 0,1,4,5", param, ctx)
        numbers = tuple(int(part) for part in parts)
        return numbers[0] if len(numbers) == 1 and "," not in value else numbers


class Seconds(ParamType):
    """A time to wait, above 0."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:  # nor for what is no number
            self.fail(f"{value!r} is no time above 0 in seconds", param, ctx)
        return seconds


class Definition(ParamType):
    """`NAME=VALUE`."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip() or not text.strip():
            self.fail(f"{value!r} is not of the form NAME=VALUE", param, ctx)
        return name.strip(), text.strip()


def complete_machines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from einc.machines.load import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def machine_option(**more: Any) -> Callable[[F], F]:
    text = "A machine's name (see `einc machine list`) or file."
    return click.option("-m", "--machine", metavar="MACHINE", help=text, shell_complete=complete_machines, **more)


_COMPILE: tuple[Callable[[Any], Any], ...] = (
    machine_option(),
    click.option("--devices", type=Devices(), help="How many of its sites, or which.  [default: all]"),
    click.option("-D", "definitions", type=Definition(), multiple=True, help="Replace a param or dim of the model."),
    click.option("--preset", metavar="NAME", help="Apply a preset of the model."),
    click.option("--dtype", metavar="DTYPE", help="Replace the floating dtypes of the model: f16, bf16, f32 or f64."),
    click.option(
        "--selector",
        type=click.Choice(SELECTORS),
        help="How the cuts are chosen.  [default: eindecomp]",
    ),
    click.option("--schedule", type=click.Choice(["naive", "ai"]), help="How data movement is planned.  [default: ai]"),
    click.option("--seed", type=click.IntRange(min=0), help="Seeds whatever is drawn by chance.  [default: 0]"),
    click.option(
        "--time-limit",
        type=Seconds(),
        help="End a search after this time with the best found.",
    ),
    click.option("--ideal", is_flag=True, help="Leave the machine's latencies out."),
)


def compile_options(function: F) -> F:
    """Adds the options of `einc compile` to a command; `gather` makes them one value."""
    for option in reversed(_COMPILE):
        function = option(function)
    return function


def gather(chosen: dict[str, Any]) -> CompileOptions:
    """The options as the compiler takes them; what was not given keeps its default."""
    names = [name for name, _ in chosen["definitions"]]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"-D gives {name} twice")
    return CompileOptions(**{name: value for name, value in chosen.items() if value is not None})
