"""Checks on a plan file that has just been decoded: everything that the types of the schema cannot express.

Every number that the rest of the runtime uses as a position, a size or an address is checked here, in time that is
close to linear in the size of the plan. `meaning` says what is true of each operation; `proof` checks what all compute.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from einc_runtime.plan import boxes
from einc_runtime.plan.checks import (
    MAX_COUNTS,
    MAX_RECORDS,
    require,
    require_block,
    require_count,
    require_length,
    require_name,
    require_natural,
    require_position,
    require_text,
    require_tiling,
    require_unique,
)
from einc_runtime.plan.meaning.operations import require_blocks, require_labels
from einc_runtime.plan.repetition import check_repetition, sum_costs
from einc_runtime.plan.schema import ITEMSIZE, MAX_RANK, Attribute, Block, Bundle, Exchange, Index, Operation, Scalar
from einc_runtime.plan.task_validation import validate_tasks
from einc_runtime.text import escape_text

MAX_RUNTIME_SITES = 4096  # as many as the compiler plans for
MAX_RUNTIME_PARTS = 4096  # of a batch: as many as the compiler makes
MAX_ARENA = 1 << 50  # bytes of a tensor or of a site's arena
MAX_COUNT = (1 << 63) - 1  # integers of 64 bits
MAX_TEXT = 1 << 20  # characters of an attribute
MAX_EMBEDDED_TEXT = 32 << 20  # characters of an exchange program or a machine file
MAX_REPORT = 1 << 20  # bytes of the section that the runtime does not read
MAX_CORNERS = 1 << 22  # corners of blocks in checks of tilings: they take some seconds


def validate(bundle: Bundle) -> None:
    """Raises PlanFault, naming the part, at the first fault. Of a plan that says a layer once, its copies are not
    looked at."""
    validate_statements(bundle)
    validate_tasks(bundle, MAX_CORNERS)


def validate_statements(bundle: Bundle) -> None:
    """The same for everything but buffers, tasks and the regions of outputs."""
    _check_header(bundle)
    check_repetition(bundle)
    _check_tensors(bundle)
    _check_operations(bundle)
    for i, output in enumerate(bundle.outputs):
        _check_exchange(output.exchange, f"outputs[{i}].exchange")
        require(len(output.later) < MAX_RUNTIME_PARTS, f"outputs[{i}].later", f"{len(output.later)} exchanges")
        for k, exchange in enumerate(output.later):
            _check_exchange(exchange, f"outputs[{i}].later[{k}]")


def require_short_texts(bundle: Bundle) -> None:
    """Raises PlanFault if a text or the report of the plan is longer than readers accept."""
    _require_short_report(bundle)
    require_length(bundle.machine_file, MAX_EMBEDDED_TEXT, "machine_file")
    for field in ("operations", "outputs"):
        for i, part in enumerate(getattr(bundle, field)):
            for exchange in (part.exchange, *part.later):
                if exchange is not None:
                    require_length(exchange.program, MAX_EMBEDDED_TEXT, f"{field}[{i}].exchange.program")


def _require_short_report(bundle: Bundle) -> None:
    size = len(bundle.report)
    require(size <= MAX_REPORT, "report", f"{size} bytes; the report of a plan has at most {MAX_REPORT}")


def _check_header(bundle: Bundle) -> None:
    for field in ("producer", "model", "machine", "selector", "schedule"):
        require_name(getattr(bundle, field), field)
    require_text(bundle.machine_file, MAX_EMBEDDED_TEXT, "machine_file")
    sites = len(bundle.devices)
    require(1 <= sites <= MAX_RUNTIME_SITES, "devices", f"{sites} devices; a plan has 1 to {MAX_RUNTIME_SITES}")
    for device in bundle.devices:
        require_natural(device, MAX_RECORDS, "devices")
    require_unique(bundle.devices, "devices")
    require(len(bundle.memory) == sites, "memory", f"{len(bundle.memory)} arena sizes for {sites} sites")
    for site, size in enumerate(bundle.memory):
        require_natural(size, MAX_ARENA, f"memory[{site}]")
    _check_duration(bundle.predicted_ms, "predicted_ms")
    _require_short_report(bundle)
    for field, limit in MAX_COUNTS.items():
        require_count(getattr(bundle, field), limit, field)


def _check_tensors(bundle: Bundle) -> None:
    for i, tensor in enumerate(bundle.tensors):
        where = f"tensors[{i}]"
        require_name(tensor.name, f"{where}.name")
        require_count(tensor.shape, MAX_RANK, f"{where}.shape")
        require(len(tensor.dims) == len(tensor.shape), where, f"{len(tensor.dims)} names for {len(tensor.shape)} dims")
        for dim in tensor.dims:
            require_name(dim, f"{where}.dims")
        require(all(extent >= 1 for extent in tensor.shape), f"{where}.shape", "extents must be at least 1")
        require_natural(math.prod(tensor.shape) * ITEMSIZE[tensor.dtype], MAX_ARENA, f"{where}.shape")
        require(1 <= tensor.fan_in <= MAX_COUNT, f"{where}.fan_in", f"{tensor.fan_in} is not 1 or more")
        if tensor.stored is not None:
            require_name(tensor.stored, f"{where}.stored")
        if tensor.order:
            dims = list(range(len(tensor.shape)))
            require(sorted(tensor.order) == dims, f"{where}.order", "it does not list every dimension exactly once")
            require(tensor.kind == "value", f"{where}.order", "only values may have another order of dimensions")
    require_unique((tensor.name for tensor in bundle.tensors), "tensors")


def _check_operations(bundle: Bundle) -> None:
    """Checks operations; also that they can run in their order, and that each value is computed exactly once."""
    known = [tensor.kind != "value" for tensor in bundle.tensors]
    require_unique((operation.name for operation in bundle.operations), "operations")
    for i, operation in enumerate(bundle.operations):
        where = f"operations[{i}]"
        _check_labels(operation, where)
        for position in operation.inputs:
            require_position(position, len(known), "tensor", f"{where}.inputs")
            require(known[position], f"{where}.inputs", f"tensor {position} is used before it is computed")
        for position in operation.outputs:
            require_position(position, len(known), "tensor", f"{where}.outputs")
            require(not known[position], f"{where}.outputs", f"tensor {position} is computed or loaded elsewhere")
            known[position] = True
    for position, computed in enumerate(known):
        require(computed, f"tensors[{position}]", "no operation computes this value")
    total = sum_costs(bundle)
    require(total == bundle.total_cost, "total_cost", f"{bundle.total_cost}, where the operations cost {total}")
    derived = require_labels(bundle)
    budget = boxes.StepBudget(MAX_CORNERS)
    for i, operation in enumerate(bundle.operations):
        _check_indices(operation, f"operations[{i}]")
        _check_functions(bundle, operation, f"operations[{i}]", budget)
    require_blocks(derived)


def _check_labels(operation: Operation, where: str) -> None:
    require_name(operation.name, f"{where}.name")
    require_name(operation.title, f"{where}.title")
    if operation.source is not None:
        require_name(operation.source, f"{where}.source")
    if operation.pin is not None:
        require_name(operation.pin, f"{where}.pin")
    _check_attributes(operation.attributes, f"{where}.attributes")
    for field in ("repartition", "join", "aggregation"):
        require_natural(getattr(operation.cost, field), MAX_COUNT, f"{where}.cost.{field}")
    _check_exchange(operation.exchange, f"{where}.exchange")
    for k, exchange in enumerate(operation.later):
        _check_exchange(exchange, f"{where}.later[{k}]")


def _check_attributes(attributes: dict[str, Attribute], where: str) -> None:
    for name, value in attributes.items():
        require_name(name, where)
        for scalar in value if isinstance(value, list) else [value]:
            _check_scalar(scalar, f"{where}['{name}']")


def _check_scalar(value: Scalar, where: str) -> None:
    if isinstance(value, str):
        require_text(value, MAX_TEXT, where)
    elif isinstance(value, float):
        require(not math.isnan(value), where, "not a number")  # no plan would equal itself
    else:
        require(-(1 << 63) <= value < 1 << 63, where, f"{value} does not fit into 64 bits")


def _check_exchange(exchange: Exchange | None, where: str) -> None:
    if exchange is None:
        return
    require_text(exchange.program, MAX_EMBEDDED_TEXT, f"{where}.program")
    for field in ("completion_ms", "naive_ms", "bound_ms", "bound_free_ms"):
        _check_duration(getattr(exchange, field), f"{where}.{field}")
    if exchange.bound_by is not None:
        require_name(exchange.bound_by, f"{where}.bound_by")
    require_count(list(exchange.splits), MAX_RECORDS, f"{where}.splits")
    for name, pieces in exchange.splits.items():
        require_name(name, f"{where}.splits")
        require(1 < pieces <= MAX_COUNT, f"{where}.splits", f"{pieces} pieces of {escape_text(name, 60)}")


def _check_duration(ms: float | None, where: str) -> None:
    if ms is not None:
        require(0 <= ms < math.inf, where, f"{ms} is not a duration")


def _check_indices(operation: Operation, where: str) -> None:
    for k, index in enumerate(operation.indices):
        _check_index(index, f"{where}.indices[{k}]")
    require(1 <= operation.replicas <= MAX_RUNTIME_SITES, f"{where}.replicas", f"{operation.replicas} replicas")
    parts, later = operation.parts, len(operation.later)
    require(1 <= parts <= MAX_RUNTIME_PARTS, f"{where}.parts", f"{parts} parts")
    require(later in (0, parts - 1), f"{where}.later", f"{later} later exchanges of {parts} parts")
    needed = math.prod(len(index.intervals) for index in operation.indices) * operation.replicas
    count = len(operation.functions)
    require(needed == count, f"{where}.functions", f"{count} functions, where the intervals ask for {needed}")


def _check_index(index: Index, where: str) -> None:
    require(1 <= len(index.intervals) <= MAX_RUNTIME_SITES, f"{where}.intervals", f"{len(index.intervals)} intervals")
    bounds = [0, *(up for _, up in index.intervals)]
    require(bounds[-1] == index.extent, f"{where}.intervals", f"they do not end at {index.extent}")
    for interval, expected in zip(index.intervals, itertools.pairwise(bounds), strict=True):
        require(interval == expected and interval[0] < interval[1], f"{where}.intervals", f"{interval} is out of place")
    if index.cuts is not None:
        cuts = frozenset(index.cuts)
        for bound in bounds[1:-1]:
            require(bound in cuts, f"{where}.intervals", f"{bound} is not an allowed cut")


def _check_functions(bundle: Bundle, operation: Operation, where: str, budget: boxes.StepBudget) -> None:
    """Blocks lie in their tensors, output blocks tile (paper, Definition 5), a site has at most a function per part."""
    outer_inputs = [Block.whole(bundle.tensors[position].shape) for position in operation.inputs]
    outer_outputs = [Block.whole(bundle.tensors[position].shape) for position in operation.outputs]
    for f, function in enumerate(operation.functions):
        at = f"{where}.functions[{f}]"
        require_position(function.site, len(bundle.devices), "site", f"{at}.site")
        require_natural(function.flops, MAX_COUNT, f"{at}.flops")
        require_natural(function.traffic, MAX_COUNT, f"{at}.traffic")
        for name, count in () if function.work is None else msgspec.structs.asdict(function.work).items():
            require_natural(count, MAX_COUNT, f"{at}.work.{name}")
        _check_projections(function.inputs, outer_inputs, f"{at}.inputs")
        _check_projections(function.outputs, outer_outputs, f"{at}.outputs")
    if operation.parts == 1:
        require_unique((function.site for function in operation.functions), f"{where}.functions, by site")
    else:
        site, count = Counter(function.site for function in operation.functions).most_common(1)[0]
        require(count <= operation.parts, f"{where}.functions", f"{count} of {operation.parts} parts at site {site}")
    for j, outer in enumerate(outer_outputs):
        require_tiling(outer, [function.outputs[j] for function in operation.functions], budget, f"{where}.functions")
    if operation.replicas > 1:
        _check_replicas(operation, where)


def _check_replicas(operation: Operation, where: str) -> None:
    """Replicas are alike in everything but their sites, and no block is put out in partial copies."""
    first = operation.functions[: operation.distinct]
    for f, function in enumerate(operation.functions):
        like = first[f % len(first)]
        equal = (function.inputs, function.outputs) == (like.inputs, like.outputs)
        equal = equal and (function.flops, function.traffic, function.work) == (like.flops, like.traffic, like.work)
        require(equal, f"{where}.functions[{f}]", f"it is a replica of function {f % len(first)} and differs from it")
    for j in range(len(operation.outputs)):
        require_unique((function.outputs[j] for function in first), f"{where}.functions, output {j}")


def _check_projections(blocks: Sequence[Block], outer: Sequence[Block], where: str) -> None:
    require(len(blocks) == len(outer), where, f"{len(blocks)} blocks, where the operation has {len(outer)}")
    for k, (block, container) in enumerate(zip(blocks, outer, strict=True)):
        require_block(block, container, f"{where}[{k}]")
