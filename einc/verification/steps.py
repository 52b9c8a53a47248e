"""Tries a derived decode step: with random numbers, its steps must compute what the model computes of all tokens.

That a step is right follows from how it is derived; this shows it once more, by the meaning of operators on arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from einc.core.tensor import Array
from einc.graph.decode_step import BLOCKS_INPUT, PLACES_INPUT, POSITIONS_INPUT, DecodeStep
from einc.graph.graph import Graph, GraphTensor, TensorKind, updates_state
from einc.ops.index_operator import find_lookup
from einc.ops.index_steps import numbers_tokens
from einc.ops.step_forms import Dependence
from einc_runtime.errors import PlanFault

if TYPE_CHECKING:
    import numpy as np

MAX_TRIED_WORK = 300_000_000
"""Operations and bytes of a model and its steps, above which they are not tried."""
MAX_TRIED_OPERATORS = 20_000
"""Operators that are computed one after the other, above which they are not tried."""
TRIED_TOLERANCE = 1e-9
"""How far results in f64 may differ, relative to the largest one: sums have another order."""
_DRAWN_IDS = 8
"""Integer inputs are below it, as ids of the smallest tables are."""


def _list_positions(step: DecodeStep) -> list[list[Array]]:
    """For each step, the positions of the new tokens in each sequence of the model. Where there are fewer than a step
    takes, the first of them is computed several times."""
    import numpy as np

    new, lens = step.tokens.new, step.tokens.model_lens

    def list_of(k: int, length: int) -> Array:
        first, last = min(k * new, length - 1), min((k + 1) * new, length)
        return np.maximum(np.arange(last - new, last), first)

    return [[list_of(k, length) for length in lens] for k in range(_count_steps(step))]


def _count_steps(step: DecodeStep) -> int:
    """How many steps compute all tokens of the longest sequence."""
    return -(-max(step.tokens.lens) // step.tokens.new)


def can_be_tried(model: Graph, step: DecodeStep) -> bool:
    """Whether the model and all its steps are small enough to be computed in a few seconds."""
    steps = _count_steps(step)
    if len(model.nodes) + steps * len(step.graph.nodes) > MAX_TRIED_OPERATORS:
        return False
    return _count_work(model) + steps * _count_work(step.graph) <= MAX_TRIED_WORK


def try_steps(model: Graph, step: DecodeStep) -> int:
    """Computes the model of random tokens, and its steps. Returns how many there were.

    Types are those of the graphs, f64 for `TRIED_TOLERANCE` to be enough. Raises PlanFault at a result that differs.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    loaded = {
        tensor.name: _draw(tensor, model, rng)
        for tensor in model.tensors
        if (tensor.kind in (TensorKind.INPUT, TensorKind.WEIGHT))
    }
    numbers = _find_numbers(model, step)
    chosen = {name: np.asarray(rng.integers(0, step.tokens.new_extent, loaded[name].shape)) for name in sorted(numbers)}
    return compare_steps(model, step, loaded, chosen)


def compare_steps(model: Graph, step: DecodeStep, loaded: Mapping[str, Array], chosen: Mapping[str, Array]) -> int:
    """Computes the model of these inputs and weights, and its steps; `chosen` are inputs that number new tokens of the
    last step. Where the step has several sequences, each has the tokens in another order. Blocks must be enough for all
    sequences at their full length. Returns how many steps there were, and raises PlanFault at a result that differs."""
    import numpy as np

    places, tokens = _list_positions(step), step.tokens
    firsts = [0, *itertools.accumulate(tokens.model_lens)][:-1]
    rows = [np.concatenate([first + at for first, at in zip(firsts, positions, strict=True)]) for positions in places]
    axes = {name: form for name, form in step.forms.items() if isinstance(form, int)}
    texts = [
        {name: np.roll(array, number, axes[name]) if name in axes else array for name, array in loaded.items()}
        for number in range(tokens.sequences)
    ]
    numbers = {name: rows[-1][array % len(rows[-1])] for name, array in chosen.items()}
    expected = [_compute(model, {**text, **numbers}) for text in texts]
    held: dict[str, Array] = {}
    for number, (positions, new_rows) in enumerate(zip(places, rows, strict=True)):

        def pick(arrays: Sequence[Mapping[str, Array]], name: str, new_rows: Array = new_rows) -> Array:
            return np.concatenate([np.take(each[name], new_rows, axes[name]) for each in arrays], axes[name])

        inputs = {name: pick(texts, name) if name in axes else array for name, array in loaded.items()}
        inputs |= _list_places(step, np.tile(np.concatenate(positions), tokens.sequences))
        is_last = number == len(places) - 1
        for sequence in range(tokens.sequences if is_last else 1):  # of which the chosen tokens are
            counted = {name: array % len(new_rows) + sequence * len(new_rows) for name, array in chosen.items()}
            results = _compute(step.graph, {**inputs, **counted}, dict(held) if is_last else held)
            for name in model.outputs:
                if name in axes:
                    _require_near(name, results[name], pick(expected, name), number)
                elif step.forms[name] is Dependence.NONE or is_last:
                    _require_near(name, results[name], expected[sequence][name], number)
    return len(places)


