"""Parameters of tests of which the suite takes some, and the slow suite (`make test-slow`) all the others."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import pytest


def one_in(step: int, *axes: Collection[Any]) -> list[Any]:
    """All combinations of the values; only one in `step` is not slow, so that every value is among those.

    Neighbours along each axis go by turns, so that with a `step` of 2 no value meets the same few of another axis.
    """
    positions = itertools.product(*(range(len(axis)) for axis in axes))
    return [
        _param(values, sum(position) % step == 0)
        for position, values in zip(positions, itertools.product(*axes), strict=True)
    ]


def first(count: int, values: Collection[Any]) -> list[Any]:
    """All values; only the first `count` are not slow."""
    return [_param((value,), number < count) for number, value in enumerate(values)]


def _param(values: tuple[Any, ...], quick: bool) -> Any:
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)
