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
from runtime.errors import PlanFault
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
MAX_NAME = 1024  # characters
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


def printable(text: str, most: int = 200) -> str:
    """A text of unknown origin, cut to `most` characters, that no terminal takes for commands."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _check(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise PlanFault(message, where=where)


def _count(parts: Sequence[object], most: int, where: str) -> None:
    if len(parts) > most:
        raise PlanFault(f"{len(parts)} entries; at most {most} are allowed", where=where)


def _natural(number: int, most: int, where: str) -> None:
    if not 0 <= number <= most:
        raise PlanFault(f"{number} is not between 0 and {most}", where=where)


def _position(position: int, length: int, what: str, where: str) -> None:
    if not 0 <= position < length:
        raise PlanFault(f"there is no {what} {position}; the plan has {length}", where=where)


def _name(name: str, where: str) -> None:
    if not (0 < len(name) <= MAX_NAME and name.isprintable()):
        raise PlanFault(f"'{printable(name, 60)}' is not a printable name of 1 to {MAX_NAME} characters", where=where)


def _unique(names: Iterable[object], where: str) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise PlanFault(f"'{printable(str(name), 60)}' stands here twice", where=where)
        seen.add(name)


def _text(text: str, most: int, where: str) -> None:
    """A text of several lines."""
    if len(text) > most:
        raise PlanFault(f"{len(text)} characters; at most {most} are allowed", where=where)
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raise PlanFault("control characters", where=where)


def _header(bundle: Bundle) -> None:
    for field in ("producer", "model", "machine", "selector", "schedule"):
        _name(getattr(bundle, field), field)
    _text(bundle.machine_file, MAX_FILE, "machine_file")
    sites = len(bundle.devices)
    _check(1 <= sites <= MAX_SITES, "devices", f"{sites} devices; a plan has 1 to {MAX_SITES}")
    for device in bundle.devices:
        _natural(device, MAX_PARTS, "devices")
    _unique(bundle.devices, "devices")
    _check(len(bundle.memory) == sites, "memory", f"{len(bundle.memory)} arena sizes for {sites} sites")
    for site, size in enumerate(bundle.memory):
        _natural(size, MAX_ARENA, f"memory[{site}]")
    _natural(bundle.cut_cost, MAX_COUNT, "cut_cost")
    for field in ("tensors", "operations", "buffers", "outputs"):
        _count(getattr(bundle, field), MAX_PARTS, field)
    _count(bundle.tasks, MAX_TASKS, "tasks")


def _tensors(bundle: Bundle) -> None:
    for i, tensor in enumerate(bundle.tensors):
        where = f"tensors[{i}]"
        _name(tensor.name, f"{where}.name")
        _count(tensor.shape, MAX_RANK, f"{where}.shape")
        _check(len(tensor.dims) == len(tensor.shape), where, f"{len(tensor.dims)} names for {len(tensor.shape)} dims")
        for dim in tensor.dims:
            _name(dim, f"{where}.dims")
        _check(all(extent >= 1 for extent in tensor.shape), f"{where}.shape", "extents must be at least 1")
        _natural(math.prod(tensor.shape) * ITEMSIZE[tensor.dtype], MAX_ARENA, f"{where}.shape")
        _check(1 <= tensor.fan_in <= MAX_COUNT, f"{where}.fan_in", f"{tensor.fan_in} is not 1 or more")
        if tensor.stored is not None:
            _name(tensor.stored, f"{where}.stored")
    _unique((tensor.name for tensor in bundle.tensors), "tensors")


def _operations(bundle: Bundle) -> None:
    """Also: operations stand in an order in which they can run, and each value is computed exactly once."""
    known = [tensor.kind != "value" for tensor in bundle.tensors]
    budget = boxes.Budget(MAX_CORNERS)
    _unique((operation.name for operation in bundle.operations), "operations")
    for i, operation in enumerate(bundle.operations):
        where = f"operations[{i}]"
        _labels(operation, where)
        for position in operation.inputs:
            _position(position, len(known), "tensor", f"{where}.inputs")
            _check(known[position], f"{where}.inputs", f"tensor {position} is used before it is computed")
        for position in operation.outputs:
            _position(position, len(known), "tensor", f"{where}.outputs")
            _check(not known[position], f"{where}.outputs", f"tensor {position} is computed or loaded elsewhere")
            known[position] = True
        outputs = len(operation.outputs)
        _check(outputs >= 1, f"{where}.outputs", "an operation has at least one output")
        _check(len(operation.aggregations) == outputs, where, f"not one aggregation for each of {outputs} outputs")
        _indices(operation, where)
        _functions(bundle, operation, where, budget)
    for position, computed in enumerate(known):
        _check(computed, f"tensors[{position}]", "no operation computes this value")
    total = sum(o.cost.repartition + o.cost.join + o.cost.aggregation for o in bundle.operations)
    _check(total == bundle.total_cost, "total_cost", f"{bundle.total_cost}, where the operations cost {total}")


def _labels(operation: Operation, where: str) -> None:
    _name(operation.name, f"{where}.name")
    _name(operation.title, f"{where}.title")
    _name(operation.family, f"{where}.family")
    _name(operation.kernel, f"{where}.kernel")
    if operation.source is not None:
        _name(operation.source, f"{where}.source")
    _attributes(operation.attributes, f"{where}.attributes")
    _attributes(operation.kernel_attributes, f"{where}.kernel_attributes")
    for field in ("repartition", "join", "aggregation"):
        _natural(getattr(operation.cost, field), MAX_COUNT, f"{where}.cost.{field}")
    _exchange(operation.exchange, f"{where}.exchange")


def _attributes(attributes: dict[str, Attribute], where: str) -> None:
    for name, value in attributes.items():
        _name(name, where)
        for scalar in value if isinstance(value, list) else [value]:
            _scalar(scalar, f"{where}['{name}']")


def _scalar(value: Scalar, where: str) -> None:
    if isinstance(value, str):
        _text(value, MAX_TEXT, where)
    elif isinstance(value, float):
        _check(not math.isnan(value), where, "not a number")  # no plan would equal itself
    else:
        _check(-(1 << 63) <= value < 1 << 63, where, f"{value} does not fit into 64 bits")


def _exchange(exchange: Exchange | None, where: str) -> None:
    if exchange is not None:
        _text(exchange.program, MAX_FILE, f"{where}.program")


def _indices(operation: Operation, where: str) -> None:
    _count(operation.indices, MAX_RANK, f"{where}.indices")
    for k, index in enumerate(operation.indices):
        _name(index.name, f"{where}.indices[{k}].name")
        _index(index, f"{where}.indices[{k}]")
    _unique((index.name for index in operation.indices), f"{where}.indices")
    asked = math.prod(len(index.intervals) for index in operation.indices)
    found = len(operation.functions)
    _check(asked == found, f"{where}.functions", f"{found} functions, where the intervals ask for {asked}")


def _index(index: Index, where: str) -> None:
    _check(1 <= index.extent <= MAX_ARENA, f"{where}.extent", f"{index.extent} is not between 1 and {MAX_ARENA}")
    _check(1 <= len(index.intervals) <= MAX_SITES, f"{where}.intervals", f"{len(index.intervals)} intervals")
    bounds = [0, *(up for _, up in index.intervals)]
    _check(bounds[-1] == index.extent, f"{where}.intervals", f"they do not end at {index.extent}")
    for interval, expected in zip(index.intervals, itertools.pairwise(bounds), strict=True):
        _check(interval == expected and interval[0] < interval[1], f"{where}.intervals", f"{interval} is out of place")
    if index.cuts is not None:
        ascending = all(a < b for a, b in itertools.pairwise((0, *index.cuts, index.extent)))
        _check(ascending, f"{where}.cuts", f"not ascending inside 0 and {index.extent}")
        cuts = frozenset(index.cuts)
        for bound in bounds[1:-1]:
            _check(bound in cuts, f"{where}.intervals", f"{bound} is no allowed cut")


def _functions(bundle: Bundle, operation: Operation, where: str, budget: boxes.Budget) -> None:
    """Blocks are projections, output blocks tile (paper, Definition 6), and functions have sites of their own."""
    outer_inputs = [boxes.whole(bundle.tensors[position].shape) for position in operation.inputs]
    outer_outputs = [boxes.whole(bundle.tensors[position].shape) for position in operation.outputs]
    for f, function in enumerate(operation.functions):
        at = f"{where}.functions[{f}]"
        _position(function.site, len(bundle.devices), "site", f"{at}.site")
        _projections(function.inputs, outer_inputs, f"{at}.inputs")
        _projections(function.outputs, outer_outputs, f"{at}.outputs")
    _unique((function.site for function in operation.functions), f"{where}.functions, by site")
    for j, outer in enumerate(outer_outputs):
        _tiling(outer, [function.outputs[j] for function in operation.functions], budget, f"{where}.functions")


def _projections(blocks: Sequence[Block], outer: Sequence[Block], where: str) -> None:
    _check(len(blocks) == len(outer), where, f"{len(blocks)} blocks, where the operation has {len(outer)}")
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
        _position(buffer.site, len(bundle.devices), "site", f"{where}.site")
        _position(buffer.tensor, len(bundle.tensors), "tensor", f"{where}.tensor")
        tensor = bundle.tensors[buffer.tensor]
        _block(buffer.block, boxes.whole(tensor.shape), f"{where}.block")
        loaded = buffer.role in ("input", "weight")
        _check(not loaded or buffer.role == tensor.kind, f"{where}.role", f"{buffer.role} buffer of a {tensor.kind}")
        width, arena = ITEMSIZE[tensor.dtype], bundle.memory[buffer.site]
        end = buffer.offset + boxes.size(buffer.block) * width
        inside = buffer.offset >= 0 and end <= arena
        _check(inside, where, f"bytes {buffer.offset} to {end} are outside the arena of {arena}")
        _check(buffer.offset % width == 0, f"{where}.offset", f"{buffer.offset} is no multiple of {width}")
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
    aggregations = {
        tensor: aggregation
        for operation in bundle.operations
        for tensor, aggregation in zip(operation.outputs, operation.aggregations, strict=True)
    }
    written = [buffer.role in ("input", "weight") for buffer in bundle.buffers]
    missing = [set(range(len(operation.functions))) for operation in bundle.operations]
    for i, task in enumerate(bundle.tasks):
        where = f"tasks[{i}]"
        _position(task.site, len(bundle.devices), "site", f"{where}.site")
        _check(task.serves in names, f"{where}.serves", f"'{printable(task.serves, 60)}' is no operation or output")
        earlier = -1
        for position in task.after:
            _check(earlier < position < i, f"{where}.after", f"{position} is not in ascending order below {i}")
            earlier = position
        reads, writes = _regions(bundle, task, where)
        for at, region in reads:
            _check(written[region.buffer], at, f"no earlier task writes buffer {region.buffer}")
        for at, region in writes:
            role = bundle.buffers[region.buffer].role
            _check(role in ("scratch", "result"), at, f"a task writes the {role} buffer {region.buffer}")
            written[region.buffer] = True
        if isinstance(task, KernelTask):
            _kernel(bundle, task, missing, where)
        elif isinstance(task, TransferTask):
            _same(bundle, task.read, task.write, where)
        elif isinstance(task, AggregateTask):
            _check(len(task.reads) >= 2, f"{where}.reads", "an aggregation has at least two")
            for region in task.reads:
                _same(bundle, region, task.write, where)
            expected = aggregations.get(bundle.buffers[task.write.buffer].tensor)
            _check(task.aggregation == expected, where, f"{task.aggregation}, where the tensor's is {expected}")
        elif isinstance(task, CopyTask):
            _check(len(task.reads) == len(task.writes), where, f"{len(task.reads)} reads, {len(task.writes)} writes")
            for read, write in zip(task.reads, task.writes, strict=True):
                _same(bundle, read, write, where)
    for operation, left in enumerate(missing):
        _check(not left, f"operations[{operation}]", f"no task runs its function {min(left, default=0)}")


Located = list[tuple[str, Region]]


def _regions(bundle: Bundle, task: AnyTask, where: str) -> tuple[Located, Located]:
    """What a task reads and writes, each with its place; all of it exists, and at the sites where it must be."""
    if isinstance(task, TransferTask):
        reads, writes = [(f"{where}.read", task.read)], [(f"{where}.write", task.write)]
    elif isinstance(task, KernelTask | CopyTask):
        reads = [(f"{where}.reads[{k}]", region) for k, region in enumerate(task.reads)]
        writes = [(f"{where}.writes[{k}]", region) for k, region in enumerate(task.writes)]
    elif isinstance(task, AggregateTask):
        reads = [(f"{where}.reads[{k}]", region) for k, region in enumerate(task.reads)]
        writes = [(f"{where}.write", task.write)]
    else:
        return [], []
    for at, region in itertools.chain(reads, writes):
        _region(bundle, region, at)
    for at, region in reads if isinstance(task, TransferTask) else itertools.chain(reads, writes):
        site = bundle.buffers[region.buffer].site
        _check(site == task.site, at, f"buffer {region.buffer} is at site {site}, and the task runs at {task.site}")
    if isinstance(task, TransferTask):
        there = bundle.buffers[task.write.buffer].site
        _check(there != task.site, f"{where}.write", f"a transfer from site {there} to itself")
    return reads, writes


def _region(bundle: Bundle, region: Region, where: str) -> None:
    _position(region.buffer, len(bundle.buffers), "buffer", where)
    _block(region.block, bundle.buffers[region.buffer].block, where)


def _same(bundle: Bundle, read: Region, write: Region, where: str) -> None:
    """Both regions hold one block of one tensor."""
    if read.block != write.block:
        raise PlanFault(f"it reads {boxes.show(read.block)} and writes {boxes.show(write.block)}", where=where)
    source, target = bundle.buffers[read.buffer].tensor, bundle.buffers[write.buffer].tensor
    if source != target:
        raise PlanFault(f"it reads tensor {source} and writes tensor {target}", where=where)


def _kernel(bundle: Bundle, task: KernelTask, missing: list[set[int]], where: str) -> None:
    _position(task.operation, len(bundle.operations), "operation", f"{where}.operation")
    operation = bundle.operations[task.operation]
    _position(task.function, len(operation.functions), "function", f"{where}.function")
    left = missing[task.operation]
    _check(task.function in left, where, f"function {task.function} of operation {task.operation} runs twice")
    left.remove(task.function)
    function: Function = operation.functions[task.function]
    _check(task.site == function.site, f"{where}.site", f"{task.site}, and the function's is {function.site}")
    _operands(bundle, task.reads, function.inputs, operation.inputs, f"{where}.reads")
    _operands(bundle, task.writes, function.outputs, operation.outputs, f"{where}.writes")


def _operands(
    bundle: Bundle, regions: Sequence[Region], blocks: Sequence[Block], tensors: Sequence[int], where: str
) -> None:
    _check(len(regions) == len(blocks), where, f"{len(regions)} regions, where the function has {len(blocks)}")
    for k, (region, block, tensor) in enumerate(zip(regions, blocks, tensors, strict=True)):
        found = bundle.buffers[region.buffer].tensor
        _check(found == tensor, f"{where}[{k}]", f"tensor {found}, where the function takes {tensor}")
        if region.block != block:
            message = f"{boxes.show(region.block)}, where the function takes {boxes.show(block)}"
            raise PlanFault(message, where=f"{where}[{k}]")


def _outputs(bundle: Bundle) -> None:
    """The regions of every output tile its tensor, in buffers that live to the end."""
    budget = boxes.Budget(MAX_CORNERS)
    _unique((output.tensor for output in bundle.outputs), "outputs")
    for i, output in enumerate(bundle.outputs):
        where = f"outputs[{i}]"
        _position(output.tensor, len(bundle.tensors), "tensor", f"{where}.tensor")
        _exchange(output.exchange, f"{where}.exchange")
        for k, region in enumerate(output.regions):
            at = f"{where}.regions[{k}]"
            _region(bundle, region, at)
            buffer = bundle.buffers[region.buffer]
            _check(buffer.tensor == output.tensor, at, f"it holds tensor {buffer.tensor}, not {output.tensor}")
            _check(buffer.role != "scratch", at, f"buffer {region.buffer} is scratch, which does not live to the end")
        _unique((region.block for region in output.regions), f"{where}.regions")
        outer = boxes.whole(bundle.tensors[output.tensor].shape)
        _tiling(outer, [region.block for region in output.regions], budget, f"{where}.regions")
