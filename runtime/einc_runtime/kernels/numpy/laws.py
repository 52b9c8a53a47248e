"""The laws of the aggregations that a plan defines, tried with the kernels of numpy (`einc_runtime.laws`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import dtype_name
from einc_runtime.kernels.numpy.scalar import prepare_program
from einc_runtime.laws import SAMPLES, AggregateUse, require_laws
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_programs import INDEX_TYPE, IndexProgram, IndexRead, parse_index_program
from einc_runtime.plan.scalar_programs import ScalarProgram, infer_steps
from einc_runtime.plan.schema import Bundle, Operation

MAX_LAW_STEPS = 100_000
"""The most steps of the programs of all different aggregations of a plan, so that trying them ends in some seconds."""


def prove_laws(bundle: Bundle) -> None:
    """Raises PlanFault, naming the operation, where a law of an aggregation does not hold. The operations of the plan
    are proved to be index programs."""
    tried: set[AggregateUse] = set()
    steps = 0
    for position, operation in enumerate(bundle.operations):
        use = _find_use(bundle, operation)
        if use is None or use in tried:
            continue
        tried.add(use)
        steps += len(use.definition.program.steps) + len(use.program.steps)
        where = f"operations[{position}] ('{operation.name}')"
        if steps > MAX_LAW_STEPS:
            raise PlanFault("its aggregations are too long for their laws to be tried", where=where)
        try:
            _try_laws(use)
        except PlanFault as fault:
            raise PlanFault(fault.message, where=where, hint="compile the model again") from None


@lru_cache(maxsize=256)
def _try_laws(use: AggregateUse) -> None:
    require_laws(use, _evaluate)


def _find_use(bundle: Bundle, operation: Operation) -> AggregateUse | None:
    """How an operation uses an aggregation that the plan defines; None if it does not."""
    texts = operation.attributes
    if operation.family != "index" or find_definition(str(texts["aggregation"])) is None:
        return None
    operands = [bundle.tensors[position] for position in operation.inputs]
    program = _parse(operation, tuple(tensor.shape for tensor in operands))
    definition = find_definition(program.aggregation)
    assert definition is not None
    types = [INDEX_TYPE if isinstance(r, IndexRead) else operands[r.operand].dtype for r in program.reads]
    scalar = ScalarProgram.parse(program.program, len(types))
    results = [step.result_type for step in infer_steps(scalar, types)[-definition.count :]]
    return AggregateUse(definition, scalar, tuple(types), tuple(results))


def _parse(operation: Operation, shapes: tuple[tuple[int, ...], ...]) -> IndexProgram:
    texts = {name: str(operation.attributes[name]) for name in ("loops", "reads", "program", "aggregation")}
    kept = operation.attributes["kept"]
    assert isinstance(kept, int)
    return parse_index_program(kept=kept, shapes=shapes, **texts)


def _evaluate(program: ScalarProgram, arrays: Sequence[Array], types: Sequence[str], count: int) -> list[Array]:
    typed = infer_steps(program, list(types), compute_type)
    with np.errstate(all="ignore"):
        computed = prepare_program(typed, list(map(dtype_name, arrays))).compute(arrays, count)
    return [np.broadcast_to(value, SAMPLES) for value in computed]
