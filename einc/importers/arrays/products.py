"""Products summed over shared axes: matrix products with batches, sums in the notation of einsum."""

from __future__ import annotations

from collections.abc import Sequence

from einc.importers.arrays.elementwise import broadcast_shapes, list_indices
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.moving import reshape
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram, recorded
from einc.importers.arrays.values import Array, UnsupportedError, show_shape
from einc.ops.arguments import make_unique
from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_equations import parse_letters


@recorded
def matmul(program: ArrayProgram, a: Array, b: Array, hint: str = "matmul") -> Array:
    """numpy's `matmul`: the last axis of `a` with the last but one of `b`, other axes broadcast."""
    if a.rank == 0 or b.rank == 0:
        raise UnsupportedError("a matrix product of a number")
    left = reshape(program, a, [1, *a.shape]) if a.rank == 1 else a
    right = reshape(program, b, [*b.shape, 1]) if b.rank == 1 else b
    if left.shape[-1].value != right.shape[-2].value:
        raise UnsupportedError(f"a matrix product of {show_shape(a.shape)} and {show_shape(b.shape)}")
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    product = _multiply(program, left, right, shape, hint)
    kept = [extent for axis, extent in enumerate(shape) if not _is_added(axis - len(shape), a.rank, b.rank)]
    return reshape(program, product, kept, hint)


def _is_added(axis: int, left_rank: int, right_rank: int) -> bool:
    return (axis == -2 and left_rank == 1) or (axis == -1 and right_rank == 1)


def _multiply(program: ArrayProgram, a: Array, b: Array, shape: tuple[Extent, ...], hint: str) -> Array:
    left, right = program.place(a), program.place(b)
    indices = name_dimensions(shape)
    batch = shape[:-2]
    of_a = [*list_indices(left.shape[:-2], batch, indices[:-2]), indices[-2], "r0"]
    of_b = [*list_indices(right.shape[:-2], batch, indices[:-2]), "r0", indices[-1]]
    dims = (*left.dims[:-1], right.dims[-1])
    if b.rank == 2 and len(set(dims)) == len(dims):
        return program.call(hint, "matmul({0}, {1})", [left, right], shape, a.type, dims)
    text = f"{{0}}[{', '.join(of_a)}] * {{1}}[{', '.join(of_b)}]"
    if a.type.is_widened:
        text = a.type.wrap(f"sum[r0]({text})")
    return program.equation(hint, indices, text, [left, right], shape, a.type)


@recorded
def multiply_rows(program: ArrayProgram, rows: Array, weight: Array, hint: str = "linear") -> Array:
    """Rows [..., k] times a weight [n, k], which is read as it lies: [..., n]."""
    letters = "abcdefghij"[: rows.rank - 1]
    return einsum(program, f"{letters}k,ok->{letters}o", [rows, weight], hint)


def einsum(program: ArrayProgram, notation: str, operands: Sequence[Array], hint: str = "einsum") -> Array:
    """A sum of products in numpy's notation of `einsum`, with `...` for axes that broadcast."""
    try:
        equation = parse_letters(notation if "->" in notation else f"{notation}->")
    except PlanFault as fault:
        raise UnsupportedError(f"einsum: {fault.message}") from None
    inputs = equation.inputs
    if len(inputs) != len(operands):
        raise UnsupportedError(f"einsum '{notation}' of {len(operands)} arrays")
    spread = max(
        (op.rank - len(term) + 1 for term, op in zip(inputs, operands, strict=True) if "..." in term), default=0
    )
    extents: dict[str, Extent] = {}
    reads = []
    for term, operand in zip(inputs, operands, strict=True):
        labels = _spread(term, operand.rank, spread)
        for label, extent in zip(labels, operand.shape, strict=True):
            known = extents.setdefault(label, extent)
            if known == make_extent(1):
                extents[label] = extent
        reads.append(labels)
    if "->" not in notation:
        letters = [label for labels in reads for label in labels]
        single = sorted({label for label in letters if letters.count(label) == 1 and not label.startswith("b")})
        kept = [f"b{k}" for k in range(spread)] + single
    else:
        kept = _spread(equation.output, len(equation.output) + (spread - 1 if "..." in equation.output else 0), spread)
    shape = tuple(extents[label] for label in kept)
    names = dict(zip(kept, name_dimensions(shape), strict=True))
    names |= {label: f"r{k}" for k, label in enumerate(label for label in extents if label not in names)}
    placed = [program.place(operand) for operand in operands]
    factors = []
    for k, (labels, operand) in enumerate(zip(reads, operands, strict=True)):
        one_wide = make_extent(1)
        brackets = [
            "0" if extent == one_wide and extents[label] != one_wide else names[label]
            for label, extent in zip(labels, operand.shape, strict=True)
        ]
        factors.append(f"{{{k}}}[{', '.join(brackets)}]")
    over = ", ".join(names[label] for label in extents if label not in kept)
    text = " * ".join(factors)
    if len(factors) == 1 and over:
        text = f"sum[{over}]({text})"
    return program.equation(hint, [names[label] for label in kept], text, placed, shape, operands[0].type)


def multiply_picked(program: ArrayProgram, rows: Array, matrices: Array, picks: Array, hint: str = "experts") -> Array:
    """Rows [t, k], or [t, s, k], times the matrices [e, n, k] that are picked [t, s]: [t, s, n]."""
    shape = (rows.shape[0], picks.shape[1], matrices.shape[1])
    operands = [program.place(operand) for operand in (rows, matrices, picks)]
    dims = make_unique([*operands[2].dims, operands[1].dims[1]])
    return program.call(hint, "expert_matmul({0}, {1}, {2})", operands, shape, rows.type, dims)


def _spread(term: Sequence[str], rank: int, spread: int) -> list[str]:
    """The labels of a term: its letters as `_x`, and `b0`, `b1`, ... for the axes of `...`, which end with the last."""
    count = rank - len(term) + 1
    labels: list[str] = []
    for letter in term:
        labels += [f"b{k}" for k in range(spread - count, spread)] if letter == "..." else [f"_{letter}"]
    if len(labels) != rank:
        raise UnsupportedError(f"einsum term '{''.join(term)}' of an array of {rank} dimensions")
    return labels
