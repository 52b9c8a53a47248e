"""A contraction and the map after it as one product of matrices, where cuBLASLt's epilogues can compute the map.

An epilogue may add another array of the result's form (cuBLAS's C, of the product's D), add a vector along the
result's innermost indices (its bias), or both, and then apply relu or the gelu that is approximated by tanh. The
product is not rounded before the map, as it is between two kernels, so results are a little more exact. gelu by erf is
no epilogue, and gelu by tanh only in 16 bits, since cuBLASLt does not document how it computes tanh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, LaunchSequence, as_layout
from einc_runtime.plan.epilogues import ACTIVATIONS
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.scalar_programs import EarlierStep, ScalarInput, ScalarProgram

PRODUCT_DTYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a map does to the operand at position `operand`: adds those at positions `added`, applies a function."""

    operand: int
    added: tuple[int, ...]
    activation: str


def parse_epilogue(source: str, arity: int, operand: int) -> Epilogue | None:
    """Reads a map's program as an epilogue of its operand of this number; None where it is no epilogue."""
    program = ScalarProgram.parse(source, arity)
    value: ScalarInput | EarlierStep = ScalarInput(operand)
    added: list[int] = []
    activation = ""
    for position, step in enumerate(program.steps):
        further = [used for used in step.operands if used != value]
        if step.function in ACTIVATIONS and not further and not activation:
            activation = step.function
        elif step.function == "add" and len(further) == 1 and isinstance(further[0], ScalarInput) and not activation:
            added.append(further[0].position)
        else:
            return None
        value = EarlierStep(position)
    if sorted((operand, *added)) != list(range(arity)):
        return None  # an operand that is not used, or more than once
    return Epilogue(operand, tuple(added), activation)


def build_with_epilogue(first: Invocation[GpuArray], then: Invocation[GpuArray], operand: int) -> LaunchSequence | None:
    """Products, and copies before them, for a contraction and a map whose operand of this number is its result.

    None where no product can do both, and in reproducible plans, whose products no library computes. Also where the map
    writes over what the products read: in a plan it may, since the contraction ends before the map begins.
    """
    if first.is_reproducible:
        return None
    source, equation = (then.attribute(name, str) for name in ("program", "indices"))
    epilogue, names = parse_epilogue(source, len(then.inputs), operand), parse_index_equation(equation)
    (result,), (output,), kind = first.outputs, then.outputs, then.outputs[0].dtype
    if epilogue is None or any(x.dtype != kind for x in (result, *then.inputs)) or kind not in PRODUCT_DTYPES:
        return None
    if epilogue.activation == "gelu_tanh" and kind == "f32":
        return None
    if names.inputs[operand] != names.output or result.shape != output.shape or not output.compact:
        return None
    sequence = build_contract(first.on([as_layout(x) for x in first.inputs], [as_layout(output)]))
    products = [step for step in sequence.steps if isinstance(step, Gemm) and step.c < SCRATCH]
    if not products or sequence.steps[-len(products) :] != tuple(products) or any(p.result != kind for p in products):
        return None
    if any(overlaps(output, *read) for product in products for read in read_ranges(product, output.itemsize)):
        return None  # products must not write over what they read; the copies before them have ended
    done = [replace(product, activation=epilogue.activation) for product in products]
    in_memory = [names.output[dim] for dim in output.memory_order]
    for position in epilogue.added:
        added, labels = then.inputs[position], names.inputs[position]
        if not added.compact or (added != output and overlaps(output, added.pointer, added.pointer + added.nbytes)):
            return None
        same_layout = (labels, added.shape, added.strides) == (names.output, output.shape, output.strides)
        if same_layout and not done[0].addend:
            done = [replace(product, addend=added.pointer + product.c - output.pointer) for product in done]
        elif (
            added.dense and _are_innermost(labels, in_memory) and _is_one_matrix(done, added.size) and not done[0].bias
        ):
            done = [replace(done[0], bias=added.pointer)]
        else:
            return None
    return replace(sequence, steps=(*sequence.steps[: -len(products)], *done))


def read_ranges(product: Gemm, itemsize: int) -> Iterator[tuple[int, int]]:
    """The ranges of bytes that a product reads, except those in its own workspace."""
    p = product
    for address, lines, run, leading, stride in (
        (p.a, *((p.m, p.k) if p.transpose_a else (p.k, p.m)), p.lda, p.stride_a),
        (p.b, *((p.k, p.n) if p.transpose_b else (p.n, p.k)), p.ldb, p.stride_b),
    ):
        if address < SCRATCH:
            yield address, address + ((p.batch - 1) * stride + (lines - 1) * leading + run) * itemsize


def overlaps(written: GpuArray, first: int, end: int) -> bool:
    """Whether an array has bytes from `first` to before `end`."""
    return first < written.pointer + written.nbytes and written.pointer < end


def _are_innermost(names: Sequence[str], output: Sequence[str]) -> bool:
    """Whether these are the innermost indices of the output, but not all of them."""
    return 0 < len(names) < len(output) and tuple(output[-len(names) :]) == tuple(names)


def _is_one_matrix(products: Sequence[Gemm], rows: int) -> bool:
    """Whether it is one product of one matrix, whose columns (in cuBLAS's order) are `rows` elements in memory."""
    return len(products) == 1 and products[0].batch == 1 and products[0].m == rows > 1
