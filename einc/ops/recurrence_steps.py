"""How a recurrence computes new tokens.

Along tokens, it starts again from the first one, over caches of all that it reads. So a step takes as long as reading a
text that fills the caches: a state cannot be read before it is written over (decision 23), which a carry would need.
Along any other index, tokens are computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einc.errors import OperatorError
from einc.ops.recurrence import RecurrenceOperator, build_recurrence
from einc.ops.step_forms import Source, StepForm, StepInput, StepTokens, TokenForm, read_same, require_single
from einc_runtime.plan.recurrences import OperandRead, Recurrence, RecurrenceEquation, RecurrenceRead

_SEQUENCE_LOOP = "sequence"
"""The loop of sequences; those of texts are letters."""


def find_recurrence_step(operator: RecurrenceOperator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """As `einc.ops.steps.find_step_form`, for a recurrence of which some operand has tokens."""
    program = operator.program
    loops = {program.loops_of_operand(number)[form] for number, form in enumerate(forms) if isinstance(form, int)}
    if len(loops) > 1:
        raise OperatorError("joins every token with every token")
    (loop,) = loops
    if loop is None:
        raise OperatorError("reads tokens of one operand along different indices")
    results = tuple(_find_axis(program.equations[number].loops, loop) for number in program.results)
    if loop == program.along:
        return _compute_all(operator, forms, tokens, results)
    if loop not in {index.name for index in operator.indices}:
        raise OperatorError("computes a token from values of others at the step before")
    if any(loop in program.loops_of_operand(number) and not isinstance(form, int) for number, form in enumerate(forms)):
        require_single(tokens, "has different values at different tokens")
    inputs, descs = [], []
    for number, (form, desc) in enumerate(zip(forms, operator.operands, strict=True)):
        along = [axis for axis, name in enumerate(program.loops_of_operand(number)) if name == loop]
        if along and not isinstance(form, int):
            inputs.append(StepInput(Source.ROWS, number, along[0]))
            descs.append(tokens.shorten(desc, along[0]))
        else:
            inputs.append(StepInput(Source.SAME, number))
            descs.append(tokens.shorten(desc, form))
    extents = [(name, tokens.new_extent if name == loop else extent) for name, extent in program.loops]
    changed = build_recurrence(descs, extents, program.equations, program.results, operator.dims)
    return StepForm(changed, tuple(inputs), results)


def _find_axis(loops: Sequence[str], loop: str) -> int:
    if loop not in loops:
        raise OperatorError("aggregates over all tokens, so that a new one changes what was made of all before it")
    return loops.index(loop)


def _compute_all(
    operator: RecurrenceOperator, forms: Sequence[TokenForm], tokens: StepTokens, results: tuple[int, ...]
) -> StepForm:
    require_single(tokens, "goes on from the token before")
    several = tokens.sequences > 1
    inputs = list(read_same(forms))
    descs = list(operator.operands)
    for number, form in enumerate(forms):
        if isinstance(form, int):
            inputs[number] = StepInput(Source.APART if several else Source.CACHE, number, form)
            descs[number] = (tokens.keep_apart if several else tokens.keep)(descs[number], form)
    program = operator.program
    loops = [(name, tokens.model_extent if name == program.along else extent) for name, extent in program.loops]
    if not several:
        changed = build_recurrence(descs, loops, program.equations, program.results, operator.dims)
        return StepForm(changed, tuple(inputs), results, makes_all=True)
    equations = _add_sequences(program, {number for number, form in enumerate(forms) if isinstance(form, int)})
    loops.insert(1, (_SEQUENCE_LOOP, tokens.sequences))
    dims = [
        name for desc, axis in zip(operator.outputs, results, strict=True) for name in tokens.divide(desc, axis).dims
    ]
    changed = build_recurrence(descs, loops, equations, program.results, dims)
    return StepForm(changed, tuple(inputs), results, makes_all=True, apart=(None,) * len(inputs))


def _add_sequences(program: Recurrence, operands: set[int]) -> list[RecurrenceEquation]:
    """The equations with one more loop, of sequences, before that along which these operands have tokens."""
    dependent: set[int] = set()

    def add_loop(loops: tuple[str, ...]) -> tuple[str, ...]:
        at = loops.index(program.along)
        return (*loops[:at], _SEQUENCE_LOOP, *loops[at:])

    def depends(read: RecurrenceRead) -> bool:
        return read.source in (operands if isinstance(read, OperandRead) else dependent)

    for _ in program.equations:  # a value may be read one step later by an equation before it
        dependent |= {number for number, each in enumerate(program.equations) if any(map(depends, each.reads))}
    return [
        replace(
            equation,
            loops=add_loop(equation.loops) if number in dependent else equation.loops,
            reads=tuple(
                replace(read, loops=add_loop(read.loops)) if depends(read) else read for read in equation.reads
            ),
        )
        for number, equation in enumerate(program.equations)
    ]
