"""How an operator computes a few new tokens of a sequence, if all that it made of earlier ones is kept.

A model reads whole sequences: its tensors have a dimension of tokens. A step gets a few new tokens along it. For each
operator, `find_step_form` says which operator computes the results of the new tokens alone, and from what: the new
tokens of an operand, all tokens of it so far (from a cache), its rows at the positions of the new tokens, or these
positions. An operator of which earlier results would change with a new token has no such form; the error says why.

The rules are about the meaning of operators alone. A tokenwise operator may be cut anywhere along its tokens, and each
part of its results needs the same part of its operands (`MappedOperator`); an index program tells by its positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.arguments import make_unique
from einc.ops.attention import Attention
from einc.ops.base import Attribute, DimMap, MappedOperator, Operator
from einc.ops.index_operator import IndexOperator
from einc.ops.index_steps import find_index_step
from einc.ops.pair_steps import find_pair_step, mark_zeros
from einc.ops.recurrence import RecurrenceOperator
from einc.ops.recurrence_steps import find_recurrence_step
from einc.ops.reshape import Reshape
from einc.ops.rope import Rope
from einc.ops.shorthands import cut_out
from einc.ops.step_forms import (
    Dependence,
    Pairs,
    Source,
    StepForm,
    StepInput,
    StepTokens,
    TokenForm,
    read_same,
    require_rows,
    require_single,
)

_TOKENWISE = frozenset(("equation", "topk", "reshape", "rope", "rows"))
"""Families whose kernels compute the same wherever along the tokens a block is; rotations do with positions alone."""


def find_step_form(operator: Operator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """How the operator computes new tokens, where its inputs have these forms.

    Raises OperatorError with the reason where it cannot.
    """
    if all(isinstance(form, Dependence) for form in forms):
        last = Dependence.LAST if Dependence.LAST in forms else Dependence.NONE
        return StepForm(operator, read_same(forms), (last,) * len(operator.outputs))
    if Dependence.LAST in forms:
        raise OperatorError("combines tokens with the last tokens, which later ones replace")
    joined = find_pair_step(operator, forms, tokens)
    if joined is not None:
        return joined
    rows = [form.queries if isinstance(form, Pairs) else form for form in forms]
    return mark_zeros(operator, rows, _find_token_form(operator, rows, tokens), tokens)


def _find_token_form(operator: Operator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """Of an operator that joins no tokens with others, or as it does so by itself."""
    if isinstance(operator, Attention):
        return _find_attention(operator, forms, tokens)
    if isinstance(operator, IndexOperator):
        return find_index_step(operator, forms, tokens)
    if isinstance(operator, RecurrenceOperator):
        return find_recurrence_step(operator, forms, tokens)
    if operator.part is not None:
        return _find_slice(operator.inputs[0], operator.part, forms, tokens)
    if isinstance(operator, Rope) and operator.positions is None and forms[0] == operator.tensor.rank - 2:
        return _find_rotation(operator, forms, tokens)
    if isinstance(operator, MappedOperator) and operator.family in _TOKENWISE:
        return _find_tokenwise(operator, forms, tokens)
    raise OperatorError("is not known to compute tokens one by one")


def find_sequence_lengths(operator: Operator) -> tuple[int, ...] | None:
    """The lengths of the packed sequences whose tokens the operator tells apart, if it does."""
    if isinstance(operator, Attention):
        return operator.q_lens
    return operator.seq_lens if isinstance(operator, Rope) and operator.positions is None else None


def make_row_reader(desc: TensorDesc, axis: int, tokens: StepTokens) -> Operator:
    """The operator that reads the rows of a tensor at positions: of the tensor, and of the positions.

    Raises OperatorError where positions count within each of several sequences, and rows from the first one on.
    """
    require_single(tokens, "has different values at different tokens")
    names = [f"i{number}" for number in range(desc.rank)]
    shape = tokens.shorten(desc, axis).shape
    loops = " ".join(f"{name}={extent}" for name, extent in zip(names, shape, strict=True))
    places = ", ".join("@1" if number == axis else name for number, name in enumerate(names))
    return registry.restore(
        IndexOperator.family,
        (desc, tokens.positions),
        {
            "loops": loops,
            "kept": desc.rank,
            "reads": f"0[{places}]; 1[i{axis}]",
            "program": "t0 = copy x0",
            "aggregation": "",
            "dims": desc.dims,
        },
    )


def make_gatherer(desc: TensorDesc, tokens: StepTokens) -> Operator:
    """The operator that reads the blocks of all sequences, one sequence after another: of a state [before, blocks,
    places of each, behind], and of their table. The result is [before, sequences, blocks of each, places, behind]."""
    before, _, size, behind = desc.shape
    shape = before, *tokens.table.shape, size, behind
    loops = " ".join(f"i{number}={extent}" for number, extent in enumerate(shape))
    return registry.restore(
        IndexOperator.family,
        (desc, tokens.table),
        {
            "loops": loops,
            "kept": len(shape),
            "reads": "0[i0, @1, i3, i4]; 1[i1, i2]",
            "program": "t0 = copy x0",
            "aggregation": "",
            "dims": make_unique((desc.dims[0], "sequences", "blocks", "places", desc.dims[3])),
        },
    )


# ---- operators that compute tokens one by one ----


def _find_tokenwise(operator: MappedOperator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    index = _find_token_index(operator, forms)
    inputs = []
    for number, (maps, form) in enumerate(zip(operator.input_maps, forms, strict=True)):
        along = [axis for axis, mapped in enumerate(maps) if mapped.index == index]
        if isinstance(form, Dependence) and along:
            if len(along) > 1 or maps[along[0]] != DimMap(index):
                raise OperatorError(f"reads its operand {number + 1} at different places for one token")
            inputs.append(StepInput(Source.ROWS, number, along[0]))
        elif not isinstance(form, Dependence) and along != [form]:
            raise OperatorError("reads the tokens of an operand along two dimensions")
        else:
            inputs.append(StepInput(Source.SAME, number))
    results = [_find_result_axis(maps, index) for maps in operator.output_maps]
    descs = [
        tokens.shorten(desc, form if item.source is Source.SAME else item.axis)
        for desc, form, item in zip(operator.inputs, forms, inputs, strict=True)
    ]
    attributes = dict(operator.attributes)
    if isinstance(operator, Reshape):
        attributes["shape"] = tokens.shorten(operator.outputs[0], results[0]).shape
    return StepForm(registry.restore(operator.family, tuple(descs), attributes), tuple(inputs), tuple(results))


def _find_token_index(operator: MappedOperator, forms: Sequence[TokenForm]) -> str:
    """The index along which tokens run in all operands that have tokens."""
    indices: set[str] = set()
    for maps, form in zip(operator.input_maps, forms, strict=True):
        if isinstance(form, int):
            mapped = maps[form]
            if mapped.index is None and not isinstance(operator, Reshape):
                raise OperatorError("needs all tokens at once")
            if mapped.index is None or mapped != DimMap(mapped.index):
                raise OperatorError("mixes the tokens with another dimension")
            indices.add(mapped.index)
    if len(indices) > 1:
        raise OperatorError("joins every token with every token")
    (index,) = indices
    if any(cut.name == index and cut.cuts is not None for cut in operator.indices):
        raise OperatorError("computes several tokens together")
    return index


def _find_result_axis(maps: Sequence[DimMap], index: str) -> int:
    along = [axis for axis, mapped in enumerate(maps) if mapped.index == index]
    if not along:
        raise OperatorError("aggregates over all tokens, so that a new one changes what was made of all before it")
    if len(along) > 1 or maps[along[0]] != DimMap(index):
        raise OperatorError("mixes the tokens with another dimension")
    return along[0]


def _find_slice(tensor: TensorDesc, part: TensorType, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """All tokens, or the last one."""
    (axis,) = forms
    assert isinstance(axis, int)
    bounds, extent = (part.lower[axis], part.upper[axis]), tokens.model_extent
    takes_all = bounds[0] == 0 and bounds[1] >= extent
    if not takes_all:
        require_rows(tokens)
    if not takes_all and bounds != (extent - 1, extent):
        raise OperatorError(f"takes the tokens {bounds[0]} to {bounds[1] - 1}; of a step, all or the last can be taken")
    lower, upper = list(part.lower), list(part.upper)
    lower[axis], upper[axis] = 0 if takes_all else tokens.new_extent - 1, tokens.new_extent
    cut = cut_out(tokens.shorten(tensor, axis), TensorType(tuple(lower), tuple(upper)))
    return StepForm(cut, read_same(forms), (axis if takes_all else Dependence.LAST,))


# ---- operators that know positions ----


def _find_rotation(operator: Rope, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    _require_lengths(operator.seq_lens, tokens)
    attributes = {**dict(operator.rotation), "extras": ("positions",)}
    descs = (tokens.shorten(operator.tensor, forms[0]), tokens.positions)
    inputs = (StepInput(Source.SAME), StepInput(Source.POSITIONS))
    return StepForm(registry.restore(operator.family, descs, attributes), inputs, tuple(forms))


def _find_attention(operator: Attention, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """Of new queries over all keys so far, or over keys that have no tokens."""
    queries, keys, values = forms[:3]
    extras = dict(zip(operator.extras, forms[3:], strict=True))
    if queries != 1 or (keys, values) not in ((1, 1), (Dependence.NONE, Dependence.NONE)):
        raise OperatorError("does not take queries, keys and values [heads, tokens, width] of the same tokens")
    _require_lengths(operator.q_lens, tokens)
    attributes: dict[str, Attribute] = {**operator.attributes, "q_lens": tokens.new_lens}
    new_queries = tokens.shorten(operator.queries, 1)
    if keys is Dependence.NONE:
        if operator.causal or operator.window or any(isinstance(form, int) for form in extras.values()):
            raise OperatorError("tells by tokens which keys are seen, and the keys have none")
        if tokens.sequences > 1:  # all of them read the same keys
            attributes["q_lens"] = (tokens.new_extent,)
        shared = (new_queries, *operator.inputs[1:])
        return StepForm(registry.restore(operator.family, shared, attributes), read_same(forms), (1, 1))
    if not operator.causal:
        raise OperatorError("lets every token see the tokens behind it (it has no causal=true)")
    if not set(extras) <= {"mask", "spans"}:
        raise OperatorError(f"lets tokens see what its {' and '.join(extras)} say, which may be later ones")
    _require_lengths(operator.k_lens, tokens)
    in_blocks = tokens.blocks is not None and not extras
    source = Source.POOL if in_blocks else Source.CACHE
    inputs = [StepInput(Source.SAME), StepInput(source, 1, 1), StepInput(source, 2, 1)]
    kept = [tokens.keep(desc, 1) for desc in (operator.keys, operator.values)]
    descs = [new_queries, *(map(tokens.pool, kept) if in_blocks else kept)]
    for number, name in enumerate(operator.extras, 3):
        desc, has_tokens = operator.inputs[number], extras[name] == 0
        if name == "spans":  # of each query, and of keys counted in its own sequence
            inputs.append(StepInput(Source.SAME if has_tokens else Source.ROWS, number))
            descs.append(tokens.shorten(desc, 0))
            continue
        if tokens.sequences > 1 and not has_tokens:
            raise OperatorError("has a mask of keys that is not one of tokens, which several sequences cannot share")
        inputs.append(StepInput(Source.CACHE if has_tokens else Source.SAME, number))
        descs.append(tokens.keep(desc, 0) if has_tokens else desc)
    attributes["k_lens"], attributes["extras"] = tokens.lens, (*operator.extras, "positions")
    inputs.append(StepInput(Source.POSITIONS))
    descs.append(tokens.positions)
    if in_blocks:
        attributes["extras"] = ("positions", "blocks")
        inputs.append(StepInput(Source.BLOCKS))
        descs.append(tokens.table)
    return StepForm(registry.restore(operator.family, tuple(descs), attributes), tuple(inputs), (1, 1))


def _require_lengths(lens: tuple[int, ...], tokens: StepTokens) -> None:
    if lens != tokens.model_lens:
        raise OperatorError(f"has sequences of other lengths than {list(tokens.model_lens)[:8]}")
