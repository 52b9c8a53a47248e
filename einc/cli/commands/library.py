"""`einc library`: the definitions in the model language that come with einc."""

from __future__ import annotations

import click

from einc.errors import UsageError
from einc_runtime.cli import output
from einc_runtime.cli.base import LazyGroup, command, examples, json_option
from einc_runtime.text import suggest_name

group = LazyGroup(
    "library",
    {"list": (f"{__name__}:list_command", "List the definitions."), "show": (f"{__name__}:show_command", "Print one.")},
    help="List and print what the library defines in the model language, such as conv2d and cumsum.",
    epilog=examples("einc library list", "einc library show cumsum"),
)


def _complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from einc.frontend.shared_blocks import list_definitions

    return [name for name in list_definitions() if name.startswith(incomplete)]


@command("list", "einc library list")
@json_option
def list_command(as_json: bool) -> None:
    """List the definitions of the library, each with its parameters and what it computes.

    Operators that installed Python packages define come last, each with its entry point.
    """
    from einc.frontend.shared_blocks import describe_definition, list_definitions
    from einc_runtime.custom import list_custom_operators

    operators = list_custom_operators()
    definitions = {name: describe_definition(name) for name in list_definitions()}
    if as_json:
        entries = [{"name": name, "call": call, "about": about} for name, (call, about) in definitions.items()]
        packaged = [{"name": name, "entry_point": value} for name, value in operators.items()]
        output.say_json({"definitions": entries, "operators": packaged})
        return
    width = max((len(call) for call, _ in definitions.values()), default=0)
    for call, about in definitions.values():
        output.say(f"{call:<{width}}  {about}".rstrip())
    for name, value in operators.items():
        output.say(f"{name:<{width}}  an operator of a Python package, {value}")


@command("show", "einc library show cumsum", "einc library show conv2d")
@click.argument("name", metavar="NAME", shell_complete=_complete_names)
def show_command(name: str) -> None:
    """Print a definition: a block that a text of your own can have too, changed as you like."""
    from einc.frontend.shared_blocks import list_definitions, show_definition
    from einc.ops import registry

    if name not in list_definitions():
        hint = suggest_name(name, list(list_definitions()))
        if registry.is_callable(name):
            hint = "it is an operator that has kernels of its own: see docs/operators.md"
        raise UsageError(f"the library defines no '{name}'", hint=hint)
    output.say(show_definition(name).rstrip("\n"))
