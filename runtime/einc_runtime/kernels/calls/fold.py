"""Calls that aggregate by a definition of the plan: an index program's values, or copies of partial results.

All kernels read these two records: numpy, machine code and Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import JointInvocation, dtype_name
from einc_runtime.kernels.calls.index import IndexCall, MadeArrays
from einc_runtime.plan.aggregate_definitions import AggregateDefinition, find_definition
from einc_runtime.plan.scalar_programs import TypedStep, infer_steps


@dataclass(frozen=True, slots=True)
class FoldCall:
    """The last steps of `values` are a tuple at each index vector; the last steps of `combining` are what two tuples
    become. Views have the dimensions [kept..., aggregated...], with extent 1 where one is broadcast; outputs those that
    are kept. `kinds` are the element types of views, and `stored` those of outputs."""

    definition: AggregateDefinition
    values: tuple[TypedStep, ...]
    combining: tuple[TypedStep, ...]
    views: tuple[Array, ...]
    outputs: tuple[Array, ...]
    kinds: tuple[str, ...]
    stored: tuple[str, ...]
    extents: tuple[int, ...]

    @staticmethod
    def of(call: IndexCall, arrays: MadeArrays) -> FoldCall:
        """The aggregation of a program whose aggregation is defined."""
        program, definition = call.program, find_definition(call.program.aggregation)
        assert definition is not None
        scalar, _, views = call.list_views(arrays)
        order = [name for name, _ in program.loops]
        kinds = [dtype_name(view.array) for view in views]
        stored = tuple(map(dtype_name, call.outputs))
        # Loops that only count have views that no step reads.
        values = infer_steps(scalar, kinds[: scalar.arity], compute_type)
        return FoldCall(
            definition,
            values,
            definition.infer_steps(stored, compute_type),
            tuple(view.align(order) for view in views),
            call.outputs,
            tuple(kinds),
            stored,
            tuple(call.ranges[name][1] - call.ranges[name][0] for name in order),
        )

    @property
    def kept(self) -> int:
        """How many dimensions outputs have."""
        return self.outputs[0].ndim

    @property
    def title(self) -> str:
        return f"{self.definition.name} over {len(self.extents) - self.kept} dimensions"


@dataclass(frozen=True, slots=True)
class CombineCall:
    """Copies of a tuple, copy after copy, become the target by one program, of which the last steps are the result. The
    first copy may lie in the memory of the target."""

    definition: AggregateDefinition
    steps: tuple[TypedStep, ...]
    copies: tuple[Array, ...]
    target: tuple[Array, ...]
    stored: tuple[str, ...]

    @staticmethod
    def parse(invocation: JointInvocation[Array]) -> CombineCall:
        definition = find_definition(invocation.definition)
        assert definition is not None
        target, copies = tuple(invocation.writes), tuple(invocation.reads)
        stored, number = tuple(map(dtype_name, target)), len(copies) // len(target)
        steps = infer_steps(definition.chain(number), stored * number, compute_type)
        return CombineCall(definition, steps, copies, target, stored)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The element types of copies."""
        return self.stored * (len(self.copies) // len(self.target))
