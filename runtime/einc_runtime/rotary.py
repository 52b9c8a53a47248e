"""How fast pairs of elements turn in `rope`, for the kernels and for the compiler's reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array


def find_frequencies(attributes: Mapping[str, Any], pairs: int, precision: type[np.floating[Any]]) -> Array:
    """Radians per position of each pair: `theta ** (-pair / pairs)`, scaled as the attributes of a rotation say.

    `precision` is that of angles: f64 beside elements in f64, and otherwise f32, as in published implementations.
    """
    scaling = attributes["scaling"]
    exponents = np.arange(pairs, dtype=precision) / precision(pairs)
    with np.errstate(all="ignore"):  # extreme parameters give infinities and NaNs
        powers = np.power(attributes["theta"], exponents, dtype=np.float64).astype(precision)
        if scaling == "longrope":
            powers *= np.array(attributes["factors"], precision)
        frequencies: Array = 1 / powers
        if scaling == "linear":
            frequencies /= attributes["factor"]
        if scaling != "llama3":
            return frequencies
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_length")
        factor, low, high, original = (attributes[name] for name in names)
        # Pairs that turn less than `low` times over the original length slow down by the factor, those that turn more
        # than `high` times keep their pace, and those between are blended.
        lengths = 2 * math.pi / frequencies
        blend = (original / lengths - low) / (high - low)
        blended = (1 - blend) * frequencies / factor + blend * frequencies
        slow = np.where(lengths > original / low, frequencies / factor, blended)
        return np.where(lengths < original / high, frequencies, slow)
