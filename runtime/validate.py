"""Load-time checks on a decoded bundle: everything about its plan that the types of the schema cannot say.

Every number that the rest of the runtime uses as a position, a size or an address has been checked here, in time
that is close to linear in the size of the plan. What a plan computes is `runtime.verify`'s matter, and which kernels
exist is the registry's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from runtime import boxes
from runtime.checks import (
    printable,
    require,
    require_count,
    require_name,
    require_natural,
    require_position,
    require_text,
    require_unique,
)
from runtime.errors import PlanFault
from runtime.merges import groups, require_aggregation, require_merges
from runtime.schema import (
    ITEMSIZE,
    AggregateTask,
    AnyTask,
    Attribute,
    Block,
    Buffer,
    Bundle,
    CopyTask,
    Exchange,
    Function,
    Index,
    KernelTask,
    Operation,
    Region,
    Scalar,
    TransferTask,
)

MAX_RANK = 32
MAX_SITES = 4096
MAX_TASKS = 4_000_000
MAX_PARTS = 1_000_000  # tensors, operations, buffers, outputs
MAX_ARENA = 1 << 50  # bytes of a tensor or of a site's arena
MAX_COUNT = (1 << 63) - 1
MAX_TEXT = 1 << 20  # characters of an attribute
MAX_FILE = 16 << 20  # characters of an exchange program or a machine file
MAX_CORNERS = 1 << 22  # corners of blocks looked at in tiling checks, some seconds' worth


def validate(bundle: Bundle) -> None:
    """Raises PlanFault, naming the part, at the first thing in `bundle` that cannot be."""
    _header(bundle)
    _tensors(bundle)
    _operations(bundle)
    _buffers(bundle)
    _tasks(bundle)
    _outputs(bundle)


def _header(bundle: Bundle) -> None:
    for field in ("producer", "model", "machine", "selector", "schedule"):
        require_name(getattr(bundle, field), field)
    require_text(bundle.machine_file, MAX_FILE, "machine_file")
    sites = len(bundle.devices)
    require(1 <= sites <= MAX_SITES, "devices", f"{sites} devices; a plan has 1 to {MAX_SITES}")
    for device in bundle.devices:
        require_natural(device, MAX_PARTS, "devices")
    require_unique(bundle.devices, "devices")
    require(len(bundle.memory) == sites, "memory", f"{len(bundle.memory)} arena sizes for {sites} sites")
    for site, size in enumerate(bundle.memory):
        require_natural(size, MAX_ARENA, f"memory[{site}]")
    require_natural(bundle.cut_cost, MAX_COUNT, "cut_cost")
    _duration(bundle.predicted_ms, "predicted_ms")
    for field in ("tensors", "operations", "buffers", "outputs"):
        require_count(getattr(bundle, field), MAX_PARTS, field)
    require_count(bundle.tasks, MAX_TASKS, "tasks")


def _tensors(bundle: Bundle) -> None:
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
    require_unique((tensor.name for tensor in bundle.tensors), "tensors")


def _operations(bundle: Bundle) -> None:
    """Also: operations stand in an order in which they can run, and each value is computed exactly once."""
    known = [tensor.kind != "value" for tensor in bundle.tensors]
    budget = boxes.Budget(MAX_CORNERS)
    require_unique((operation.name for operation in bundle.operations), "operations")
    for i, operation in enumerate(bundle.operations):
        where = f"operations[{i}]"
        _labels(operation, where)
        for position in operation.inputs:
            require_position(position, len(known), "tensor", f"{where}.inputs")
            require(known[position], f"{where}.inputs", f"tensor {position} is used before it is computed")
        for position in operation.outputs:
            require_position(position, len(known), "tensor", f"{where}.outputs")
            require(not known[position], f"{where}.outputs", f"tensor {position} is computed or loaded elsewhere")
            known[position] = True
        outputs = len(operation.outputs)
        require(outputs >= 1, f"{where}.outputs", "an operation has at least one output")
        require(len(operation.aggregations) == outputs, where, f"not one aggregation for each of {outputs} outputs")
        _indices(operation, where)
        _functions(bundle, operation, where, budget)
        require_merges(bundle, operation, where)
    for position, computed in enumerate(known):
        require(computed, f"tensors[{position}]", "no operation computes this value")
    total = sum(o.cost.repartition + o.cost.join + o.cost.aggregation for o in bundle.operations)
    require(total == bundle.total_cost, "total_cost", f"{bundle.total_cost}, where the operations cost {total}")


def _labels(operation: Operation, where: str) -> None:
    require_name(operation.name, f"{where}.name")
    require_name(operation.title, f"{where}.title")
    require_name(operation.family, f"{where}.family")
    require_name(operation.kernel, f"{where}.kernel")
    if operation.source is not None:
        require_name(operation.source, f"{where}.source")
    _attributes(operation.attributes, f"{where}.attributes")
    _attributes(operation.kernel_attributes, f"{where}.kernel_attributes")
    for field in ("repartition", "join", "aggregation"):
        require_natural(getattr(operation.cost, field), MAX_COUNT, f"{where}.cost.{field}")
    _exchange(operation.exchange, f"{where}.exchange")


def _attributes(attributes: dict[str, Attribute], where: str) -> None:
    for name, value in attributes.items():
        require_name(name, where)
        for scalar in value if isinstance(value, list) else [value]:
            _scalar(scalar, f"{where}['{name}']")


def _scalar(value: Scalar, where: str) -> None:
    if isinstance(value, str):
        require_text(value, MAX_TEXT, where)
    elif isinstance(value, float):
        require(not math.isnan(value), where, "not a number")  # no plan would equal itself
    else:
        require(-(1 << 63) <= value < 1 << 63, where, f"{value} does not fit into 64 bits")


def _exchange(exchange: Exchange | None, where: str) -> None:
    if exchange is None:
        return
    require_text(exchange.program, MAX_FILE, f"{where}.program")
    for field in ("completion_ms", "naive_ms", "bound_ms", "bound_free_ms"):
        _duration(getattr(exchange, field), f"{where}.{field}")
    if exchange.bound_by is not None:
        require_name(exchange.bound_by, f"{where}.bound_by")
    require_count(list(exchange.splits), MAX_PARTS, f"{where}.splits")
    for name, pieces in exchange.splits.items():
        require_name(name, f"{where}.splits")
        require(1 < pieces <= MAX_COUNT, f"{where}.splits", f"{pieces} pieces of {printable(name, 60)}")


def _duration(ms: float | None, where: str) -> None:
    if ms is not None:
        require(0 <= ms < math.inf, where, f"{ms} is no duration")


def _indices(operation: Operation, where: str) -> None:
    require_count(operation.indices, MAX_RANK, f"{where}.indices")
    for k, index in enumerate(operation.indices):
        require_name(index.name, f"{where}.indices[{k}].name")
        _index(index, f"{where}.indices[{k}]")
    require_unique((index.name for index in operation.indices), f"{where}.indices")
    asked = math.prod(len(index.intervals) for index in operation.indices)
    found = len(operation.functions)
    require(asked == found, f"{where}.functions", f"{found} functions, where the intervals ask for {asked}")


def _index(index: Index, where: str) -> None:
    require(1 <= index.extent <= MAX_ARENA, f"{where}.extent", f"{index.extent} is not between 1 and {MAX_ARENA}")
    require(1 <= len(index.intervals) <= MAX_SITES, f"{where}.intervals", f"{len(index.intervals)} intervals")
    bounds = [0, *(up for _, up in index.intervals)]
    require(bounds[-1] == index.extent, f"{where}.intervals", f"they do not end at {index.extent}")
    for interval, expected in zip(index.intervals, itertools.pairwise(bounds), strict=True):
        require(interval == expected and interval[0] < interval[1], f"{where}.intervals", f"{interval} is out of place")
    if index.cuts is not None:
        ascending = all(a < b for a, b in itertools.pairwise((0, *index.cuts, index.extent)))
        require(ascending, f"{where}.cuts", f"not ascending inside 0 and {index.extent}")
        cuts = frozenset(index.cuts)
        for bound in bounds[1:-1]:
            require(bound in cuts, f"{where}.intervals", f"{bound} is no allowed cut")


def _functions(bundle: Bundle, operation: Operation, where: str, budget: boxes.Budget) -> None:
    """Blocks are projections, output blocks tile (paper, Definition 6), and functions have sites of their own."""
    outer_inputs = [boxes.whole(bundle.tensors[position].shape) for position in operation.inputs]
    outer_outputs = [boxes.whole(bundle.tensors[position].shape) for position in operation.outputs]
    for f, function in enumerate(operation.functions):
        at = f"{where}.functions[{f}]"
        require_position(function.site, len(bundle.devices), "site", f"{at}.site")
        require_natural(function.flops, MAX_COUNT, f"{at}.flops")
        require_natural(function.traffic, MAX_COUNT, f"{at}.traffic")
        _projections(function.inputs, outer_inputs, f"{at}.inputs")
        _projections(function.outputs, outer_outputs, f"{at}.outputs")
    require_unique((function.site for function in operation.functions), f"{where}.functions, by site")
    for j, outer in enumerate(outer_outputs):
        _tiling(outer, [function.outputs[j] for function in operation.functions], budget, f"{where}.functions")


def _projections(blocks: Sequence[Block], outer: Sequence[Block], where: str) -> None:
    require(len(blocks) == len(outer), where, f"{len(blocks)} blocks, where the operation has {len(outer)}")
    for k, (block, container) in enumerate(zip(blocks, outer, strict=True)):
        _block(block, container, f"{where}[{k}]")


def _block(block: Block, outer: Block, where: str) -> None:
    """`block` is a non-empty projection of `outer`."""
    lower, upper = block.lower, block.upper
    if not len(lower) == len(upper) == len(outer.lower):
        raise PlanFault(f"a block of {len(lower)} to {len(upper)} dimensions in {len(outer.lower)}", where=where)
    for lo, up, first, last in zip(lower, upper, outer.lower, outer.upper, strict=True):
        if not first <= lo < up <= last:
            raise PlanFault(f"{boxes.show(block)} is no block of {boxes.show(outer)}", where=where)


def _tiling(outer: Block, blocks: Iterable[Block], budget: boxes.Budget, where: str) -> None:
    fault = boxes.tiling_fault(outer, list(dict.fromkeys(blocks)), budget, where)
    if fault is not None:
        raise PlanFault(fault, where=where)


def _buffers(bundle: Bundle) -> None:
    """Buffers lie in their arenas, aligned; only scratch buffers may share bytes, with one another."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in bundle.devices]
    for i, buffer in enumerate(bundle.buffers):
        where = f"buffers[{i}]"
        require_position(buffer.site, len(bundle.devices), "site", f"{where}.site")
        require_position(buffer.tensor, len(bundle.tensors), "tensor", f"{where}.tensor")
        tensor = bundle.tensors[buffer.tensor]
        _block(buffer.block, boxes.whole(tensor.shape), f"{where}.block")
        loaded = buffer.role in ("input", "weight")
        require(not loaded or buffer.role == tensor.kind, f"{where}.role", f"{buffer.role} buffer of a {tensor.kind}")
        width, arena = ITEMSIZE[tensor.dtype], bundle.memory[buffer.site]
        end = buffer.offset + boxes.size(buffer.block) * width
        inside = buffer.offset >= 0 and end <= arena
        require(inside, where, f"bytes {buffer.offset} to {end} are outside the arena of {arena}")
        require(buffer.offset % width == 0, f"{where}.offset", f"{buffer.offset} is no multiple of {width}")
        spans[buffer.site].append((buffer.offset, end, i))
    for site in spans:
        _overlaps(bundle.buffers, sorted(site))


