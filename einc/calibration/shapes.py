"""Shapes of single kernels, measured on one GPU by the runtime that runs plans.

A plan has one kernel many times, each with operands of its own, so that these come from memory as the weights of a
model do. It is replayed as one CUDA graph between two events. What a graph takes to start is measured with chains of
tiny kernels, and does not count.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from einc.calibration.fit import round_to_digits
from einc.calibration.models import Probe
from einc.calibration.samples import Clock, Phase, StartRunner, compile_probe
from einc.machines.model import Machine
from einc.predict.costs import TaskCost, TaskKind, compute_task_costs
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.schema import ITEMSIZE

MAX_ELEMENTS = 3 << 26
"""Of the operands and the result of a shape."""

MIN_COPIES, MAX_COPIES, MAX_BYTES = 4, 32, 1 << 31

WARM_UP, REPLAYS = 2, 7
CHAINS = (1, 33)
"""Kernels of the two chains that tell what a graph, and what a kernel, takes to start."""

GROUPS = 5
"""Of shapes, which take turns: those of each kind of kernels."""

LEAST_SHAPES = 15
"""Of each group, measured however long it takes, as fewer say nothing."""


@dataclass(frozen=True)
class SingleKernel:
    """A kernel: the extents of its dimensions, its operands as a model declares them (`input a`, a type and
    dimensions), what it computes, and the dimensions of that. {k} stands for the number of a copy."""

    extents: Mapping[str, int]
    operands: tuple[tuple[str, str, tuple[str, ...]], ...]
    computed: str
    result: tuple[str, ...]

    def count(self, dims: Iterable[str]) -> int:
        """The elements of an array with these dimensions."""
        return math.prod(self.extents[dim] for dim in dims)

    @property
    def elements(self) -> int:
        """Of all operands and the result."""
        return sum(self.count(dims) for _, _, dims in self.operands) + self.count(self.result)


@dataclass(frozen=True)
class TimedKernel:
    """What a kernel of a plan costs, and the microseconds that it took."""

    cost: TaskCost
    us: float


@dataclass(frozen=True)
class TimedShapes:
    """`start_us` is what a kernel takes at least. `left_out` shapes were not measured, for lack of time."""

    kernels: tuple[TimedKernel, ...]
    start_us: float
    left_out: int


def describe_product(rows: int, columns: int, inner: int) -> SingleKernel:
    return SingleKernel(
        {"rows": rows, "columns": columns, "inner": inner},
        (("input a{k}", "f32", ("rows", "inner")), ("weight b{k}", "f32", ("inner", "columns"))),
        "y{k} = matmul(a{k}, b{k})",
        ("rows", "columns"),
    )


def describe_attention(sequences: int, queries: int, keys: int, heads: int, groups: int, width: int) -> SingleKernel:
    """Causal attention, whose queries stand at the end of their sequences."""
    tokens, places = sequences * queries, sequences * keys
    return SingleKernel(
        {"tokens": tokens, "places": places, "heads": heads, "groups": groups, "width": width},
        (
            ("input q{k}", "f32", ("heads", "tokens", "width")),
            ("input k{k}", "f32", ("groups", "places", "width")),
            ("input v{k}", "f32", ("groups", "places", "width")),
        ),
        "y{k} = attention(q{k}, k{k}, v{k}, causal=true, "
        f"q_lens=[{queries}] * {sequences}, k_lens=[{keys}] * {sequences})",
        ("heads", "tokens", "width"),
    )


def describe_experts(tokens: int, columns: int, inner: int) -> SingleKernel:
    """Two of eight experts for each token."""
    return SingleKernel(
        {"tokens": tokens, "slots": 2, "experts": 8, "columns": columns, "inner": inner},
        (
            ("input x{k}", "f32", ("tokens", "inner")),
            ("weight w{k}", "f32", ("experts", "columns", "inner")),
            ("input p{k}", "i64", ("tokens", "slots")),
        ),
        "y{k} = expert_matmul(x{k}, w{k}, p{k})",
        ("tokens", "slots", "columns"),
    )


def describe_rows(computed: str, rows: int, width: int) -> SingleKernel:
    """A kernel that goes through a matrix."""
    weights = (("weight g{k}", "f32", ("width",)), ("weight b{k}", "f32", ("width",)))
    used = tuple(weight for weight in weights if weight[0].split()[1] in computed)
    result = ("rows",) if "sum" in computed else ("rows", "width")
    operands = (("input x{k}", "f32", ("rows", "width")), *used)
    return SingleKernel({"rows": rows, "width": width}, operands, computed, result)


ROW_STATEMENTS = (
    "y{k} = rmsnorm(x{k}, g{k}, eps=1e-5)",
    "y{k} = exp(x{k})",
    'y{k} = softmax(x{k}, "width")',
    "y{k}[rows] = sum[width](x{k}[rows, width])",
    "y{k} = layernorm(x{k}, g{k}, b{k}, eps=1e-5)",
)
"""What goes through memory, of a matrix of rows."""


def list_shapes() -> tuple[SingleKernel, ...]:
    """All shapes, those of the groups in turns, so that the first ones have some of each."""
    matrices = ((4096, 4096), (512, 512), (1024, 16384), (4096, 512), (16384, 1024), (512, 4096))
    products = [describe_product(rows, *m) for m in matrices for rows in (1, 1024, 64, 4096, 16, 256)]
    products += [describe_product(*each) for each in ((300, 1000, 700), (2048, 2048, 2048), (96, 8192, 2048))]
    widths = ((32, 8, 128), (8, 8, 64), (32, 8, 64), (8, 8, 128))
    prompts = [
        describe_attention(sequences, length, length, *width)
        for width in widths
        for sequences in (1, 8)
        for length in (1024, 64, 4096, 256)
    ]
    steps = [
        describe_attention(sequences, 1, length, *width)
        for width in widths
        for sequences in (8, 1, 64)
        for length in (1024, 128, 8192)
    ]
    layers = ((2048, 1024), (512, 1024), (4096, 2048))
    experts = [describe_experts(tokens, *m) for m in layers for tokens in (64, 1024, 8, 4096, 512, 200, 1)]
    rows = [describe_rows(text, *m) for m in ((8192, 2048), (64, 256), (1024, 1024)) for text in ROW_STATEMENTS]
    groups = [[shape for shape in group if shape.elements <= MAX_ELEMENTS] for group in (
        products, prompts, steps, experts, rows
    )]  # fmt: skip
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return tuple(shape for shape in turns if shape is not None)


def write_probe(shape: SingleKernel, dtype: DTypeName, cache_bytes: int) -> Probe:
    """The model that has a shape so often that its operands, taken in turn, do not fit into the cache."""
    size = shape.elements * ITEMSIZE[dtype]
    copies = max(MIN_COPIES, min(math.ceil(2 * cache_bytes / size), MAX_COPIES))
    copies = max(1, min(copies, MAX_BYTES // size))
    lines = ["model shape", *(f"dim {name} = {extent}" for name, extent in shape.extents.items())]
    for k in range(copies):
        lines += [
            f"{name} : {operand_type}[{', '.join(dims)}]".format(k=k) for name, operand_type, dims in shape.operands
        ]
        lines += [shape.computed.format(k=k), f"output y{k}"]
    return Probe("\n".join(lines) + "\n", (), dtype)


def write_chain(kernels: int) -> Probe:
    """A model of tiny kernels that wait for one another."""
    lines = ["model chain", "dim rows = 8", "dim width = 64", "input x0 : f32[rows, width]", "weight g : f32[width]"]
    lines += [f"x{k + 1} = rmsnorm(x{k}, g, eps=1e-5)" for k in range(kernels)]
    return Probe("\n".join([*lines, f"output x{kernels}"]) + "\n", ())


def measure_shapes(
    dtypes: Sequence[DTypeName],
    machine: Machine,
    cache_bytes: int,
    start: StartRunner,
    seconds: float,
    phase: Phase = lambda _: None,
    clock: Clock = time.monotonic,
) -> TimedShapes:
    """Times the shapes on the first site of a machine, those of the first dtype first.

    When `seconds` are over, no shape follows, but some of the first dtype are always measured.
    """
    begin, machine_of_one = clock(), machine.restrict([0])
    chains = [_replay(write_chain(kernels), machine_of_one, start)[1] for kernels in CHAINS]
    each_ms = max(0.0, (chains[1] - chains[0]) / (CHAINS[1] - CHAINS[0]))
    graph_ms = max(0.0, chains[0] - each_ms)
    probes = [write_probe(shape, dtype, cache_bytes) for dtype in dtypes for shape in list_shapes()]
    timed: list[TimedKernel] = []
    for number, probe in enumerate(probes):
        if number >= GROUPS * LEAST_SHAPES and clock() - begin > seconds:
            return TimedShapes(tuple(timed), round_to_digits(each_ms * 1e3), len(probes) - number)
        phase(f"measuring shape {number + 1} of {len(probes)}")
        costs, ms = _replay(probe, machine_of_one, start)
        us = max(ms - graph_ms, 0.1 * ms) * 1e3 / len(costs)
        timed.append(TimedKernel(costs[0], us))
    return TimedShapes(tuple(timed), round_to_digits(each_ms * 1e3), 0)


def _replay(probe: Probe, machine: Machine, start: StartRunner) -> tuple[list[TaskCost], float]:
    """The kernels of a probe's plan, and the milliseconds of a run."""
    bundle = compile_probe(probe, machine)
    costs = [cost for cost in compute_task_costs(bundle) if cost.kind is TaskKind.KERNEL]
    runner = start(bundle)
    try:
        times = [runner.replay() for _ in range(WARM_UP + REPLAYS)]
    finally:
        runner.close()
    return costs, median(times[WARM_UP:])
