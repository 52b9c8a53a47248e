"""Attention: its specs and its kernel by definition, its cuts, and its work."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from einc.core.intervals import ShardableIndex, enumerate_requests
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import DType
from einc.logical.candidates import enumerate_candidates, enumerate_flexible_candidates, restore_candidate
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.sequence_packing import SequencePacking
from tests.support.attention_oracle import ALIKE, HEADS, MORE_KEYS, attention, data, pairs, seen, variants, whole
from tests.support.definition_oracle import FEW, REST, corruptions, difference, fault, one_number, reachable, requests
from tests.support.kernel_pieces import run_kernel

CASES = {f"{q}/{kv}-{name}": case for q, kv in HEADS for name, case in variants((q, kv)).items()}
DTYPES = {
    f"{dtype}-{name}": case
    for dtype in (DType.F16, DType.BF16, DType.F64)
    for name, case in variants((4, 2), dtype).items()
}


@pytest.mark.parametrize("name", [*CASES, *DTYPES])
def test_reference_is_attention(name: str) -> None:
    operator = {**CASES, **DTYPES}[name]
    arrays = data(operator, 1)
    results, expected = operator.reference(*arrays), whole(operator, arrays)
    for got, want, desc in zip(results, expected, operator.outputs, strict=True):
        assert difference(got, want.astype(desc.dtype.numpy()), desc.dtype) is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_every_factorization_implements_it(name: str) -> None:
    operator = CASES[name]
    arrays = data(operator, 2)
    expected = operator.reference(*arrays)
    for sites in FEW:
        for intervals in requests(operator, sites):
            spec = operator.build_spec(intervals)
            assert len(spec.functions) == reachable(operator, intervals, sites)
            assert all(block.size for function in spec.functions for block in (*function.inputs, *function.outputs))
            assert fault(operator, spec, arrays, expected) is None, intervals


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DTYPES)
def test_other_types_too(name: str) -> None:
    operator = DTYPES[name]
    arrays = data(operator, 3)
    expected = operator.reference(*arrays)
    for intervals in requests(operator, *one_number(name)):
        assert fault(operator, operator.build_spec(intervals), arrays, expected) is None, intervals


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [*CASES, *DTYPES])
def test_the_kernel_implements_it(name: str) -> None:
    operator = {**CASES, **DTYPES}[name]
    arrays = data(operator, 7)
    expected = operator.reference(*arrays)
    with np.errstate(all="ignore"):
        for sites in FEW if name in CASES else one_number(name):
            for intervals in requests(operator, sites):
                assert fault(operator, operator.build_spec(intervals), arrays, expected, run_kernel) is None, intervals


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *DTYPES])
def test_other_numbers_of_sites_too(name: str) -> None:
    operator = {**CASES, **DTYPES}[name]
    arrays = data(operator, 3)
    expected = operator.reference(*arrays)
    with np.errstate(all="ignore"):
        for sites in (*FEW, *REST):
            for intervals in requests(operator, sites):
                spec = operator.build_spec(intervals)
                assert fault(operator, spec, arrays, expected) is None, intervals
                assert fault(operator, spec, arrays, expected, run_kernel) is None, intervals


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("6/3")])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator = CASES[name]
    arrays = data(operator, 4)
    expected = operator.reference(*arrays)
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for at in {0, len(spec.functions) - 1}:
        for wrong, _, _ in corruptions(operator, spec, at):
            assert fault(operator, wrong, arrays, expected) is not None, wrong.functions[at]


def test_shares_of_keys_that_overlap_or_leave_a_gap_are_noticed() -> None:
    operator = attention((4, 2), (6,), (10,))
    arrays = data(operator, 5)
    expected = operator.reference(*arrays)
    whole_heads, whole_tokens = ((0, 2),), ((0, 6),)
    for keys, sound in ((((0, 4), (4, 10)), True), (((0, 5), (4, 10)), False), (((0, 4), (5, 10)), False)):
        parts = [operator.build_spec((whole_heads, whole_tokens, whole_tokens, ((0, 10),))).functions[0]] * 2
        blocks = []
        for part, (lo, up) in zip(parts, keys, strict=True):
            moved = [type(b)((b.lower[0], lo, 0), (b.upper[0], up, b.upper[2])) for b in part.inputs[1:]]
            blocks.append(FunctionSpec((part.inputs[0], *moved), part.outputs))
        spec = JoinAggSpec(tuple(blocks))
        assert (fault(operator, spec, arrays, expected) is None) == sound


def test_query_heads_follow_their_heads_of_keys() -> None:
    operator = attention((32, 8), (4096,), width=(128, 128), causal=True)
    spec = operator.build_spec((tuple(itertools.pairwise(range(9))), *[((0, 4096),)] * 3))
    for m, function in enumerate(spec.functions):
        assert [(b.lower[0], b.upper[0]) for b in function.inputs] == [(4 * m, 4 * m + 4), (m, m + 1), (m, m + 1)]
        assert [(b.lower[0], b.upper[0]) for b in function.outputs] == [(4 * m, 4 * m + 4)] * 2


def test_one_sequence_on_as_many_sites_as_heads_is_cut_by_heads() -> None:
    operator = attention((32, 8), (1024,), width=(128, 128), causal=True)
    best = min(enumerate_candidates(operator, 8), key=lambda candidate: candidate.join + candidate.aggregation)
    assert [len(cut) for cut in best.intervals] == [8, 1, 1, 1]
    assert best.aggregation == 0


def test_sequences_are_cut_at_their_ends_and_by_work() -> None:
    operator = attention((4, 4), (1024, 1536, 1536), causal=True)
    sequence = operator.indices[1]
    assert (sequence.name, sequence.extent, sequence.cuts) == ("sequence", 4096, (1024, 2560))
    assert attention((1, 1), (6, 2, 2, 2, 2, 2, 2)).indices[1].intervals(2) == ((0, 6), (6, 18))
    assert ShardableIndex("sequence", 18, (6, 8, 10, 12, 14, 16)).intervals(2) == ((0, 8), (8, 18))


def test_keys_are_cut_by_work() -> None:
    causal = attention((1, 1), (1000,), causal=True)
    for count in (2, 3, 5):
        intervals = (((0, 1),), ((0, 1000),), ((0, 1000),), causal.indices[3].intervals(count))
        flops = [causal.flops(function) for function in causal.build_spec(intervals).functions]
        assert max(flops) < 1.01 * min(flops)
    plain = attention((1, 1), (5,), (1000,))
    spec = plain.build_spec((((0, 1),), ((0, 5),), ((0, 5),), ((0, 17), (17, 1000))))
    assert [(f.inputs[1].lower[1], f.inputs[1].upper[1]) for f in spec.functions] == [(0, 17), (17, 1000)]


@pytest.mark.parametrize(("q_lens", "k_lens"), [(ALIKE, MORE_KEYS), ((3, 5), (2, 7)), ((5, 2), (3, 2))])
def test_the_shortest_sequence_limits_the_parts_of_keys(q_lens: tuple[int, ...], k_lens: tuple[int, ...]) -> None:
    for window in (0, 1):
        operator = attention((2, 1), q_lens, k_lens, causal=True, window=window)
        most = [index.max_intervals for index in operator.indices]
        assert most == [1, len(q_lens), sum(q_lens), min(k_lens)]
        for counts in itertools.product(*(range(1, n + 1) for n in most)):
            if counts[1] > 1 and counts[2] > 1:
                with pytest.raises(ValueError, match="not both"):
                    operator.build_spec(next(enumerate_requests(operator.indices, counts)))
                continue
            for intervals in enumerate_requests(operator.indices, counts):
                functions = operator.build_spec(intervals).functions
                assert len(functions) == math.prod(counts)
                assert all(block.size for function in functions for block in (*function.inputs, *function.outputs))


def test_queries_are_cut_evenly_and_by_work() -> None:
    causal = attention((1, 1), (1000,), causal=True)
    for count in (2, 3, 5, 7):
        even, balanced = causal.indices[2].choices(count)
        assert even == ShardableIndex("queries", 1000).intervals(count)
        whole_tokens = ((0, 1000),)
        functions = causal.build_spec((((0, 1),), whole_tokens, balanced, whole_tokens)).functions
        flops = [causal.flops(function) for function in functions]
        assert max(flops) < 1.02 * min(flops)
        assert [(f.inputs[0].lower[1], f.inputs[0].upper[1]) for f in functions] == list(balanced)
        assert [f.inputs[1].shape[1] for f in functions] == [upper for _, upper in balanced]
    for plain in (attention((1, 1), (50,), (1000,)), attention((1, 1), (9, 9, 9)), one_query_each()):
        for count in range(1, plain.indices[2].max_intervals + 1):
            assert plain.indices[2].choices(count) == (plain.indices[2].intervals(count),)


@pytest.mark.parametrize("sites", [5, 6, 7, 8])
def test_eight_heads_of_keys_are_balanced_on_any_number_of_sites(sites: int) -> None:
    """With queries cut there is a candidate whose sites all have about as many pairs; cutting heads is not balanced."""
    operator = attention((32, 8), (4096,), width=(128, 128), causal=True, dtype=DType.F16)
    strict, offers = enumerate_candidates(operator, sites), enumerate_flexible_candidates(operator, sites)
    assert all(len(candidate.intervals[2]) == 1 for candidate in strict)
    further = [candidate for candidate in offers if len(candidate.intervals[2]) > 1]
    # An odd number of sites has few factors, so that cuts over one site less are offered, too.
    assert {len(candidate.functions) for candidate in further} == ({sites, sites - 1} if sites % 2 else {sites})
    further = [candidate for candidate in further if len(candidate.functions) == sites]
    assert {tuple(map(len, candidate.intervals)) for candidate in further} == {
        (a, 1, b, c) for a, b, c in itertools.product(range(1, 9), repeat=3) if a * b * c == sites and b > 1
    }
    excess = {}
    for candidate in (*strict, *further):
        flops = [operator.flops(function) for function in candidate.functions]
        excess[candidate.intervals] = max(flops) * sites / sum(flops)
        assert restore_candidate(operator, candidate.intervals) == candidate
    for candidate in further:
        even = operator.indices[2].intervals(len(candidate.intervals[2]))
        heads = len(candidate.intervals[0])
        assert (excess[candidate.intervals] < 1.01) == (candidate.intervals[2] != even and 8 % heads == 0)
    by_heads = excess[operator.indices[0].intervals(sites), ((0, 4096),), ((0, 4096),), ((0, 4096),)]
    assert by_heads == -(-8 // sites) * sites / 8
    wrong = (((0, 8),), ((0, 4096),), ((0, 1000), (1000, 4096)), ((0, 4096),))
    for intervals in (wrong, wrong[:3]):
        with pytest.raises(ValueError, match=r"never cut|4 indices"):
            restore_candidate(operator, intervals)


def test_many_sites_are_offered_few_cuts_of_queries() -> None:
    operator = attention((32, 8), (4096,), width=(128, 128), causal=True, dtype=DType.F16)
    offers = enumerate_flexible_candidates(operator, 72)
    further = [tuple(map(len, offer.intervals)) for offer in offers if len(offer.intervals[2]) > 1]
    assert len(further) == 16
    assert further.count((8, 1, 9, 1)) == further.count((1, 1, 72, 1)) == 2
    assert all(sum(count > 1 for count in counts) <= 2 for counts in further)


def test_an_odd_number_of_sites_may_leave_one_idle_in_all_ways_to_cut_queries() -> None:
    operator = attention((8, 2), (48,), causal=True)
    seven, six = (enumerate_flexible_candidates(operator, sites) for sites in (7, 6))
    cuts = [
        candidate.intervals for candidate in six if len(candidate.intervals[2]) > 1 and len(candidate.functions) == 6
    ]
    assert len(cuts) > 6
    assert set(cuts) <= {candidate.intervals for candidate in seven}
    assert 6 in {candidate.replicas for candidate in seven}


def one_query_each() -> Operator:
    """A step of decoding."""
    return attention((4, 2), (1, 1, 1), (9, 5, 7), causal=True, extras=("positions",))


def test_what_a_cut_of_queries_reads_is_what_they_see() -> None:
    """The bounds of keys are those of the pairs of each block, and all are balanced as well as whole queries can be."""
    rng = np.random.default_rng(3)
    for n, (causal, window) in enumerate(itertools.product((False, True), (0, 1, 3, 50))):
        for _ in range(12):
            lens = rng.integers(2, 9, (2, 1 + n % 3)).tolist()
            operator = attention((1, 1), *lens, causal=causal, window=window)
            matrix = seen(operator, None, None)
            most = max(matrix.sum(1))
            for count in range(2, operator.indices[2].max_intervals + 1):
                for parts in operator.indices[2].choices(count):
                    intervals = (((0, 1),), ((0, sum(lens[0])),), parts, ((0, sum(lens[1])),))
                    functions = operator.build_spec(intervals).functions
                    for function, (lower, upper) in zip(functions, parts, strict=True):
                        (columns,) = np.nonzero(matrix[lower:upper].any(axis=0))
                        block = function.inputs[1]
                        assert not len(columns) or (block.lower[1], block.upper[1]) == (columns[0], columns[-1] + 1)
                        assert operator.flops(function) == matrix[lower:upper].sum() * (2 * 5 + 2 * 3 + 5)
                if all(upper - lower > 1 for lower, upper in parts):
                    share = matrix.sum() / count
                    assert all(abs(matrix[lower:upper].sum() - share) <= most for lower, upper in parts)


def test_parts_of_keys_of_a_part_of_the_queries_are_balanced() -> None:
    operator = attention((3, 1), (1000, 400), (1100, 400), causal=True)
    for queries, keys in ((2, 3), (3, 2), (4, 5)):
        balanced = operator.indices[2].choices(queries)[1]
        intervals = (((0, 1),), operator.indices[1].intervals(1), balanced, operator.indices[3].intervals(keys))
        functions = operator.build_spec(intervals).functions
        flops = [operator.flops(function) for function in functions]
        assert max(flops) < 1.03 * min(flops)
        assert sum(flops) == 3 * pairs(operator) * (2 * 5 + 2 * 3 + 5)


def test_a_cut_of_queries_is_charged_the_keys_that_it_reads() -> None:
    """One head of keys, 128K tokens, eight sites: every key is read by the queries after it alone."""
    operator = attention((32, 1), (131072,), width=(128, 128), causal=True, dtype=DType.F16)
    whole_tokens = ((0, 131072),)
    even, balanced = operator.indices[2].choices(8)
    read = {}
    for parts in (even, balanced):
        functions = operator.build_spec((((0, 1),), whole_tokens, parts, whole_tokens)).functions
        read[parts] = sum(block.size * 2 for f in functions for block in f.inputs[1:])
        assert sum(map(operator.traffic, functions)) == read[parts] + 131072 * 32 * (2 * 128 * 2 + 4)
    assert read[even] == 2 * 131072 * 128 * 2 * 36 // 8
    assert read[balanced] < 2 * 131072 * 128 * 2 * 8


def test_rows_that_are_keys_and_values_are_read_once() -> None:
    apart = attention((6, 2), (3, 1), (40, 9), width=(7, 7), causal=True, dtype=DType.F16)
    once = apart.apply_to(("q", "rows", "rows"))
    assert apart.apply_to(("q", "k", "v")) is apart
    assert once.apply_to(("q", "k", "v")) == apart
    assert once.attributes == apart.attributes
    for counts in ((1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 3)):
        for intervals in enumerate_requests(apart.indices, counts):
            for function in once.build_spec(intervals).functions:
                assert once.traffic(function) == apart.traffic(function) - 2 * function.inputs[2].size
                assert (once.flops(function), once.work(function)) == (apart.flops(function), apart.work(function))


def test_of_rows_in_blocks_those_of_the_sequences_are_read_once() -> None:
    extras = ("positions", "blocks")
    apart = attention((6, 2), (1,) * 4, (15,) * 4, width=(7, 7), causal=True, extras=extras, blocks=(13, 3))
    once = apart.apply_to(("q", "rows", "rows", "positions", "blocks"))
    parts = tuple(index.intervals(2 if n == 1 else 1) for n, index in enumerate(apart.indices))
    for function in once.build_spec(parts).functions:
        read = 2 * 2 * 15 * 7 + 2 * (6 * 2 * 7) + 6 * 2  # rows of two sequences, queries and results
        assert once.traffic(function) == 4 * read + 8 * (2 + 2 * 3)
        assert apart.traffic(function) == 4 * (read + 2 * 2 * 15 * 7) + 8 * (2 + 2 * 3)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("8/1")])
def test_flops_count_the_pairs_that_see_each_other(name: str) -> None:
    operator = CASES[name]
    a = operator.attributes
    counted = pairs(operator) if "positions" not in a["extras"] else int(np.dot(a["q_lens"], a["k_lens"]))
    for intervals in requests(operator, 6):
        functions = operator.build_spec(intervals).functions
        assert sum(map(operator.flops, functions)) == 8 * counted * (2 * 5 + 2 * 3 + 5 + 3 * ("softcap" in a))


def test_pairs_of_any_blocks() -> None:
    rng = np.random.default_rng(0)
    for causal, window in itertools.product((False, True), (0, 1, 3, 50)):
        operator = attention((1, 1), (4, 1, 6), (9, 3, 2), causal=causal, window=window)
        packing = SequencePacking((4, 1, 6), (9, 3, 2), causal, window)
        matrix = seen(operator, None, None)
        for _ in range(40):
            a, b = sorted(rng.integers(0, 12, 2).tolist())
            c, d = sorted(rng.integers(0, 15, 2).tolist())
            assert packing.pairs((a, b), (c, d)) == matrix[a:b, c:d].sum()


def test_restored_from_its_attributes() -> None:
    for name, operator in {**CASES, **DTYPES}.items():
        assert registry.restore("attention", operator.inputs, dict(operator.attributes)) == operator, name


def test_outputs_and_defaults() -> None:
    operator = attention((6, 3), (4, 2), (5, 3), width=(7, 2), dtype=DType.BF16)
    o, lse = operator.outputs
    assert (o.dims, o.shape, o.dtype) == (("heads_q", "tokens", "d_value"), (6, 6, 2), DType.BF16)
    assert (lse.dims, lse.shape, lse.dtype) == (("heads_q", "tokens"), (6, 6), DType.F32)
    assert operator.attributes["scale"] == 1 / math.sqrt(7)
    (joint,) = operator.joint_aggregations
    assert (operator.aggregations, joint.outputs) == (("logsumexp", "logsumexp"), (0, 1))


def test_what_nobody_sees_may_be_anything() -> None:
    operator = attention((2, 1), (2, 1), (5, 6), causal=True, extras=("positions", "mask"))
    q, k, v, _, _ = data(operator, 6)
    positions, mask = np.array([2, 1, 3]), np.array([1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    expected = operator.reference(q, k, v, positions, mask)
    k[:, [3, 4, 6, 9, 10]] = np.nan
    v[:, [3, 4, 6, 9, 10]] = np.nan
    for result, exact in zip(operator.reference(q, k, v, positions, mask), expected, strict=True):
        assert np.array_equal(result, exact)
