"""What the proof says of families is what the compiler has of their operators, which some describe by themselves."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from einc.core.tensor import TensorDesc
from einc.logical.candidates import enumerate_candidates
from einc.ops.base import Operator
from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.attention import SeenKeys
from einc_runtime.plan.meaning.operations import FAMILIES, require_blocks, require_labels
from einc_runtime.plan.meaning.terms import Application, TensorForm, unique_names
from einc_runtime.plan.schema import Block, Bundle, Cost, Function, Index, Operation, Tensor
from tests.support.handmade_plans import two_site_plan
from tests.support.operator_cases import all_cases
from tests.support.sampling import one_in
from tests.support.transformer_cases import all_transformer_cases

CASES: dict[str, Operator] = {**all_cases(), **{name: case.operator for name, case in all_transformer_cases().items()}}
ORDER = sorted(CASES, key=lambda name: (CASES[name].family, name))
PLAN = two_site_plan()


def plan_of(operator: Operator, intervals: Any, replicas: int = 1) -> Bundle:
    """A plan of one operation, without tasks: only what is proved of operations."""
    spec = operator.build_spec(intervals)
    functions = [Function(0, function.inputs, function.outputs) for function in spec.functions]
    tensors = [tensor_of(desc, number) for number, desc in enumerate((*operator.inputs, *operator.outputs))]
    count = len(operator.inputs)
    operation = Operation(
        "y",
        operator.title,
        operator.family,
        attributes_of(operator.attributes),
        None,
        tuple(range(count)),
        tuple(range(count, len(tensors))),
        operator.aggregations,  # type: ignore[arg-type]
        operator.joint_aggregations,
        operator.kernel.name,
        attributes_of(dict(operator.kernel.attributes)),
        tuple(Index(i.name, i.extent, i.cuts, cut) for i, cut in zip(operator.indices, intervals, strict=True)),
        Cost(0, 0, 0),
        tuple(functions) * replicas,
        None,
        replicas=replicas,
    )
    return msgspec.structs.replace(PLAN, tensors=tuple(tensors), operations=(operation,))


def tensor_of(desc: TensorDesc, number: int) -> Tensor:
    return Tensor(f"t{number}", desc.dims, desc.shape, desc.dtype.value, "value")  # type: ignore[arg-type]


def attributes_of(attributes: Any) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}


def cuts_of(operator: Operator, rng: random.Random) -> Any:
    """Candidates for up to eight sites, and as many intervals of other sizes where an index is cut anywhere."""
    for sites in (1, 2, 3, 5, 6, 8):
        candidates = list(enumerate_candidates(operator, sites))
        for candidate in rng.sample(candidates, min(3, len(candidates))):
            yield candidate.intervals, candidate.replicas
            free = tuple(
                parts if index.cuts is not None or index.name == "keys" else uneven(index.extent, len(parts), rng)
                for index, parts in zip(operator.indices, candidate.intervals, strict=True)
            )
            yield free, candidate.replicas


def uneven(extent: int, count: int, rng: random.Random) -> tuple[tuple[int, int], ...]:
    return tuple(itertools.pairwise([0, *sorted(rng.sample(range(1, extent), count - 1)), extent]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", one_in(6, ORDER))
def test_the_operators_of_the_compiler_are_proved(name: str) -> None:
    rng = random.Random(name)
    for intervals, replicas in cuts_of(CASES[name], rng):
        require_blocks(require_labels(plan_of(CASES[name], intervals, replicas)))


def moved(block: Block, rng: random.Random) -> Block:
    """One bound of a block that has dimensions, moved by one."""
    d, side, step = rng.randrange(block.rank), rng.choice(("lower", "upper")), rng.choice((-1, 1))
    bounds = list(getattr(block, side))
    bounds[d] += step
    return msgspec.structs.replace(block, **{side: tuple(bounds)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_bound_of_a_block_can_be_moved(family: str) -> None:
    rng = random.Random(family)
    names = [name for name in ORDER if CASES[name].family == family]
    for name in rng.sample(names, min(3, len(names))):
        for intervals, replicas in cuts_of(CASES[name], rng):
            plan = plan_of(CASES[name], intervals, replicas)
            (operation,) = plan.operations
            f = rng.randrange(len(operation.functions))
            field = rng.choice(("inputs", "outputs"))
            blocks = list(getattr(operation.functions[f], field))
            k = rng.randrange(len(blocks))
            if not blocks[k].rank:
                continue
            blocks[k] = moved(blocks[k], rng)
            functions = list(operation.functions)
            functions[f] = msgspec.structs.replace(functions[f], **{field: tuple(blocks)})
            lie = msgspec.structs.replace(operation, functions=tuple(functions))
            with pytest.raises(PlanFault):
                require_blocks(require_labels(msgspec.structs.replace(plan, operations=(lie,))))


def visible(q_lens: Any, k_lens: Any, causal: bool, window: int, queries: tuple[int, int]) -> list[int]:
    """The packed keys that some of these packed queries see, one pair after the other."""
    kernels = set()
    starts = itertools.accumulate(
        zip(q_lens, k_lens, strict=True), lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0)
    )
    for (q_start, k_start), q_len, k_len in zip(starts, q_lens, k_lens, strict=False):
        for i, j in itertools.product(range(q_len), range(k_len)):
            position = i + k_len - q_len
            seen = (not causal or j <= position) and (not window or j > position - window)
            if seen and queries[0] <= q_start + i < queries[1]:
                kernels.add(k_start + j)
    return sorted(kernels)


def test_the_keys_that_queries_see() -> None:
    rng = random.Random(4)
    for _ in range(400):
        count = rng.randint(1, 3)
        q_lens = tuple(rng.randint(1, 5) for _ in range(count))
        k_lens = tuple(rng.randint(1, 6) for _ in range(count))
        causal, window = rng.random() < 0.5, rng.choice((0, 0, 1, 2, 4, 9))
        start = rng.randrange(sum(q_lens))
        queries = (start, rng.randint(start + 1, sum(q_lens)))
        lower, upper = SeenKeys(q_lens, k_lens, causal, window).by(queries)
        keys = visible(q_lens, k_lens, causal, window, queries)
        assert all(lower <= key < upper for key in keys)
        if min(k - q for q, k in zip(q_lens, k_lens, strict=True)) >= 0:  # each query is at the place of a key
            assert (lower, upper) == (keys[0], keys[-1] + 1)


def test_equal_names_are_numbered() -> None:
    assert unique_names(("a", "a", "a_2", "a", "b")) == ("a", "a_3", "a_2", "a_4", "b")


def test_a_reshape_that_groups_dimensions() -> None:
    """2 * 6 * 1 * 35 elements as 4 * 3 * 5 * 7: two runs, the first cut at the halves that both sides have."""
    tensor = TensorForm(("a", "b", "c", "d"), (2, 6, 1, 35), "f32")
    attributes: dict[str, Any] = {"dims": ["e", "f", "g", "h"], "shape": [4, 3, 5, 7]}
    meaning = FAMILIES["reshape"](Application("reshape", (tensor,), attributes))
    assert [(index.name, index.extent) for index in meaning.indices] == [("a", 2), ("g", 5)]


def test_a_reshape_whose_dimensions_share_no_border_is_not_cut() -> None:
    attributes: dict[str, Any] = {"dims": ["e", "f"], "shape": [3, 2]}
    tensor = TensorForm(("a", "b"), (2, 3), "f32")
    assert FAMILIES["reshape"](Application("reshape", (tensor,), attributes)).indices == ()
