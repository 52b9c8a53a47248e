"""A model with a state in steps of two tokens for each of three sequences, and what it computes."""

from __future__ import annotations

from functools import cache

import numpy as np

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc_runtime.plan.schema import Bundle

MODEL = """
model steps
param cache_lengths = [7, 4, 6]
param lengths = [2, 1, 3]
dim tokens = sum(lengths)
dim places = sum(cache_lengths)
dim heads = 4
dim d = 5
input x : f32[heads, tokens, d]
input positions : i64[tokens]
state keys : f32[heads, places, d]
ks = append(keys, x, positions, cache_lens=cache_lengths, new_lens=lengths)
y[heads, d] = sum[places](ks[heads, places, d] * ks[heads, places, d])
output y, ks
"""
STARTS = np.array([0, 0, 7, 11, 11, 11])
"""The first place of the sequence of each new row."""


@cache
def compile_steps(sites: int, pin: str = "", placement: str = "replicated") -> Bundle:
    pins = (parse_pin(pin),) if pin else ()
    options = CompileOptions("host", sites, selector="eindecomp", pins=pins, input_placement=placement)
    return compile_model(MODEL, "steps.ein", options).bundle


class Steps:
    """Random inputs one after the other, and what the state and `y` are after each."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(4)
        self.keys = np.zeros((4, 17, 5), "f4")

    def draw(self) -> dict[str, np.ndarray]:
        x = self._random.standard_normal((4, 6, 5)).astype("f4")
        positions = self._random.integers(0, [7, 7, 4, 6, 6, 6])
        for token in range(6):
            self.keys[:, STARTS[token] + positions[token]] = x[:, token]
        return {"x": x, "positions": positions}

    @property
    def y(self) -> np.ndarray:
        return (self.keys.astype("f8") ** 2).sum(1)
