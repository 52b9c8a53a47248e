"""`einc models`: the models and exchange programs that come with einc, and a folder with a trained language model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from einc.cli.model_folders import CONFIGURATION, list_known_models
from einc.data import find_folder
from einc.errors import UsageError
from einc_runtime.cli import output
from einc_runtime.cli.base import LazyGroup, command, examples, json_option
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
STORIES = "A language model that tells stories, with its weights: a folder for `einc generate` and `einc serve`."


def find_models() -> dict[str, Path]:
    """By name; models first, then exchange programs, then folders of published models."""
    folder = find_folder("models")
    files = {
        entry.name.removesuffix(suffix): entry
        for suffix, directory in zip(SUFFIXES, (folder, folder / "exchanges"), strict=True)
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(suffix)
    }
    return files | {"stories": folder / "stories"} | list_known_models()


def _complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in find_models() if name.startswith(incomplete)]


@command("list", "einc models list")
@json_option
def list_command(as_json: bool) -> None:
    """List the models and exchange programs, each with the first line of its description."""
    about = {name: _read_description(name, entry) for name, entry in find_models().items()}
    if as_json:
        output.say_json({"models": [{"name": name, "about": line} for name, line in about.items()]})
        return
    width = max(map(len, about), default=0)
    for name, line in about.items():
        output.say(f"{name:<{width}}  {line}".rstrip())


@command("copy", "einc models copy ffn", "einc models copy swap -o mine.exprog")
@click.argument("name", metavar="NAME", shell_complete=_complete_names)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    help="What to write.  [default: NAME.ein, NAME.exprog or the folder NAME]",
)
@click.option("--force", is_flag=True, help="Overwrite what exists.")
def copy_command(name: str, target: str | None, force: bool) -> None:
    """Copy a model or an exchange program to a file, to read it or to change it; a published model is a folder."""
    import os

    models = find_models()
    if name not in models:
        raise UsageError(f"no model named '{name}' comes with einc", hint=suggest_name(name, list(models)))
    path = models[name].name if target is None else target
    if target is None and os.path.exists(path) and not force:
        raise UsageError("this file exists already", where=path, hint="--force overwrites it")
    if models[name].is_dir():
        _copy_folder(models[name], path)
    else:
        output.write_bytes(path, models[name].read_bytes())
    if path != output.STDOUT:
        output.note(f"{path}: a copy of {name}")


def _copy_folder(source: Path, target: str) -> None:
    """Copies what a published model consists of, and not how it was made."""
    import os

    if target == output.STDOUT or (os.path.exists(target) and not os.path.isdir(target)):
        raise UsageError("this model is a folder of several files", where=target, hint="-o takes the name of a folder")
    os.makedirs(target, exist_ok=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
        if entry.suffix in (".json", ".safetensors"):
            output.write_bytes(os.path.join(target, entry.name), entry.read_bytes())


def _read_description(name: str, entry: Path) -> str:
    """The first line of a text, which is a comment, or what the configuration of a folder says."""
    if name == "stories":
        return STORIES
    if entry.is_dir():
        config = json.loads(entry.joinpath(CONFIGURATION).read_bytes())
        size = f"{config['num_hidden_layers']} layers of {config['hidden_size']:,}"
        return f"{config['model_type']} of {size}, without weights: a folder for `einc advise` and `einc import hf`."
    text = entry.read_text("utf-8")
    first = text.lstrip("\ufeff").split("\n", 1)[0].strip()
    return first.lstrip("# ") if first.startswith("#") else ""
