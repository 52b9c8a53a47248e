"""Attention."""

from __future__ import annotations

import math

from einc.importers.arrays.attention import attend
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten


@aten("scaled_dot_product_attention")
def convert_attention(
    call: Call, query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    if dropout_p:
        raise UnsupportedError("random numbers of a dropout", "call eval() on the module before it is exported")
    factor = 1 / math.sqrt(query.shape[-1].value) if scale is None else scale
    return attend(call.program, query, key, value, attn_mask, is_causal, factor, call.hint)
