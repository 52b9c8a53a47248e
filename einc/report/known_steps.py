"""What people call the way a training step is cut: data or tensor parallelism, with or without sharded states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.schema import Bundle, Operation
from einc_runtime.plan.states import find_updates, is_weight

NAMED_PART = 0.9
"""A kind of parallelism has a name if so much of the work of products is cut so."""
CLOSE = 0.05
"""Copies of states that are so near to one, or to one for each site, count as that: small ones are often whole."""


def describe_parallelism(bundle: Bundle) -> dict[str, Any] | None:
    """How most products of a training step are cut that read weights, and how many copies of its states there are.

    `data` counts the intervals of what a weight lacks, as tokens, `tensor` those of a weight's dimensions; `part` is
    the part of the work of products that is cut so. None for any other plan, and for one site.
    """
    updates = find_updates(bundle.operations)
    trained = {t for t in updates.values() if is_weight(bundle.tensors[t])}
    if not trained or len(bundle.devices) < 2:
        return None
    kinds: Counter[tuple[int, int]] = Counter()
    loss = bundle.outputs[0].tensor
    for operation in bundle.operations:
        if len(operation.inputs) == 1 and operation.inputs[0] in trained:
            trained.update(operation.outputs)  # a weight of 16 bits
        kind = _find_kind(operation, trained)
        if kind is not None:
            kinds[kind] += sum(function.flops for function in operation.functions)
        if loss in operation.outputs:
            break
    if not kinds:
        return None
    (data, tensor), work = kinds.most_common(1)[0]
    copies, sites = _count_copies(bundle, updates), len(bundle.devices)
    part = work / kinds.total()
    return {
        "data": data, "tensor": tensor, "part": part, "copies": copies,
        "name": _name(data, tensor, copies, sites) if part >= NAMED_PART and data * tensor > 1 else None,
    }  # fmt: skip


def format_parallelism(parallelism: dict[str, Any] | None) -> list[str]:
    """A line on it, where it has a name."""
    if parallelism is None or parallelism["name"] is None:
        return []
    return [f"known as {parallelism['name']}: {parallelism['part']:.0%} of the work of products with weights is cut so"]


def _find_kind(operation: Operation, trained: set[int]) -> tuple[int, int] | None:
    """The intervals of what the weight of a product lacks, and those of its dimensions; None for other operations."""
    text = operation.attributes.get("indices")
    weights = [k for k, tensor in enumerate(operation.inputs) if tensor in trained]
    if operation.kernel != "contract" or not isinstance(text, str) or len(weights) != 1 or len(operation.inputs) != 2:
        return None
    labels = parse_index_equation(text).inputs[weights[0]]
    counts = {index.name: len(index.intervals) for index in operation.indices}
    tensor = math.prod(count for name, count in counts.items() if name in labels)
    return math.prod(counts.values()) // tensor, tensor


def _count_copies(bundle: Bundle, updates: Mapping[int, int]) -> float:
    """How often the elements of states are kept on all sites together; new contents lie where the old ones do."""
    kept = sum(math.prod(b.block.shape) for b in bundle.buffers if b.role == "state")
    declared = sum(2 * math.prod(bundle.tensors[state].shape) for state in updates.values())
    return float(kept / max(1, declared))


def _name(data: int, tensor: int, copies: float, sites: int) -> str:
    if data > 1 and tensor > 1:
        name = f"data parallelism over {data} x tensor parallelism over {tensor}"
    elif tensor > 1:
        name = f"tensor parallelism over {tensor}"
    else:
        name = f"data parallelism over {data}"
    if copies <= 1 + CLOSE:
        return f"{name}, with states sharded among all sites" + (" (ZeRO, FSDP)" if tensor == 1 else "")
    is_on_all = copies >= sites * (1 - CLOSE)
    return f"{name}, with states whole on every site" if is_on_all else f"{name}, with {copies:.3g} copies of states"
