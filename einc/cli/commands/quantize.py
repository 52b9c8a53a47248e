"""`einc quantize`: weights of 8 or 4 bits from a published folder."""

from __future__ import annotations

import os

import click

from einc.cli.options import BIT_FORMS, bits_option, round_inputs_option
from einc.errors import UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.errors import WriteFault
from einc_runtime.text import format_memory


@command(
    "quantize",
    "einc quantize llama-3-8b -o llama-3-8b-int8",
    "einc quantize llama-3-8b -o llama-3-8b-int4 --bits 4 --group 32",
    "einc quantize llama-3-8b -o llama-3-8b-w8a8 --round-inputs",
    "einc quantize llama-3-8b -o llama-3-8b-fp8 --bits f8 --group 128",
    "einc import hf llama-3-8b-int4 -o llama.ein",
    short_help="Make weights of 8 or 4 bits from a published folder.",
)
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", "target", metavar="DIR2", required=True, help="The folder to write; it is new.")
@bits_option(
    "8", "Bits of a weight; f8 for floats of 8 bits (e4m3), or a form with groups and scales of its own.  [default: 8]"
)
@click.option(
    "--group",
    type=click.IntRange(0),
    help="Neighbours in a row that share a scale, a multiple of 32; 0 for a row; with f8, 128 for blocks of 128 rows, "
    "too.  [default: 0 for 8 bits, else 32]",
)
@click.option("--zeros", is_flag=True, help="Give every scale a zero point.")
@click.option("--head", is_flag=True, help="Quantize the matrix of the logits (lm_head), too.")
@round_inputs_option
@json_option
def quantize_command(
    folder: str, target: str, bits: str, group: int | None, zeros: bool, head: bool, round_inputs: bool, as_json: bool
) -> None:
    """Make weights of 8 or 4 bits from a published folder of safetensors, by rounding to nearest.

    The linear layers are quantized; embeddings, norms and biases stay as they are. The new folder is in the layout of
    compressed-tensors, with the error of each tensor printed: the root mean square of what rounding changed, relative
    to that of the tensor. `einc import hf` reads it.
    """
    from einc.quantizing.folders import quantize_folder
    from einc.quantizing.schemes import choose_scheme

    files.require_present(folder, or_folder=True)
    if not os.path.isdir(folder):
        raise UsageError("expected a folder with safetensors files", where=folder)
    scheme = choose_scheme(BIT_FORMS[bits], group, zeros, round_inputs)
    try:
        with show_phases() as phase:
            quantized = quantize_folder(folder, target, scheme, head, phase, round_inputs=round_inputs)
    except OSError as error:
        raise WriteFault(f"cannot quantize: {error.strerror or error}", where=str(error.filename or target)) from None
    if as_json:
        tensors = [
            {"name": tensor.name, "shape": list(tensor.shape), "relative_error": tensor.relative}
            for tensor in quantized.errors
        ]
        output.say_json(
            {"folder": target, "bytes_before": quantized.before, "bytes": quantized.after, "tensors": tensors}
        )
        return
    width = max(len(tensor.name) for tensor in quantized.errors)
    for tensor in quantized.errors:
        output.say(f"{tensor.name:<{width}}  {' x '.join(map(str, tensor.shape)):>14}  error {tensor.relative:.4f}")
    sizes = f"{format_memory(quantized.before)} became {format_memory(quantized.after)}"
    output.note(f"{target}: {len(quantized.errors)} tensors of {bits} bits; {sizes}")