def _list_places(step: DecodeStep, positions: Array) -> dict[str, Array]:
    """The inputs of a step that say where its tokens are. Blocks are those of sequences in no order."""
    import numpy as np

    tokens, values = step.tokens, {POSITIONS_INPUT: positions}
    if tokens.blocks is not None:
        numbers = np.random.default_rng(1).permutation(tokens.blocks.count)
        table = numbers[: math.prod(tokens.table.shape)].reshape(tokens.table.shape)
        sequences, size = np.arange(len(positions)) // tokens.new, tokens.blocks.size
        places = table[sequences, positions // size] * size + positions % size
        values |= {BLOCKS_INPUT: table, PLACES_INPUT: places}
    return {name: values[meaning] for meaning, name in step.inputs.items()}


def _find_numbers(model: Graph, step: DecodeStep) -> set[str]:
    """The inputs whose elements are numbers of tokens."""
    return {
        node.inputs[lookup.ids]
        for node in model.nodes
        if (lookup := find_lookup(node.operator)) is not None
        and numbers_tokens(node.operator, [step.forms[name] for name in node.inputs])
    }


def _draw(tensor: GraphTensor, model: Graph, rng: np.random.Generator) -> Array:
    """Numbers of about 1; weights are divided by the root of what is summed; ids are within the tables."""
    import numpy as np

    desc, readers = tensor.desc, model.consumers()[tensor.name]
    if desc.dtype.value == "bool":
        return rng.integers(0, 2, desc.shape).astype(np.bool_)
    if not desc.dtype.is_float:
        lookups = [(node.operator, find_lookup(node.operator), k) for node, k in readers]
        tables = [op.inputs[x.table].shape[x.dim] for op, x, k in lookups if x is not None and k == x.ids]
        return rng.integers(0, min(tables, default=_DRAWN_IDS), desc.shape).astype(desc.dtype.numpy())
    fan_in = max((node.operator.fan_in(k) for node, k in readers), default=1)
    scale = 1 / np.sqrt(fan_in) if tensor.kind is TensorKind.WEIGHT else 1.0
    return (rng.standard_normal(desc.shape) * scale).astype(desc.dtype.numpy())


def _compute(graph: Graph, loaded: Mapping[str, Array], held: dict[str, Array] | None = None) -> dict[str, Array]:
    """All tensors of a graph; `held` has its states, and gets what they are afterwards."""
    import numpy as np

    states = {tensor.name: tensor for tensor in graph.tensors if tensor.kind is TensorKind.STATE}
    kept = {} if held is None else held
    for name, tensor in states.items():
        kept.setdefault(name, np.zeros(tensor.desc.shape, tensor.desc.dtype.numpy()))
    values = {**loaded, **kept}
    for node in graph.nodes:
        results = node.operator.reference(*(values[name] for name in node.inputs))
        values.update(zip(node.outputs, results, strict=True))
        kept.update({node.inputs[0]: results[0]} if updates_state(node.operator) else {})
    return values


def _require_near(name: str, computed: Array, expected: Array, number: int) -> None:
    import numpy as np

    scale = np.abs(expected, where=np.isfinite(expected), out=np.zeros(expected.shape)).max(initial=1.0)
    if not np.allclose(computed, expected, rtol=0, atol=TRIED_TOLERANCE * scale, equal_nan=True):
        raise PlanFault(f"step {number} does not compute the rows of the model's '{name}'")


def _count_work(graph: Graph) -> int:
    return sum(_list_work(graph))


def _list_work(graph: Graph) -> Iterator[int]:
    """The bytes of each tensor, and the operations and bytes of each operator."""
    for tensor in graph.tensors:
        yield tensor.desc.type.size * tensor.desc.dtype.itemsize
    for node in graph.nodes:
        operator = node.operator
        (function,) = operator.build_spec(tuple(((0, index.extent),) for index in operator.indices)).functions
        yield operator.flops(function) + operator.traffic(function)
