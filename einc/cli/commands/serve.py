"""`einc serve`: a published model over HTTP, for clients of OpenAI's API."""

from __future__ import annotations

from typing import Any

import click

from einc.cli.options import SECONDS, ignore_option, machine_option, tokenizer_option
from einc_runtime.cli.base import DEVICE_NUMBERS, command
from einc_runtime.cli.blas import load_numpy


@command(
    "serve",
    "einc serve llama-3-8b-instruct --port 8000",
    "einc serve qwen3-0.6b --batch 16 --context 4096 --queue 200 --sites 8",
    "einc serve all-MiniLM-L6-v2 --port 8001",
    short_help="Answer requests as OpenAI's API does.",
)
@click.argument("folder", metavar="DIR|FILE.gguf")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one.  [default: 8000]")
@click.option("--host", default="127.0.0.1", help="The address to listen at.  [default: 127.0.0.1]")
@click.option("--name", help="What requests call the model.  [default: the folder's name]")
@machine_option()
@click.option("--sites", type=DEVICE_NUMBERS, help="How many sites of it, or which ones.  [default: all; of a CPU one]")
@click.option("--dtype", metavar="DTYPE", help="Compute in f16, bf16, f32 or f64.  [default: as in config.json]")
@click.option("--batch", type=click.IntRange(1, 4096), help="Texts at once.  [default: 8]")
@click.option(
    "--context", type=click.IntRange(2, 2**24), help="Tokens of a text.  [default: the model's, at most 2048]"
)
@click.option(
    "--cache-tokens", type=click.IntRange(1, 2**32), help="Tokens of all texts together.  [default: of the longest]"
)
@click.option("--chunk", type=click.IntRange(2, 2**24), help="Tokens of a prompt between two steps.  [default: 128]")
@click.option("--max-tokens", type=click.IntRange(1, 2**24), help="New tokens of a request at most.  [default: any]")
@click.option("--queue", type=click.IntRange(0, 2**16), default=64, help="Texts that may wait.  [default: 64]")
@click.option("--drain", type=SECONDS, default=30.0, help="Time to finish requests at the end.  [default: 30]")
@click.option("--reproducible", is_flag=True, help="The same bits for any batch and any number of sites.")
@ignore_option
@tokenizer_option
@click.option("--plans", metavar="FOLDER", help="Where plans are kept.  [default: in the user's cache folder]")
def serve_command(**arguments: Any) -> None:
    """Answer requests as OpenAI's API does: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models.

    DIR has a config.json, a tokenizer.json and safetensors files of a decoder, or of an encoder that makes vectors of
    texts. Plans that are missing are compiled first, and kept. SIGTERM and Ctrl-C finish what runs and end the server;
    a second one ends it at once. Nothing in the folder is executed, but its chat template, in a sandbox.
    """
    load_numpy()
    from einc.cli.model_serving import ServeArguments, serve

    serve(ServeArguments(**arguments))
