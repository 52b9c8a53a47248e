"""`einc generate`: text from a published language model, by plans that are compiled where they are missing."""

from __future__ import annotations

from typing import Any

import click

from einc.cli.options import ignore_option, machine_option, tokenizer_option
from einc_runtime.cli.base import DEVICE_NUMBERS, command, json_option, ranks_option, shares_option
from einc_runtime.cli.blas import load_numpy


@command(
    "generate",
    "einc generate llama-3-8b 'The capital of France is'",
    "einc generate llama-3-8b-instruct --chat 'What is a join?' --max-tokens 200",
    "einc generate qwen3-0.6b 'One' 'Two' 'Three' --sites 8 --temperature 0.7 --seed 1 --json",
    short_help="Continue texts with a published language model.",
)
@click.argument("folder", metavar="DIR|FILE.gguf")
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@machine_option()
@click.option("--sites", type=DEVICE_NUMBERS, help="How many sites of it, or which ones.  [default: all; of a CPU one]")
@click.option("--dtype", metavar="DTYPE", help="Compute in f16, bf16, f32 or f64.  [default: as in config.json]")
@click.option("--batch", type=click.IntRange(1, 4096), help="Sequences at once.  [default: one a prompt, at most 8]")
@click.option("--max-tokens", type=click.IntRange(1, 2**20), default=128, help="New tokens of each.  [default: 128]")
@click.option("--temperature", type=float, help="0 takes the most likely token.  [default: 0, or the model's]")
@click.option("--top-p", type=float, help="Draw from the tokens of this probability.  [default: 1, or the model's]")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seeds what is drawn.  [default: 0]")
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help="End a text before this one appears in it.")
@click.option("--chat", is_flag=True, help="A prompt is what a user says: write it in the model's chat template.")
@click.option("--system", metavar="TEXT", help="With --chat: what the model is told before.")
@click.option("--ids", "as_ids", is_flag=True, help="Prompts and results are tokens, such as 1,15,7; no tokenizer.")
@ignore_option
@tokenizer_option
@click.option("--plans", metavar="FOLDER", help="Where plans are kept.  [default: in the user's cache folder]")
@ranks_option
@shares_option
@click.option("--price-pins", is_flag=True, help="Say what it costs that the plans share weights and caches.")
@json_option
def generate_command(**arguments: Any) -> None:
    """Continue texts with a published language model.

    DIR has a config.json, a tokenizer.json and safetensors files. Plans that are missing are compiled and kept. The
    prompt `-` is read from standard input. The text of one prompt is printed as it is made; of several, each when it is
    complete. Nothing in the folder is executed, but with --chat its template, in a sandbox.
    """
    load_numpy()
    from einc.cli.text_generation import GenerateArguments, generate

    generate(GenerateArguments(**arguments))