def _overlaps(buffers: Sequence[Buffer], spans: Sequence[tuple[int, int, int]]) -> None:
    """`spans` are the (first byte, end, buffer) of a site in ascending order."""
    last = last_kept = (0, -1)  # the furthest end so far, of any buffer and of one that is not scratch; and whose
    for start, end, i in spans:
        kept = buffers[i].role != "scratch"
        reach, other = last if kept else last_kept
        if start < reach:
            raise PlanFault(f"it shares bytes with buffer {other}, and not both are scratch", where=f"buffers[{i}]")
        last = max(last, (end, i))
        if kept:
            last_kept = max(last_kept, (end, i))


def _tasks(bundle: Bundle) -> None:
    names = {operation.name for operation in bundle.operations}
    names.update(bundle.tensors[o.tensor].name for o in bundle.outputs if 0 <= o.tensor < len(bundle.tensors))
    aggregating = groups(bundle)
    written = [buffer.role in ("input", "weight") for buffer in bundle.buffers]
    missing = [set(range(len(operation.functions))) for operation in bundle.operations]
    for i, task in enumerate(bundle.tasks):
        where = f"tasks[{i}]"
        require_position(task.site, len(bundle.devices), "site", f"{where}.site")
        require(task.serves in names, f"{where}.serves", f"'{printable(task.serves, 60)}' is no operation or output")
        earlier = -1
        for position in task.after:
            require(earlier < position < i, f"{where}.after", f"{position} is not in ascending order below {i}")
            earlier = position
        reads, writes = _regions(bundle, task, where)
        for at, region in reads:
            require(written[region.buffer], at, f"no earlier task writes buffer {region.buffer}")
        for at, region in writes:
            role = bundle.buffers[region.buffer].role
            require(role in ("scratch", "result"), at, f"a task writes the {role} buffer {region.buffer}")
            written[region.buffer] = True
        if isinstance(task, KernelTask):
            _kernel(bundle, task, missing, where)
        elif isinstance(task, TransferTask):
            _same(bundle, task.read, task.write, where)
        elif isinstance(task, AggregateTask):
            require_aggregation(bundle, task, aggregating, where)
            for k, region in enumerate(task.reads):
                _same(bundle, region, task.writes[k % len(task.writes)], where)
        elif isinstance(task, CopyTask):
            require(len(task.reads) == len(task.writes), where, f"{len(task.reads)} reads, {len(task.writes)} writes")
            for read, write in zip(task.reads, task.writes, strict=True):
                _same(bundle, read, write, where)
    for operation, left in enumerate(missing):
        require(not left, f"operations[{operation}]", f"no task runs its function {min(left, default=0)}")


