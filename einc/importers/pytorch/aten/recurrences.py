"""Recurrences along tokens, which `einc.from_torch` exports as one operator."""

from __future__ import annotations

from einc.importers.arrays.elementwise import list_indices
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten


@aten("einc.recurrence")
def convert_recurrence(
    call: Call, query: Array, key: Array, value: Array, decay: Array, beta: Array | None = None
) -> Array:
    """A state for each head and two statements; `../recurrences.py` says what they compute."""
    program = call.program
    if value.rank != 4 or query.rank != 4 or key.rank != 4 or decay.rank != 4:
        raise UnsupportedError("a recurrence of other forms than [batch, tokens, heads, d]")
    shape = (*value.shape[:3], key.shape[3], value.shape[3])
    batch, token, head, row, column = names = name_dimensions(shape)
    query, key, value, decay = (program.place(part) for part in (query, key, value, decay))
    operands = [key, value, decay]
    keys = list_indices(key.shape, shape[:4], names[:4])
    decays = list_indices(decay.shape, shape[:4], names[:4])
    before = f"{{itself}}[{batch}, {token} - 1, {head}, {row}, {column}, outside = 0]"
    written = f"{{1}}[{batch}, {token}, {head}, {column}]"
    if beta is not None:
        operands.append(program.place(beta))
        inner = [part.replace(row, "r0") if part == row else part for part in keys]
        decayed = [part.replace(row, "r0") if part == row else part for part in decays]
        read = before.replace(f"{row}, {column}, outside", f"r0, {column}, outside")
        kept = f"sum[r0 = {shape[3].text}]({{0}}[{', '.join(inner)}] * {{2}}[{', '.join(decayed)}] * {read})"
        written = f"{{3}}[{batch}, {token}, {head}] * ({written} - {kept})"
    text = f"{{2}}[{', '.join(decays)}] * {before} + {{0}}[{', '.join(keys)}] * {written}"
    state = program.equation("carried", names, text, operands, shape, value.type)
    results = name_dimensions(value.shape)
    queries = list_indices(query.shape, (*shape[:3], shape[3]), (*results[:3], "r0"))
    text = f"sum[r0 = {shape[3].text}]({{0}}[{', '.join(results[:3])}, r0, {results[3]}] * {{1}}[{', '.join(queries)}])"
    return program.equation(call.hint, results, text, [state, query], value.shape, value.type)
