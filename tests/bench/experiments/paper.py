"""What the paper reports for its Experiments 1 to 5 (Section 6): numbers of its text and its table, not of its plots.

Times are measured milliseconds on eight A100s of 40 GB.
"""

from __future__ import annotations

EINSUMMABLE_MS = {"b1x1k": 1.21, "b1x128k": 143.0}
RIVALS_MS = {
    "JAX": {"b1x1k": 0.83},
    "PyTorch": {"b1x1k": 1.72, "b1x128k": 506.0},
    "vLLM": {"b1x1k": 2.19, "b1x128k": 498.0},
}
BLOCK_MEAN_MS = {"Einsummable": 8.97, "PyTorch": 13.65, "vLLM": 14.87}
"""Geometric means over the five workloads of the transformer block."""

OTHER_BLOCKS_MEAN_MS = (BLOCK_MEAN_MS["Einsummable"] ** 5 / (1.21 * 143.0)) ** (1 / 3)
"""The geometric mean of the three workloads whose times it does not print."""

CHAIN_SPEEDUP = 6.0
"""From one GPU to eight, about, of all three systems."""

RELATIVE_TO_OPTIMIZER = {
    "blocks": {"greedy": 1.023, "median": 22.8 / 8.97, "best": 17.6 / 8.97},
    "chains": {"greedy": 1.07, "median": 1.34, "best": 1.03},
}
"""Geometric means of times over the optimizer's: the greedy selector, and the median and the best of twenty random
plans. The best of the chains is within 3% either way."""

NAIVE_OVER_OPTIMIZED = {
    ("dgx-v100", "blocks"): 1.056,
    ("dgx-v100", "chain_a"): 1.41,
    ("dgx-v100", "chain_b"): 1.32,
    ("dgx-a100", "blocks"): 1.006,
}
"""Times with naive exchanges over times with synthesized ones; of blocks the geometric mean over the workloads."""

CORRELATION = {
    "b1x1k": 0.72,
    "b1x8k": 0.92,
    "b1x128k": 0.80,
    "b8x1k": 0.85,
    "b128x1k": 0.75,
    "chain_a": 0.73,
    "chain_b": 0.81,
    "chain_c": 0.87,
    "chain_d": 0.47,
    "chain_e": 0.92,
}
"""Pearson's r of cost and measured time over twenty random plans."""
