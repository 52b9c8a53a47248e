"""`einc models`: the models and exchange programs that come with einc."""

from __future__ import annotations

from pathlib import Path

import click

from einc.data import find_folder
from einc.errors import UsageError
from einc_runtime.cli import output
from einc_runtime.cli.base import EincCommand, LazyGroup, examples, json_option
from einc_runtime.text import suggest_name

group = LazyGroup(
    "models",
    {
        "list": (f"{__name__}:list_command", "List the models and exchange programs."),
        "copy": (f"{__name__}:copy_command", "Copy one to a file."),
    },
    help="List and copy the models and exchange programs that come with einc.",
    epilog=examples("einc models list", "einc models copy ffn"),
)


SUFFIXES = (".ein", ".exprog")


def _find_models() -> dict[str, Path]:
    """By name; models first, then exchange programs."""
    folder = find_folder("models")
    return {
        entry.name.removesuffix(suffix): entry
        for suffix, directory in zip(SUFFIXES, (folder, folder / "exchanges"), strict=True)
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(suffix)
    }


def _complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _find_models() if name.startswith(incomplete)]


@click.command("list", cls=EincCommand, epilog=examples("einc models list"))
@json_option
def list_command(as_json: bool) -> None:
    """List the models and exchange programs, each with the first line of its description."""
    about = {name: _read_description(entry.read_text("utf-8")) for name, entry in _find_models().items()}
    if as_json:
        output.say_json({"models": [{"name": name, "about": line} for name, line in about.items()]})
        return
    width = max(map(len, about), default=0)
    for name, line in about.items():
        output.say(f"{name:<{width}}  {line}".rstrip())


@click.command("copy", cls=EincCommand, epilog=examples("einc models copy ffn", "einc models copy swap -o mine.exprog"))
@click.argument("name", metavar="NAME", shell_complete=_complete_names)
@click.option("-o", "--output", "target", metavar="FILE", help="The file to write.  [default: NAME.ein or NAME.exprog]")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def copy_command(name: str, target: str | None, force: bool) -> None:
    """Copy a model or an exchange program to a file, to read it or to change it."""
    import os

    models = _find_models()
    if name not in models:
        raise UsageError(f"no model named '{name}' comes with einc", hint=suggest_name(name, list(models)))
    path = models[name].name if target is None else target
    if target is None and os.path.exists(path) and not force:
        raise UsageError("this file exists already", where=path, hint="--force overwrites it")
    output.write_bytes(path, models[name].read_bytes())
    if path != output.STDOUT:
        output.note(f"{path}: a copy of {name}")


def _read_description(text: str) -> str:
    first = text.lstrip("\ufeff").split("\n", 1)[0].strip()
    return first.lstrip("# ") if first.startswith("#") else ""
