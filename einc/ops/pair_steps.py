"""How a step computes what stands for pairs of tokens: scores of new tokens (queries) with all tokens so far (keys).

A tensor of pairs [..., queries, keys] has a row for each new token in a step, with all places of a cache. What it has
for keys behind their query says nothing: nobody knows yet, or an earlier sequence left it. So a model has to leave it
out, as `where(key <= query, score, -inf)` does. After that a row is what it is in the model, and its keys are a
dimension like others: a softmax over them, the largest ones, their number. Weights that are 0 behind their query may be
multiplied with the values of all keys and added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.arguments import make_unique
from einc.ops.base import Labels, MappedOperator, Operator
from einc.ops.equation import Equation
from einc.ops.index_operator import IndexOperator, build_index_operator, find_parts
from einc.ops.index_steps import rewrite_at_positions
from einc.ops.reshape import Reshape
from einc.ops.scalar import ProgramBuilder
from einc.ops.step_forms import Dependence, Pairs, Source, StepForm, StepInput, StepTokens, TokenForm, require_single
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Position, TensorRead
from einc_runtime.plan.scalar_programs import EarlierStep, Operand, ScalarInput, ScalarLiteral, ScalarProgram

_OF_LATER_KEYS = "depends on keys behind the query"
_AS_IN_MODEL = "is what the model has"
_Behind = ScalarLiteral | str
"""What stands behind a query: a number, one of the two above, or `#` and the loop of which it is the value."""
_OF_KEY_AND_QUERY = {"le": False, "lt": False, "eq": False, "ge": True, "gt": True, "ne": True}
"""Comparisons of a key with a query before it."""
_MIRRORED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}
_TEXTS_OF_ZERO = ("0", "0.0", "-0.0", "false")


@dataclass(frozen=True, slots=True)
class _JoinedTokens:
    """The loops of queries and keys, and the loop of the tokens of each operand; None where it has none, or pairs."""

    queries: str
    keys: str
    result: tuple[str | None, ...]
    loops: tuple[str | None, ...]

    @property
    def form(self) -> Pairs:
        return Pairs(self.result.index(self.queries), self.result.index(self.keys))


def find_pair_step(operator: Operator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm | None:
    """As `einc.ops.steps.find_step_form`, for an operator that reads or makes pairs; None for any other.

    Raises OperatorError where it needs what stands behind a query.
    """
    join = _find_join(operator, forms)
    if join is None:
        if any(isinstance(form, Pairs) and not form.is_zero for form in forms):
            raise OperatorError("joins tokens with later ones, which no where(key <= query, ...) left out before")
        return None
    require_single(tokens, "joins every token with every token")
    if join.keys not in join.result:
        return _close(operator, forms, tokens, join)
    if isinstance(operator, IndexOperator):
        step = rewrite_at_positions(operator, forms, tokens, join.queries, _find_cached(forms, join))
    else:
        assert isinstance(operator, MappedOperator)
        step = _write_mapped(operator, forms, tokens, join, Source.CACHE)
    behind = _find_behind(operator, forms, join)
    form: TokenForm = join.form
    if isinstance(behind, ScalarLiteral) and behind.text in _TEXTS_OF_ZERO:
        form = replace(join.form, is_zero=True)
    elif behind != _OF_LATER_KEYS:
        form = join.form.queries
    return replace(step, results=(form,))


def mark_zeros(operator: Operator, forms: Sequence[TokenForm], step: StepForm, tokens: StepTokens) -> StepForm:
    """The step, whose results are known to be 0 for keys behind their query if a choice of the operator says so."""
    if not isinstance(operator, IndexOperator) or len(step.results) != 1 or not isinstance(step.results[0], int):
        return step
    program, axis = operator.program, step.results[0]
    values = {read.loop for read in program.reads if isinstance(read, IndexRead)}
    for number, name in enumerate(program.result):
        if name in values and number != axis and program.extents[name] == tokens.model_extent:
            loops = tuple(program.result[axis] if isinstance(form, int) else None for form in forms)
            behind = _find_behind(operator, forms, _JoinedTokens(program.result[axis], name, program.result, loops))
            if isinstance(behind, ScalarLiteral) and behind.text in _TEXTS_OF_ZERO:
                return replace(step, results=(Pairs(axis, number, is_zero=True),))
    return step


def make_eraser(desc: TensorDesc, axis: int, tokens: StepTokens) -> Operator:
    """The operator that makes a cache 0 behind the last new token of each sequence, of the cache and of the positions.
    Several sequences are a dimension before the places."""
    names = [f"i{number}" for number in range(desc.rank)]
    sequence = ((names[axis - 1], tokens.new),) if tokens.sequences > 1 else ()
    reads = (
        TensorRead(0, tuple(Position(((name, 1),)) for name in names)),
        IndexRead(names[axis]),
        TensorRead(1, (Position(sequence, tokens.new - 1),)),
    )
    builder = ProgramBuilder(len(reads))
    seen = builder.add("le", ScalarInput(1), ScalarInput(2))
    scalar = builder.program(builder.add("where", seen, ScalarInput(0), ScalarLiteral("0.0")))
    program = IndexProgram(tuple(zip(names, desc.shape, strict=True)), desc.rank, reads, scalar.text, "")
    return build_index_operator((desc, tokens.positions), program, scalar, desc.dims)


def _find_join(operator: Operator, forms: Sequence[TokenForm]) -> _JoinedTokens | None:
    """How an operator joins tokens; None where it joins none, or not in a way that is known."""
    names = _list_loops(operator)
    if names is None or (isinstance(operator, Equation) and operator.windows):
        return None
    of_operands, result = names
    pairs: set[tuple[str | None, str | None]] = set()
    loops = []
    for axes, form in zip(of_operands, forms, strict=True):
        loops.append(axes[form] if isinstance(form, int) else None)
        if isinstance(form, Pairs):
            pairs.add((axes[form.queries], axes[form.keys]))
        elif isinstance(form, int) and axes[form] is None:
            return None
    singles = {name for name in loops if name is not None}
    if not pairs and len(singles) == 2 and singles <= set(result):
        first, second = sorted(singles, key=result.index)
        pairs.add((first, second))
    if len(pairs) != 1:
        return None
    ((queries, keys),) = pairs
    if queries is None or keys is None or queries == keys or queries not in result or singles - {queries, keys}:
        return None
    return _JoinedTokens(queries, keys, result, tuple(loops))


def _list_loops(operator: Operator) -> tuple[list[tuple[str | None, ...]], tuple[str | None, ...]] | None:
    """The loop along which each dimension of each operand runs, None where that is not one loop alone; and those of the
    result."""
    if isinstance(operator, IndexOperator):
        if find_parts(operator) is not None:
            return None
        axes: list[tuple[str | None, ...]] = []
        for number, desc in enumerate(operator.operands):
            reads = [r for r in operator.program.reads if isinstance(r, TensorRead) and r.operand == number]
            columns = zip(*(read.positions for read in reads), strict=True) if reads else [()] * desc.rank
            axes.append(tuple(_find_loop(set(column)) for column in columns))
        return axes, operator.program.result
    if isinstance(operator, Equation | Reshape):
        maps = [tuple(mapped.index for mapped in maps) for maps in operator.input_maps]
        return maps, tuple(mapped.index for mapped in operator.output_maps[0])
    return None


def _find_loop(positions: set[Position]) -> str | None:
    if len(positions) != 1:
        return None
    (position,) = positions
    name = position.terms[0][0] if len(position.terms) == 1 else ""
    return name if name and name[0] != "@" and position == Position(((name, 1),)) else None


def _find_cached(forms: Sequence[TokenForm], join: _JoinedTokens) -> frozenset[int]:
    return frozenset(number for number, name in enumerate(join.loops) if name == join.keys)


def _write_mapped(
    operator: MappedOperator, forms: Sequence[TokenForm], tokens: StepTokens, join: _JoinedTokens, of_keys: Source
) -> StepForm:
    apart = tokens.sequences > 1 and join.keys in join.loops
    if apart and of_keys is Source.CACHE:
        of_keys = Source.APART
    inputs, descs = [], []
    for number, (desc, maps, form) in enumerate(zip(operator.inputs, operator.input_maps, forms, strict=True)):
        rows = [axis for axis, mapped in enumerate(maps) if mapped.index == join.queries]
        if join.loops[number] == join.keys:
            assert isinstance(form, int)
            if rows:
                raise OperatorError(f"reads its operand {number + 1} at tokens along two dimensions")
            inputs.append(StepInput(of_keys, number, form))
            descs.append(tokens.keep_apart(desc, form) if apart else tokens.keep(desc, form))
        elif form is Dependence.NONE and rows:
            if len(rows) > 1:
                raise OperatorError(f"reads its operand {number + 1} at different places for one token")
            inputs.append(StepInput(Source.ROWS, number, rows[0]))
            descs.append(tokens.shorten(desc, rows[0]))
        else:
            inputs.append(StepInput(Source.SAME, number))
            descs.append(tokens.shorten(desc, form))
    attributes = dict(operator.attributes)
    queries = join.result.index(join.queries)
    if isinstance(operator, Reshape):
        attributes["shape"] = tokens.shorten(operator.outputs[0], queries).shape
    if apart and isinstance(operator, Equation):
        return _write_apart(operator, descs, inputs, tokens, join)
    return StepForm(registry.restore(operator.family, tuple(descs), attributes), tuple(inputs), (queries,))


def _write_apart(
    operator: Equation,
    descs: Sequence[TensorDesc],
    inputs: Sequence[StepInput],
    tokens: StepTokens,
    join: _JoinedTokens,
) -> StepForm:
    """The equation with one more index, of sequences, each of which has queries and keys of its own."""
    sequence = make_unique((*sorted({name for names in operator.labels for name in names}), "sequence"))[-1]

    def add_index(names: Labels) -> Labels:
        at = next((axis for axis, name in enumerate(names) if name in (join.queries, join.keys)), None)
        return names if at is None else (*names[:at], sequence, *names[at:])

    axes = tuple(names.index(join.queries) if join.queries in names else None for names in operator.labels)
    divided = tuple(desc if axis is None else tokens.divide(desc, axis) for desc, axis in zip(descs, axes, strict=True))
    queries = operator.result.index(join.queries)
    dims = tokens.divide(tokens.shorten(operator.outputs[0], queries), queries).dims
    labels = tuple(map(add_index, operator.labels))
    written = replace(operator, operands=divided, labels=labels, result=add_index(operator.result), dims=dims)
    return StepForm(written, tuple(inputs), (queries,), apart=axes)


def _close(operator: Operator, forms: Sequence[TokenForm], tokens: StepTokens, join: _JoinedTokens) -> StepForm | None:
    """The sum over all keys of products with weights that are 0 behind their query."""
    weighted = any(isinstance(form, Pairs) and form.is_zero for form in forms)
    if isinstance(operator, Equation) and weighted and operator.kernel.name == "contract":
        return _write_mapped(operator, forms, tokens, join, Source.SEEN)
    if all(not isinstance(form, Pairs) or form.is_zero for form in forms) and _find_cached(forms, join) == frozenset():
        return None
    raise OperatorError(
        "aggregates over keys that later tokens are, too, with weights that are not known to be 0 there"
    )


# ---- what stands behind a query ----


def _find_behind(operator: Operator, forms: Sequence[TokenForm], join: _JoinedTokens) -> _Behind:
    """What a result has for keys behind their query."""

    def describe(number: int) -> _Behind:
        form = forms[number]
        if isinstance(form, Pairs):
            return ScalarLiteral("0.0") if form.is_zero else _OF_LATER_KEYS
        return _OF_LATER_KEYS if join.loops[number] == join.keys else _AS_IN_MODEL

    if isinstance(operator, Reshape):
        return describe(0)
    if isinstance(operator, IndexOperator):
        program, aggregation = operator.scalar, operator.program.aggregation
        inputs = [
            f"#{read.loop}" if isinstance(read, IndexRead) else describe(read.operand)
            for read in operator.program.reads
        ]
    else:
        assert isinstance(operator, Equation)
        program, aggregation = operator.program, operator.aggregation or ""
        inputs = [describe(number) for number in range(len(forms))]
    value = _evaluate(program, inputs, join)
    is_number = isinstance(value, ScalarLiteral)
    return _AS_IN_MODEL if is_number and aggregation not in ("", "sum") else value


def _evaluate(program: ScalarProgram, inputs: Sequence[_Behind], join: _JoinedTokens) -> _Behind:
    values: list[_Behind] = []

    def read(operand: Operand) -> _Behind:
        if isinstance(operand, ScalarInput):
            return inputs[operand.position]
        return values[operand.position] if isinstance(operand, EarlierStep) else operand

    for step in program.steps:
        values.append(_apply(step.function, [read(operand) for operand in step.operands], join))
    return values[-1]


def _apply(function: str, operands: Sequence[_Behind], join: _JoinedTokens) -> _Behind:
    texts = [operand.text if isinstance(operand, ScalarLiteral) else operand for operand in operands]
    query, key = f"#{join.queries}", f"#{join.keys}"
    if texts == [query, key]:
        function, texts = _MIRRORED.get(function, function), [key, query]
    if texts == [key, query] and function in _OF_KEY_AND_QUERY:
        return ScalarLiteral(str(_OF_KEY_AND_QUERY[function]).lower())
    if function == "where" and texts[0] in ("true", "false"):
        return operands[1 if texts[0] == "true" else 2]
    if function == "not" and texts[0] in ("true", "false"):
        return ScalarLiteral("false" if texts[0] == "true" else "true")
    deciding = {"and": ("false",), "or": ("true",), "mul": () if _OF_LATER_KEYS in operands else _TEXTS_OF_ZERO}.get(
        function, ()
    )
    if any(isinstance(operand, ScalarLiteral) and operand.text in deciding for operand in operands):
        return ScalarLiteral({"and": "false", "or": "true"}.get(function, "0.0"))
    if function == "copy" or (function.startswith("cast") and texts[0] in _TEXTS_OF_ZERO):
        return operands[0]
    return _OF_LATER_KEYS if _OF_LATER_KEYS in operands else _AS_IN_MODEL
