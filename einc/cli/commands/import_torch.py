"""`einc import torch`: models that torch.export saved."""

from __future__ import annotations

import os

import click

from einc.errors import UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.disk import make_directory


@command(
    "torch",
    "einc import torch resnet.pt2 -o resnet",
    "einc compile resnet/model.ein -m dgx-h100 -o resnet.bin",
    "einc run resnet.bin --weights resnet --inputs rand:0 --check",
    short_help="Make a model from a program of torch.export.",
)
@click.argument("path", metavar="FILE.pt2")
@click.option(
    "-o", "--output", "target", metavar="DIR", required=True,
    help="The folder for the model and its weights; it is made where it is missing.",
)  # fmt: skip
@json_option
def torch_command(path: str, target: str, as_json: bool) -> None:
    """Make a model from a file of torch.export.save: DIR/model.ein, and DIR/model.safetensors with its weights.

    The file is read as data: nothing in it is executed, and torch is not needed. Dimensions that were exported as
    dynamic become dims of the text.
    """
    from einc.importers.pytorch.archive import ExportArchive
    from einc.importers.pytorch.convert import convert_archive
    from einc.importers.pytorch.importing import write_weight_file
    from einc.importers.weight_files import TEXT_FILE, WEIGHT_FILE

    files.require_present(path)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UsageError("expected a folder", where=target)
    text_file, weight_file = (os.path.join(target, name) for name in (TEXT_FILE, WEIGHT_FILE))
    with show_phases() as phase:
        phase("reading the program")
        with files.reading(path):
            archive = ExportArchive(path)
        with archive:
            phase("converting its operators")
            name = os.path.splitext(os.path.basename(path))[0]
            converted = convert_archive(archive, name)
            phase("writing the weights")
            make_directory(target)
            output.require_outputs([text_file, weight_file], [path])
            output.write_file(weight_file, lambda stream: write_weight_file(stream, archive, converted))
            output.write_text(text_file, converted.text)
    for note in converted.notes:
        output.note(f"einc: {note}")
    if as_json:
        output.say_json({
            "model": text_file, "weights": weight_file, "inputs": list(converted.inputs),
            "outputs": list(converted.outputs), "notes": list(converted.notes),
        })  # fmt: skip
    else:
        output.note(
            f"{text_file}: inputs {', '.join(converted.inputs) or 'none'}; outputs {', '.join(converted.outputs)}"
        )
