"""The costs that operators state: bytes that they move, operations, and the peak that limits these."""

from __future__ import annotations

import math

import pytest

from einc.core.intervals import ShardableIndex
from einc.core.tensor import DType, TensorDesc
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.recurrence import RecurrenceOperator
from einc_runtime.plan.work import AttentionWork, ExpertsWork, ProductWork, RecurrenceWork
from tests.support.operator_cases import structural
from tests.support.quantized_cases import quantized
from tests.support.transformer_cases import cases

TENSORS = (DType.F16, DType.BF16, DType.F32, DType.F64)


def everything(dtype: DType) -> dict[str, Operator]:
    return {**structural(dtype), **{name: case.operator for name, case in cases(dtype).items()}}


def whole(operator: Operator):
    return operator.build_spec(tuple(((0, index.extent),) for index in operator.indices)).functions[0]


@pytest.mark.parametrize("dtype", TENSORS)
def test_costs_are_there_and_bounded_by_the_blocks(dtype: DType) -> None:
    for name, operator in everything(dtype).items():
        function = whole(operator)
        blocks = [
            *zip(function.inputs, operator.inputs, strict=True),
            *zip(function.outputs, operator.outputs, strict=True),
        ]
        most = sum(block.size * desc.dtype.itemsize for block, desc in blocks)
        written = sum(block.size * desc.dtype.itemsize for block, desc in blocks[len(function.inputs) :])
        assert operator.flops(function) >= 0, name
        assert written <= operator.traffic(function) <= 2 * most, name
        assert operator.precision in ("f16", "bf16", "f32", "f64"), name
        assert (operator.precision == "f64") == (dtype is DType.F64) or dtype not in {d.dtype for d in operator.inputs}


@pytest.mark.parametrize(("dtype", "expected"), [(DType.F16, "f16"), (DType.BF16, "bf16"), (DType.F32, "f32")])
def test_matrix_products_run_at_the_peak_of_their_operands(dtype: DType, expected: str) -> None:
    operators = everything(dtype)
    for name in ("matmul", "heads", "contract3", "dot"):
        assert operators[name].precision == expected, name
    for name in ("min_plus", "sum_join", "diagonal"):
        assert operators[name].precision == "f32", name
    q, k = TensorDesc(("h", "t", "d"), (4, 8, 16), dtype), TensorDesc(("g", "t", "d"), (2, 8, 16), dtype)
    assert registry.call("attention", [q, k, k], {}).precision == expected
    assert registry.call("softmax", [q], {}).precision == "f32"
    assert registry.call("add", [q, q], {}).precision == "f32"


def test_products_of_mixed_operands_run_in_the_plain_peak() -> None:
    half, single = TensorDesc(("i", "j"), (4, 8), DType.F16), TensorDesc(("j", "k"), (8, 2), DType.F32)
    double = TensorDesc(("j", "k"), (8, 2), DType.F64)
    from einc.ops.base import find_product_precision

    assert find_product_precision(half, single) == "f32"
    assert find_product_precision(half, double) == find_product_precision(double, double) == "f64"
    assert find_product_precision(TensorDesc((), (), DType.I32), TensorDesc((), (), DType.I32)) == "f32"


def test_a_lookup_reads_the_rows_that_it_picks() -> None:
    ids, table = TensorDesc(("t",), (10,), DType.I32), TensorDesc(("v", "d"), (100_000, 16), DType.F16)
    operator = registry.call("embedding", [ids, table], {})
    assert operator.traffic(whole(operator)) == 10 * 4 + 2 * 10 * 16 * 2


def experts(slots: int, experts: int) -> Operator:
    """64 tokens pick some experts of 16 x 32."""
    x, picks = TensorDesc(("t", "k"), (64, 32), DType.F16), TensorDesc(("t", "s"), (64, slots), DType.I64)
    weight = TensorDesc(("e", "n", "k"), (experts, 16, 32), DType.F16)
    return registry.call("expert_matmul", [x, weight, picks], {})


def test_experts_cost_what_is_picked() -> None:
    for count in (4, 8, 128):
        operator = experts(2, count)
        assert operator.flops(whole(operator)) == 2 * 64 * 2 * 16 * 32
    operator = experts(2, 128)
    for position, parts in ((0, 4), (1, 2), (2, 8), (3, 4), (4, 2)):
        chosen = tuple(index.intervals(parts if n == position else 1) for n, index in enumerate(operator.indices))
        functions = operator.build_spec(chosen).functions
        assert sum(map(operator.flops, functions)) == operator.flops(whole(operator)), position


def test_experts_that_nothing_can_pick_are_not_read() -> None:
    operator = experts(2, 1000)  # there are 128 picks
    extra_bytes = 64 * 32 * 2 + 64 * 2 * 8 + 64 * 2 * 16 * 2
    assert operator.traffic(whole(operator)) == extra_bytes + 128 * 16 * 32 * 2
    halves = operator.build_spec(
        tuple(index.intervals(1 + (index.name == "e")) for index in operator.indices)
    ).functions
    assert [operator.traffic(half) for half in halves] == [extra_bytes + 64 * 16 * 32 * 2] * 2


