"""What merging products would be worth that read the same input: einc multiplies each weight by itself."""

from __future__ import annotations

from einc.machines.load import load_gpu
from einc.predict.kernel_times import find_rates, time_product_us
from einc_runtime.plan.work import ProductWork
from tests.truth.models import CONFIGS

BYTES = 2
"""Of an element in bf16."""


def time_products_us(model: str, gpu: str, rows: int, gpus: int, merged: bool) -> float:
    """The products of a layer for so many tokens, cut as Megatron does: q, k, v and gate, up apart or merged."""
    rates = find_rates(load_gpu(gpu).products, "bf16")
    assert rates is not None
    config = CONFIGS[model]
    width, inner = config["hidden_size"], config["intermediate_size"] // gpus
    head = config.get("head_dim", width // config["num_attention_heads"])
    queries = config["num_attention_heads"] * head // gpus
    keys = config["num_key_value_heads"] * head // gpus
    first = [queries + 2 * keys, 2 * inner] if merged else [queries, keys, keys, inner, inner]
    shapes = [*((columns, width) for columns in first), (width, queries), (width, inner)]
    return sum(
        time_product_us(
            rates,
            ProductWork(1, rows, columns, depth),
            BYTES * (rows * depth + columns * depth + rows * columns),
            BYTES,
        )
        for columns, depth in shapes
    )
