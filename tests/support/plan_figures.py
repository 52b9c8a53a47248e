"""The figures of a plan worked out anew from the bytes of its file, which are read with nothing but msgpack.

So none of the code is used that the figures come from.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import msgpack

WIDTH = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
Plan = dict[str, Any]


def read(data: bytes) -> Plan:
    """A plan file's payload, behind its header of 52 bytes."""
    plan: Plan = msgpack.unpackb(data[52:])
    return plan


def volume(block: Any) -> int:
    return prod(up - lo for lo, up in zip(*block, strict=True))


def blocks(functions: Any, side: str, position: int) -> set[str]:
    """The distinct blocks that functions read or write."""
    return {repr(function[side][position]) for function in functions}


def own_costs(plan: Plan, operation: Any, functions: Any) -> tuple[int, int]:
    """Join and aggregation of an operation with these functions."""
    join = sum(volume(block) for function in functions for block in function["inputs"])
    produced = sum(volume(block) for function in functions for block in function["outputs"])
    return join, produced - sum(prod(plan["tensors"][t]["shape"]) for t in operation["outputs"])


def repartition(plan: Plan, operation: Any, functions: Any, changed: dict[int, Any]) -> int:
    """What the inputs of an operation cost; `changed` has the functions of operations other than those of the plan."""
    makers = {t: (n, j) for n, op in enumerate(plan["operations"]) for j, t in enumerate(op["outputs"])}
    cost = 0
    for k, tensor in enumerate(operation["inputs"]):
        if tensor in makers:
            n, j = makers[tensor]
            producer_functions = changed.get(n, plan["operations"][n]["functions"])
            if blocks(functions, "inputs", k) != blocks(producer_functions, "outputs", j):
                cost += prod(plan["tensors"][tensor]["shape"])
    return cost


def total(plan: Plan, changed_functions: dict[int, Any] | None = None) -> int:
    """The cost of the plan, where some operations (by number) have other functions than they have."""
    changed_functions = changed_functions or {}
    cost = 0
    for n, operation in enumerate(plan["operations"]):
        functions = changed_functions.get(n, operation["functions"])
        cost += sum(own_costs(plan, operation, functions)) + repartition(plan, operation, functions, changed_functions)
    return cost


def region_bytes(plan: Plan, region: Any) -> int:
    buffer, block = region
    return volume(block) * WIDTH[plan["tensors"][plan["buffers"][buffer]["tensor"]]["dtype"]]


def moved(plan: Plan) -> Counter[tuple[str, bool]]:
    """Bytes sent for every operation, and for every output on its way home.

    No operation reads what it makes: what the maker of an output made comes home, tensors that go with it too.
    """
    makers = {tensor: n for n, operation in enumerate(plan["operations"]) for tensor in operation["outputs"]}
    saved = {plan["tensors"][output["tensor"]]["name"]: makers.get(output["tensor"]) for output in plan["outputs"]}
    bytes_moved: Counter[tuple[str, bool]] = Counter()
    for task in plan["tasks"]:
        if task["kind"] == "transfer":
            tensor = plan["buffers"][task["read"][0]]["tensor"]
            home = task["serves"] in saved and makers[tensor] == saved[task["serves"]]
            bytes_moved[task["serves"], home] += region_bytes(plan, task["read"])
    return bytes_moved


def memory(plan: Plan) -> list[int]:
    """Where the last buffer of every site ends, rounded up to 64 bytes."""
    ends = [0] * len(plan["devices"])
    for buffer in plan["buffers"]:
        size = volume(buffer["block"]) * WIDTH[plan["tensors"][buffer["tensor"]]["dtype"]]
        ends[buffer["site"]] = max(ends[buffer["site"]], -(-(buffer["offset"] + size) // 64) * 64)
    return ends