def test_a_contraction_cut_in_pieces_costs_as_many_operations_in_all() -> None:
    operator = structural(DType.F16)["matmul"]
    flops = operator.flops(whole(operator))
    extents = [index.extent for index in operator.indices]
    assert flops == 2 * math.prod(extents)
    for cuts in ((2, 1, 1), (1, 3, 1), (2, 2, 2), (1, 1, 4)):
        pairs = zip(extents, cuts, strict=True)
        chosen = tuple(ShardableIndex("i", extent).intervals(count) for extent, count in pairs)
        functions = operator.build_spec(chosen).functions
        assert sum(map(operator.flops, functions)) == flops
        assert sum(map(operator.traffic, functions)) > operator.traffic(whole(operator))


def test_the_work_of_products_is_that_of_matrices() -> None:
    """Sizes of `operator_cases`: t 7, d 9, f 5, h 6, s 4."""
    shapes = {
        "matmul": (1, 7, 5, 9),
        "matmul_batch": (6, 7, 5, 9),
        "matmul_left_batch": (1, 6 * 4 * 7, 5, 9),
        "matmul_right_batch": (1, 7, 6 * 5, 9),
        "dot": (1, 1, 1, 9),
        "matmul_part": (1, 6, 4, 9),
    }
    cases_of = structural(DType.BF16)
    for name, shape in shapes.items():
        assert cases_of[name].work(whole(cases_of[name])) == ProductWork(*shape), name
    for name in ("min_plus", "outer", "sum_join", "contract3", "transpose"):
        assert cases_of[name].work(whole(cases_of[name])) is None, name
    second = cases_of["matmul"].build_spec((((0, 3), (3, 7)), ((0, 9),), ((0, 5),))).functions[1]
    assert cases_of["matmul"].work(second) == ProductWork(1, 4, 5, 9)


@pytest.mark.parametrize("dtype", TENSORS)
def test_work_has_as_many_operations_as_flops(dtype: DType) -> None:
    for name, operator in {**structural(dtype), **quantized(dtype)}.items():
        work = operator.work(whole(operator))
        if isinstance(work, ProductWork) and name != "contract_scaled":
            assert operator.flops(whole(operator)) == 2 * work.batch * work.rows * work.columns * work.depth, name


def test_the_work_of_attention_counts_what_each_part_has() -> None:
    """Six query heads, two of keys; sequences of 5, 3 and 4 queries with 9, 3 and 6 keys; causal."""
    q, k = TensorDesc(("h", "t", "d"), (6, 12, 16), DType.BF16), TensorDesc(("g", "u", "d"), (2, 18, 16), DType.BF16)
    v = TensorDesc(("g", "u", "e"), (2, 18, 8), DType.BF16)
    lengths = {"q_lens": (5, 3, 4), "k_lens": (9, 3, 6)}
    operator = registry.call("attention", [q, k, v], {"causal": True, **lengths})
    pairs = (5 + 6 + 7 + 8 + 9, 1 + 2 + 3, 3 + 4 + 5 + 6)
    assert operator.work(whole(operator)) == AttentionWork(6, 3, 3, 12, 18, sum(pairs), 16, 8)
    intervals = (((0, 1), (1, 2)), ((0, 5), (5, 12)), ((0, 12),), ((0, 18),))
    parts = [operator.work(function) for function in operator.build_spec(intervals).functions]
    assert parts[0] == parts[2] == AttentionWork(3, 3, 1, 5, 9, pairs[0], 16, 8)
    assert parts[1] == parts[3] == AttentionWork(3, 3, 2, 7, 9, sum(pairs[1:]), 16, 8)


def test_the_work_of_experts_has_their_share_of_the_picks() -> None:
    operator = experts(2, 8)
    assert operator.work(whole(operator)) == ExpertsWork(8, 128, 16, 32)
    chosen = tuple(index.intervals(2 if index.name == "e" else 1) for index in operator.indices)
    assert [operator.work(half) for half in operator.build_spec(chosen).functions] == [ExpertsWork(4, 64, 16, 32)] * 2


SCAN = """
dim t = 40; dim d = 6; dim n = 5
input x : f32[t, d]
input b : f32[t, n]
weight w : f32[{width}, {width}]
h[t, d, n] = exp(-x[t, d]) * h[t - 1, d, n, outside = 0] + b[t, n]
y[t, d] = sum[n](h[t, d, n] * b[t, n])
z[t, k = {width}] = tanh(sum[j](w[k, j] * z[t - 1, j, outside = 0.5]) + y[t, 0])
output y, z
"""


def test_the_work_of_a_recurrence_is_what_its_steps_wait_for() -> None:
    """exp, negation, product and sum; a product and three levels for five terms; its channels are independent lanes.
    The second one joins its own values, so that it has no lanes, and with 128 of them is too large for registers."""
    for width, launches in ((64, 0), (128, 3)):
        nodes = {node.name: node.operator for node in fuse(build(SCAN.format(width=width), "m.ein")).nodes}
        scan, network = nodes["y"], nodes["z"]
        assert isinstance(scan, RecurrenceOperator)
        assert scan.work(whole(scan)) == RecurrenceWork(40, 6, 5, 3, 0)
        half = scan.build_spec(tuple(i.intervals(2 if i.name == "d" else 1) for i in scan.indices)).functions[1]
        assert scan.work(half) == RecurrenceWork(40, 3, 5, 3, 0)
        assert isinstance(network, RecurrenceOperator)
        work = network.work(whole(network))
        assert (work.steps, work.lanes, work.levels, work.launches) == (40, 1, width.bit_length() - 1, launches)
