"""The options of commands that derive gradients and training steps from a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from einc_runtime.cli.base import TextType

F = TypeVar("F", bound=Callable[..., Any])


def training_options(function: F) -> F:
    function = click.option(
        "--recompute",
        metavar="LEVEL",
        help="With --train: what is computed again for gradients, to save memory: none, cheap, blocks, blocks=N, or as "
        "little as fits.  [default: auto]",
    )(function)
    function = click.option(
        "--accumulate",
        is_flag=True,
        help="With --optimizer: add up gradients over several runs (einc train --accumulate N).",
    )(function)
    function = click.option(
        "--clip",
        type=click.FloatRange(min=0, min_open=True),
        help="With --optimizer: the largest norm of all gradients.",
    )(function)
    function = click.option(
        "--no-decay",
        "undecayed",
        metavar="PATTERN",
        multiple=True,
        help="With --optimizer: weights of these names do not decay: '*bias', '*norm*'.",
    )(function)
    function = click.option(
        "--decay",
        type=click.FloatRange(min=0),
        help="With --optimizer: by which part of the learning rate weights decay.  [default: 0.01 for adamw, else 0]",
    )(function)
    function = click.option(
        "--gradients",
        type=TextType("W1,W2", lambda text: tuple(name.strip() for name in text.split(","))),
        help="With --train: of which inputs and weights.  [default: all weights]",
    )(function)
    return training_step_options(function)


def training_step_options(function: F) -> F:
    """Adds `--train`, and what a training step is made of."""
    function = click.option(
        "--precision",
        type=click.Choice(("bf16", "f16")),
        help="With --optimizer: products of this type, and weights of f32; with f16, the loss is scaled.",
    )(function)
    function = click.option(
        "--optimizer",
        type=click.Choice(("sgd", "adamw", "lion")),
        help="With --train: plan a training step, with outputs NAME.next for weights and what the optimizer keeps.",
    )(function)
    text = "Add the gradients of the output LOSS, one float: an output NAME.gradient for each weight."
    return click.option("--train", metavar="LOSS", help=text)(function)
