"""click groups whose commands are imported when they are called, and the options that every command has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class Command(click.Command):
    """A command with `--debug`, which `main` looks for among the arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(debug_option())


class LazyGroup(click.Group):
    """A group over a table: for every command, `module:attribute` and one line of help."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.table = table
        self.params.append(debug_option())

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
            import difflib

            close = difflib.get_close_matches(args[0], self.table, 1)
            if close:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])


def debug_option() -> click.Option:
    return click.Option(["--debug"], is_flag=True, expose_value=False, help="Show a traceback when something fails.")


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
