"""`einc import`: models from other formats."""

from __future__ import annotations

import os
from typing import Any

import click

from einc.cli.model_folders import read_published_model
from einc.cli.options import ignore_option
from einc.errors import ModelError, UsageError
from einc_runtime.cli import output
from einc_runtime.cli.base import LazyGroup, command, examples, json_option
from einc_runtime.cli.progress import show_phases

group = LazyGroup(
    "import",
    {
        "gguf": (f"{__name__}:hf_command", "Make a model from a GGUF file."),
        "hf": (f"{__name__}:hf_command", "Make a model from a Hugging Face folder."),
        "onnx": ("einc.cli.commands.import_onnx:onnx_command", "Make a model and its weights from an ONNX file."),
        "torch": ("einc.cli.commands.import_torch:torch_command", "Make a model from a program of torch.export."),
    },
    help="Make models from other formats.",
    epilog=examples("einc import hf llama-3-8b -o llama.ein", "einc import torch module.pt2 -o module"),
)


@command(
    "hf",
    "einc import hf llama-3-8b --tokens 2048 --batch 4 -o llama.ein",
    "einc import gguf qwen3-0.6b-q8_0.gguf -o qwen3.ein",
    "einc import hf all-MiniLM-L6-v2 --pool mean --normalize --batch 32 -o embed.ein",
    short_help="Make a model from a Hugging Face folder or a GGUF file.",
)
@click.argument("folder", metavar="DIR|FILE.gguf")
@click.option("-o", "--output", "target", metavar="MODEL.ein", required=True, help="The model to write.")
@click.option("--batch", type=click.IntRange(1, 2**20), default=1, help="How many sequences.  [default: 1]")
@click.option(
    "--tokens",
    type=click.IntRange(1, 2**31),
    help="Tokens of each sequence in a run.  [default: 1024, of encoders 128]",
)
@click.option("--caches", is_flag=True, help="Return the keys and values of each layer, too.")
@click.option(
    "--logits", type=click.Choice(["last", "all"]), help="The tokens whose logits are returned.  [default: last]"
)
@click.option(
    "--pool", type=click.Choice(["mean", "cls"]), help="Pool an encoder's hidden states into one vector per sequence."
)
@click.option("--normalize", is_flag=True, help="Scale pooled vectors to length 1.")
@click.option("--segments", is_flag=True, help="Make token types an input; without it they are all 0.")
@ignore_option
@json_option
def hf_command(folder: str, target: str, as_json: bool, **arguments: Any) -> None:
    """Make a model from a Hugging Face folder: from its config.json and the names in its safetensors files; or from the
    metadata and the names of tensors in a GGUF file. `einc run --weights` reads the weights where they lie.

    Decoders (Llama, Mistral, Mixtral, Qwen2, Qwen3, Phi-3, Gemma 1 to 3, OLMo 2) become texts that read whole
    sequences; `einc compile --step tokens=1` derives a step over key/value caches from one. So do all other causal
    models that transformers has, and encoders, encoder-decoders and vision models (RoBERTa, T5, Whisper, ViT); torch
    and transformers have to be there for them. Encoders (BERT) return hidden states, pooled embeddings or the logits of
    their head. Nothing in the folder is executed. Every default that is used is printed. What is not supported is an
    error.
    """
    from einc.importers.common import ImportRequest
    from einc.importers.hf import import_model
    from einc.importers.weight_files import describe_weight, write_weights

    request = ImportRequest(**arguments)
    if request.normalize and request.pool is None:
        raise UsageError("--normalize needs --pool")
    if as_json and target == output.STDOUT:
        raise UsageError("-o - writes the model to standard output, which --json needs for itself")
    constants = f"{os.path.splitext(target)[0]}.constants.safetensors"
    output.require_outputs([target, *([] if target == output.STDOUT else [constants])], [folder])
    with show_phases() as phase:
        phase("reading the configuration and the names of weights")
        model = read_published_model(folder)
        imported = import_model(model.config, model.where, model.name, request, model.stored)
        phase("checking the model")
        _check_model(imported.text, model.where)
        if imported.constants and target == output.STDOUT:
            raise UsageError("-o - writes the model alone, and this one has constants of its own: name a file")
        output.write_text(target, imported.text)
        if imported.constants:
            weights = [describe_weight(stored, array) for stored, array in imported.constants.items()]
            output.write_file(constants, lambda stream: write_weights(stream, weights))
            stored = "--weights takes it beside the folder"
            output.note(f"einc: {constants}: what the model computes from its sizes alone; {stored}")
    for note in imported.notes:
        output.note(f"einc: {note}")
    if as_json:
        files = {"constants": constants} if imported.constants else {}
        output.say_json({"model": target, **files, "notes": list(imported.notes)})
    elif target != output.STDOUT:
        output.note(f"{target}: {imported.architecture} of {folder}")


def _check_model(text: str, where: str) -> None:
    """Raises ModelError if the text is no valid model: then the numbers of the configuration contradict each other."""
    from einc.errors import Diagnostic
    from einc.frontend import build

    try:
        build(text, "the model")
    except ModelError as error:
        problems = [Diagnostic(f"{where}: these numbers make no model: {d.message}") for d in error.diagnostics]
        raise ModelError(problems) from None