Located = list[tuple[str, Region]]


def _regions(bundle: Bundle, task: AnyTask, where: str) -> tuple[Located, Located]:
    """What a task reads and writes, each with its place; all of it exists, and at the sites where it must be."""
    if isinstance(task, TransferTask):
        reads, writes = [(f"{where}.read", task.read)], [(f"{where}.write", task.write)]
    elif isinstance(task, KernelTask | CopyTask | AggregateTask):
        reads = [(f"{where}.reads[{k}]", region) for k, region in enumerate(task.reads)]
        writes = [(f"{where}.writes[{k}]", region) for k, region in enumerate(task.writes)]
    else:
        return [], []
    for at, region in itertools.chain(reads, writes):
        _region(bundle, region, at)
    for at, region in reads if isinstance(task, TransferTask) else itertools.chain(reads, writes):
        site = bundle.buffers[region.buffer].site
        require(site == task.site, at, f"buffer {region.buffer} is at site {site}, and the task runs at {task.site}")
    if isinstance(task, TransferTask):
        there = bundle.buffers[task.write.buffer].site
        require(there != task.site, f"{where}.write", f"a transfer from site {there} to itself")
    return reads, writes


def _region(bundle: Bundle, region: Region, where: str) -> None:
    require_position(region.buffer, len(bundle.buffers), "buffer", where)
    _block(region.block, bundle.buffers[region.buffer].block, where)


