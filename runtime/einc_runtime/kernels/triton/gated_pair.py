"""Two contractions of one operand and the map of both results as one kernel, such as silu(gate) * up.

No library has it: cuBLASLt has no epilogue for two products. Our own kernel (`product.py`) reads what both share once,
and writes neither product, but it multiplies more slowly than cuBLAS on most GPUs. So it is a candidate of tuning, and
runs only where a measurement has chosen it. The products are not rounded before the map, as they are between kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einc_runtime.kernels.base import GatedInvocations
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.epilogue import overlaps, read_ranges
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, as_layout
from einc_runtime.kernels.triton.product import MULTIPLIED_TYPES
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.launches import MAX_GATE


@dataclass(frozen=True, slots=True)
class GatedPair:
    """Two products of one form, in the order of the program's operands; both write where the map does."""

    products: tuple[Gemm, Gemm]
    program: str


def build_gated_pair(pair: GatedInvocations[GpuArray]) -> GatedPair | None:
    """The products of two contractions, with the program of the map of their results.

    None where they do not fit: where they are no single products of one form that share an operand, where the map
    permutes, or where it writes over what the products read; and in reproducible plans, whose products have a kernel of
    their own.
    """
    first, second, then = pair.parts
    places = pair.places
    if first.is_reproducible or second.is_reproducible:
        return None
    program, equation = (then.attribute(name, str) for name in ("program", "indices"))
    (output,), names = then.outputs, parse_index_equation(equation)
    if sorted(places) != [0, 1] or len(program) > MAX_GATE or any(labels != names.output for labels in names.inputs):
        return None
    kinds = {x.dtype for x in (*then.inputs, output)}
    if len(kinds) != 1 or output.dtype not in MULTIPLIED_TYPES or any(x.shape != output.shape for x in then.inputs):
        return None
    if not output.compact:
        return None
    products: list[Gemm] = []
    for product in (first, second):
        sequence = build_contract(product.on([as_layout(x) for x in product.inputs], [as_layout(output)]))
        step = sequence.steps[0] if len(sequence.steps) == 1 and not sequence.scratch else None
        if not isinstance(step, Gemm) or step.c >= SCRATCH or step.result != output.dtype:
            return None
        products.append(step)
    left, right = products
    if replace(left, a=0, b=0) != replace(right, a=0, b=0) or (left.a == right.a) == (left.b == right.b):
        return None
    if any(overlaps(output, *operand) for product in products for operand in read_ranges(product, output.itemsize)):
        return None
    return GatedPair((left, right) if places[0] == 0 else (right, left), program)
