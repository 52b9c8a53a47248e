"""Options that say how weights are stored in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

BIT_FORMS = {"8": "i8", "4": "i4", "f8": "f8e4m3", "mxfp8": "mxfp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
"""What `--bits` says, and the form of the language that it is."""


def bits_option(default: str | None, text: str) -> Callable[[F], F]:
    return click.option("--bits", type=click.Choice(list(BIT_FORMS)), default=default, help=text)


def round_inputs_option(function: F) -> F:
    text = "Have products round what they multiply with the weights to 8 bits, token by token."
    return click.option("--round-inputs", is_flag=True, help=text)(function)
