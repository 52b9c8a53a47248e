"""The base of the commands of both programs: click commands that are imported when they are called, and options."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from einc_runtime.address_space import LIBRARY_BYTES, require_address_space
from einc_runtime.text import did_you_mean

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in newer versions of click only
else:
    ParamType = click.ParamType


class _Helpful(click.Command):
    """A command with `--debug`, which `main` looks for among the arguments, and whose help is a result."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_debug_option())

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


class EincCommand(_Helpful):
    """A command that does something."""

    def invoke(self, ctx: click.Context) -> Any:
        """Raises MemoryError where a limit leaves less memory than the command's libraries need."""
        require_address_space(LIBRARY_BYTES)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The epilog, in which PROGRAM stands for the program that the command belongs to."""
        epilog = self.epilog
        self.epilog = None if epilog is None else epilog.replace("PROGRAM", ctx.find_root().info_name or "")
        super().format_epilog(ctx, formatter)
        self.epilog = epilog


class LazyGroup(_Helpful, click.Group):
    """A group over a table: for every command, `module:attribute` and one line of help."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(name, no_args_is_help=False, **kwargs)
        self.table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a command, the help goes to standard error, and the exit code is that of wrong usage: versions of
        click differ in both."""
        if not args and not ctx.resilient_parsing:
            from einc_runtime.cli import failures, output

            output.note(ctx.get_help())
            ctx.exit(failures.USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table:
            hint = did_you_mean(args[0], self.table)
            if hint is not None:
                ctx.fail(f"No such command {args[0]!r}. {hint.capitalize()}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])


class TextType(ParamType):
    """What an argument that is a text means: `read` says it, or raises ValueError with what is wrong. `choices` are
    offered to shells that complete it."""

    def __init__(self, name: str, read: Callable[[str], Any], choices: Callable[[], Iterable[str]] = tuple) -> None:
        self.name, self._read, self._choices = name, read, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # it has been read already
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(word) for word in self._choices() if word.startswith(incomplete)]


def _read_counts(text: str, counted: str, example: str, least: int = 0) -> int | tuple[int, ...]:
    """`4` or `0,1,4,5`: a number, or a list of numbers that are at least `least`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 and int(part) >= least for part in parts):
        raise ValueError(f"{text!r} is neither a number of {counted} nor a list such as {example}")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 and "," not in text else numbers


DEVICE_NUMBERS = TextType("N | 0,1,2", partial(_read_counts, counted="devices", example="0,1,4,5"))
SITES_PER_RANK = TextType("N | N,N,...", partial(_read_counts, counted="sites", example="1,3,4", least=1))


ranks_option = click.option(
    "--ranks", type=click.IntRange(min=1), metavar="N", help="Run in N processes, which MPI starts."
)
shares_option = click.option(
    "--sites-per-rank",
    type=SITES_PER_RANK,
    help="How many sites each process has, or a list of these numbers.  [default: evenly]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def version_option(name: str) -> click.Option:
    """`--version` of the program of this name."""

    def show(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
        from einc_runtime.cli import output
        from einc_runtime.version import VERSION

        if is_set:
            output.say_at_once(f"{name} {VERSION}\n")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, help="Show the version.", callback=show
    )


def command(name: str, *lines: str, short_help: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a function a command, whose help ends with these examples."""
    epilog = examples(*lines) if lines else None
    return click.command(name, cls=EincCommand, short_help=short_help, epilog=epilog)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _show_help(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    from einc_runtime.cli import output

    if is_set and not ctx.resilient_parsing:
        output.say_at_once(ctx.get_help() + "\n")
        ctx.exit()


def _debug_option() -> click.Option:
    return click.Option(["--debug"], is_flag=True, expose_value=False, help="Show a traceback when something fails.")
