"""How a recurrence computes new tokens.

Along tokens, it goes on from what the token before left, which is a state: what each equation carries is kept where a
token does not count, and starts anew at position 0. Along any other index, tokens are computed one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import make_unique
from einc.ops.recurrence import RecurrenceOperator, build_recurrence, renumber_reads
from einc.ops.step_forms import Source, StepCarry, StepForm, StepInput, StepTokens, TokenForm, require_single
from einc_runtime.plan.recurrences import OperandRead, Recurrence, RecurrenceEquation, RecurrenceRead, ValueRead

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
        return _go_on(operator, forms, tokens, results)
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


def _go_on(
    operator: RecurrenceOperator, forms: Sequence[TokenForm], tokens: StepTokens, results: tuple[int, ...]
) -> StepForm:
    """Along tokens, which it reads together with those that count, and with what it carries, from there on."""
    require_single(tokens, "goes on from the token before")
    several, program = tokens.sequences > 1, operator.program
    inputs, descs, apart = [], [], []
    for number, (form, desc) in enumerate(zip(forms, operator.operands, strict=True)):
        names = program.loops_of_operand(number)
        axis = names.index(program.along) if program.along in names else None
        is_row = axis is not None and not isinstance(form, int)
        inputs.append(StepInput(Source.ROWS, number, axis or 0) if is_row else StepInput(Source.SAME, number))
        new = desc if axis is None else tokens.shorten(desc, axis)
        descs.append(tokens.divide(new, axis) if several and axis is not None else new)
        apart.append(axis if several else None)
    equations = list(program.equations)
    loops = [(name, tokens.new if name == program.along else extent) for name, extent in program.loops]
    if several:
        equations = _add_sequences(program, {number for number, axis in enumerate(apart) if axis is not None})
        loops.insert(1, (_SEQUENCE_LOOP, tokens.sequences))
    carries = [_describe_carry(program, equations[number], dict(loops)) for number in program.carried]
    count = len(descs)
    descs += [tokens.counted, *(carry.desc for carry in carries)]
    inputs += [StepInput(Source.COUNTED), *(StepInput(Source.CARRIED, number) for number in range(len(carries)))]
    equations, further = _keep_carries(program, equations, count, several)
    read = sorted({read.source for equation in equations for read in equation.operand_reads})
    moved = [renumber_reads(equation, read.index) for equation in equations]
    first = further[0] - len(program.equations)
    kept = [first + number for number in program.results]
    outputs = [(desc, axis) for desc, axis in zip(operator.outputs, results, strict=True)]
    dims = [name for desc, axis in outputs for name in (tokens.divide(desc, axis) if several else desc).dims]
    dims += [name for number in further for name in make_unique(equations[number].loops)]
    changed = build_recurrence([descs[k] for k in read], loops, moved, [*kept, *further], dims)
    apart += [None] * (len(descs) - count)
    return StepForm(
        changed,
        tuple(inputs[k] for k in read),
        results,
        tuple(carries),
        tuple(apart[k] for k in read) if several else (),
    )


def _describe_carry(program: Recurrence, equation: RecurrenceEquation, extents: Mapping[str, int]) -> StepCarry:
    """Of an equation of a step, whose value is kept in f32 at least."""
    names = [name for name in equation.loops if name != program.along]
    desc = TensorDesc(tuple(names), tuple(extents[name] for name in names), DType(_widen(equation)))
    initial: str | tuple[int, tuple[int, ...]]
    if isinstance(equation.initial, OperandRead):
        initial = equation.initial.source, tuple(names.index(name) for name in equation.initial.loops)
    else:
        initial = equation.initial
    axis = names.index(_SEQUENCE_LOOP) if _SEQUENCE_LOOP in names else None
    return StepCarry(desc, axis, initial, equation.loops.index(program.along))


def _keep_carries(
    program: Recurrence, equations: Sequence[RecurrenceEquation], counted: int, several: bool
) -> tuple[list[RecurrenceEquation], list[int]]:
    """The equations, of which those that are carried keep their values at tokens that do not count: operand `counted`
    says which do, and the operands behind it what was carried before. Returns them with the numbers of those that keep.

    Values that are kept in another type are converted before they are read.
    """
    along, carried = program.along, program.carried
    narrow = [number for number in carried if _widen(equations[number]) != equations[number].dtype]
    shift = len(narrow)
    keepers = {number: shift + len(equations) + k for k, number in enumerate(carried)}
    tokens = (_SEQUENCE_LOOP,) * several + (along,)

    def move(read: RecurrenceRead) -> RecurrenceRead:
        if not isinstance(read, ValueRead):
            return read
        if not read.before:
            return replace(read, source=read.source + shift)
        if read.source in narrow:
            return replace(read, source=narrow.index(read.source), before=False)
        return replace(read, source=keepers[read.source])

    result = [
        replace(
            equations[number],
            reads=(ValueRead(keepers[number], equations[number].loops, True, along),),
            program=f"t0 = cast:{equations[number].dtype} x0",
            aggregation="",
            initial="",
        )
        for number in narrow
    ]
    result += [replace(equation, reads=tuple(map(move, equation.reads)), initial="") for equation in equations]
    for k, number in enumerate(carried):
        loops, dtype = equations[number].loops, _widen(equations[number])
        value = "x1" if dtype == equations[number].dtype else "t0"
        steps = [f"t0 = cast:{dtype} x1"] * (value == "t0")
        steps.append(f"t{len(steps)} = where x0 {value} x2")
        reads = (
            OperandRead(counted, tokens),
            ValueRead(number + shift, loops, False, along),
            ValueRead(keepers[number], loops, True, along),
        )
        initial = OperandRead(counted + 1 + k, tuple(name for name in loops if name != along))
        result.append(RecurrenceEquation(dtype, loops, reads, "; ".join(steps), "", initial))
    return result, list(keepers.values())


def _widen(equation: RecurrenceEquation) -> str:
    """The type in which a step keeps its value for the next one."""
    return "f32" if equation.dtype in ("f16", "bf16") else equation.dtype


def _add_sequences(program: Recurrence, operands: set[int]) -> list[RecurrenceEquation]:
    """The equations with one more loop, of sequences, before that along which these operands have tokens."""
    dependent = set(program.carried)

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