def _same(bundle: Bundle, read: Region, write: Region, where: str) -> None:
    """Both regions hold one block of one tensor."""
    if read.block != write.block:
        raise PlanFault(f"it reads {boxes.show(read.block)} and writes {boxes.show(write.block)}", where=where)
    source, target = bundle.buffers[read.buffer].tensor, bundle.buffers[write.buffer].tensor
    if source != target:
        raise PlanFault(f"it reads tensor {source} and writes tensor {target}", where=where)


def _kernel(bundle: Bundle, task: KernelTask, missing: list[set[int]], where: str) -> None:
    require_position(task.operation, len(bundle.operations), "operation", f"{where}.operation")
    operation = bundle.operations[task.operation]
    require_position(task.function, len(operation.functions), "function", f"{where}.function")
    left = missing[task.operation]
    require(task.function in left, where, f"function {task.function} of operation {task.operation} runs twice")
    left.remove(task.function)
    function: Function = operation.functions[task.function]
    require(task.site == function.site, f"{where}.site", f"{task.site}, and the function's is {function.site}")
    _operands(bundle, task.reads, function.inputs, operation.inputs, f"{where}.reads")
    _operands(bundle, task.writes, function.outputs, operation.outputs, f"{where}.writes")


def _operands(
    bundle: Bundle, regions: Sequence[Region], blocks: Sequence[Block], tensors: Sequence[int], where: str
) -> None:
    require(len(regions) == len(blocks), where, f"{len(regions)} regions, where the function has {len(blocks)}")
    for k, (region, block, tensor) in enumerate(zip(regions, blocks, tensors, strict=True)):
        found = bundle.buffers[region.buffer].tensor
        require(found == tensor, f"{where}[{k}]", f"tensor {found}, where the function takes {tensor}")
        if region.block != block:
            message = f"{boxes.show(region.block)}, where the function takes {boxes.show(block)}"
            raise PlanFault(message, where=f"{where}[{k}]")


def _outputs(bundle: Bundle) -> None:
    """The regions of every output tile its tensor, in buffers that live to the end."""
    budget = boxes.Budget(MAX_CORNERS)
    require_unique((output.tensor for output in bundle.outputs), "outputs")
    for i, output in enumerate(bundle.outputs):
        where = f"outputs[{i}]"
        require_position(output.tensor, len(bundle.tensors), "tensor", f"{where}.tensor")
        _exchange(output.exchange, f"{where}.exchange")
        for k, region in enumerate(output.regions):
            at = f"{where}.regions[{k}]"
            _region(bundle, region, at)
            buffer = bundle.buffers[region.buffer]
            require(buffer.tensor == output.tensor, at, f"it holds tensor {buffer.tensor}, not {output.tensor}")
            require(buffer.role != "scratch", at, f"buffer {region.buffer} is scratch, which does not live to the end")
        require_unique((region.block for region in output.regions), f"{where}.regions")
        outer = boxes.whole(bundle.tensors[output.tensor].shape)
        _tiling(outer, [region.block for region in output.regions], budget, f"{where}.regions")
