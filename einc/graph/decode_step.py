"""A decode step, derived from a model that reads whole sequences.

The step computes the model's results for a few new tokens. What the model makes of earlier tokens and reads again (keys
and values, the inputs of convolutions and running aggregates) becomes states, into which the new tokens are appended.
Everything else is computed for the new tokens alone. `einc.ops.steps` says for each operator how; so the step is right
by what the operators mean, and deriving it again gives the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import MAX_FINDINGS, Diagnostic, ModelError, OperatorError
from einc.graph.absorbed_products import absorb_products
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, verify_graph
from einc.graph.step_requests import StepRequest as StepRequest
from einc.graph.step_requests import find_step_tokens
from einc.ops import registry
from einc.ops.arguments import make_unique
from einc.ops.base import Attributes, Operator
from einc.ops.carry_steps import make_counter, make_keeper, make_last_position, make_picker, make_rows, make_start
from einc.ops.index_operator import find_lookup
from einc.ops.index_steps import numbers_tokens
from einc.ops.pair_steps import make_eraser
from einc.ops.step_forms import (
    Dependence,
    Pairs,
    Source,
    StepForm,
    StepInput,
    StepTokens,
    TokenForm,
    TokenWindow,
)
from einc.ops.steps import find_step_form, make_gatherer, make_row_reader
from einc.ops.window_steps import WindowPlaces, make_windows

POSITIONS_INPUT = "positions"
"""The input of a step that says where each new token stands in its own sequence."""
PLACES_INPUT = "cache_places"
"""That which says where a new token is written, in caches that lie in blocks: counted through all blocks."""
BLOCKS_INPUT = "cache_blocks"
"""That with the numbers of the blocks of each sequence."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """The graph of a step; its tokens; how each tensor of the model depends on them; and the names of the inputs that
    say where tokens are, by those that they have where no tensor of the model has these."""

    graph: Graph
    tokens: StepTokens
    forms: Mapping[str, TokenForm]
    inputs: Mapping[str, str]


def derive_step(graph: Graph, request: StepRequest) -> DecodeStep:
    """The step that computes `request.tokens` new tokens of each sequence, over states of all tokens before.

    The model has as many tokens along the dimension as the states have room for. The step has the model's inputs,
    weights and outputs, each with the new tokens alone; an input `positions` says where these stand. Lookups of rows by
    their numbers count from the first new token. Raises ModelError with every operator that needs later tokens, and
    UsageError for a request that does not fit the model.
    """
    tokens, graph = find_step_tokens(graph, request), absorb_products(graph)
    derivation = _Derivation(graph, tokens)
    findings = [finding for node in graph.nodes if (finding := derivation.add(node)) is not None]
    findings += derivation.find_loose_pairs(graph.outputs)
    if findings:
        raise ModelError(findings[:MAX_FINDINGS])
    derivation.declare_weights([tensor.name for tensor in graph.tensors])
    for name in graph.outputs:
        derivation.builder.save(name)
    step = derivation.builder.build()
    verify_graph(step)
    return DecodeStep(step, tokens, derivation.list_forms(), derivation.declared)


class _Derivation:
    """The step as far as it is built: the form of each tensor, and what was made beside the model's own tensors."""

    def __init__(self, graph: Graph, tokens: StepTokens) -> None:
        self.builder = GraphBuilder(f"{graph.name}_step")
        self._tokens = tokens
        self._taken = {tensor.name for tensor in graph.tensors}
        self._table = graph.tensor_table()
        self._forms: dict[str, TokenForm | None] = {}  # None: what it is computed from was refused
        self._extra: dict[tuple[Source, str, int], str] = {}
        self._carries: dict[tuple[str, int], str] = {}  # the states, by their nodes
        self._windows: dict[tuple[str, int, TokenWindow], str] = {}
        self._undeclared = {tensor.name: tensor for tensor in graph.tensors if tensor.kind is TensorKind.WEIGHT}
        self._forms.update(dict.fromkeys(self._undeclared, Dependence.NONE))
        self.declared: dict[str, str] = {}  # inputs that the model does not have
        for tensor in graph.tensors:
            if tensor.kind is TensorKind.INPUT:
                self._forms[tensor.name] = self._declare(tensor)

    def add(self, node: Node) -> Diagnostic | None:
        """Adds what a node is in the step. Returns why it cannot be in one, if that is so."""
        self.declare_weights(node.inputs)
        forms = [self._forms[name] for name in node.inputs]
        known = [form for form in forms if form is not None]
        self._forms.update(dict.fromkeys(node.outputs))
        if len(known) < len(forms):
            return None
        try:
            step = find_step_form(node.operator, known, self._tokens)
            self._require_numbers(node, known)
            inputs = [self._read(item, node, step) for item in step.inputs]
        except OperatorError as fault:
            return self._explain(node, fault)
        if step.carries or step.apart:
            self._compute_apart(node, step, inputs)
        else:
            self.builder.apply(step.operator, inputs, node.outputs, node.span)
        self._forms.update(zip(node.outputs, step.results, strict=True))
        return None

    def _compute_apart(self, node: Node, step: StepForm, inputs: Sequence[str]) -> None:
        """Adds an operator in which sequences are a dimension of their own, if there are several, and keeps what it
        carries."""
        several = bool(step.apart)
        divided = list(inputs)
        for k, axis in enumerate(step.apart):
            if axis is not None:
                desc = self._tokens.divide(self.builder.desc(inputs[k]), axis)
                divided[k] = self._reshape(inputs[k], desc, f"{inputs[k]}.apart")
        names = [self._name(f"{name}.apart") if several else name for name in node.outputs]
        names += [self._name(f"{node.name}.carried") for _ in step.carries]
        computed = self.builder.apply(step.operator, divided, names, node.span)
        for name, output, form in zip(computed, node.outputs, step.results, strict=False):
            if several:
                desc = self._tokens.shorten(self._table[output].desc, form)
                attributes: Attributes = {"dims": desc.dims, "shape": desc.shape}
                reshape = registry.restore("reshape", (self.builder.desc(name),), attributes)
                self.builder.apply(reshape, (name,), (output,), node.span)
        for number, (name, carry) in enumerate(zip(computed[len(node.outputs) :], step.carries, strict=True)):
            state, picker = self._carries[node.name, number], make_picker(self.builder.desc(name), carry, self._tokens)
            self._write_rows(state, self.builder.apply(picker, (name,), (self._name(f"{state}.last"),))[0])

    def _write_rows(self, state: str, new: str) -> None:
        """Writes a new row of each sequence over a state of carries."""
        keeper = make_keeper(self.builder.desc(state), self._tokens)
        rows = self._reshape(new, keeper.inputs[1], f"{new}.rows")
        operands = state, rows, self._keep(Source.COUNTED, "rows", 0, self._find_rows)
        self.builder.apply(keeper, operands, (self._name(f"{state}.after"),))

    def _find_rows(self, name: str, _: int) -> str:
        source = POSITIONS_INPUT if self._tokens.blocks is None else BLOCKS_INPUT
        rows = make_rows(self._tokens)
        return self.builder.apply(rows, (self._declare_extra(source),), (self._name(f"carry_{name}"),))[0]

    def _count(self, name: str, _: int) -> str:
        """Which new tokens count; the last position that does so is carried."""
        state = self.builder.state(self._name("last_position.carry"), self._tokens.carry(1, DType.I64))
        operands = (state, *self._list_places())
        counter, last = make_counter(self._tokens), make_last_position(self._tokens)
        (counted,) = self.builder.apply(counter, operands, (self._name(name),), reads_state=True)
        (position,) = self.builder.apply(last, operands, (self._name("last_position"),), reads_state=True)
        self._write_rows(state, position)
        return counted

    def _start(self, node: Node, step: StepForm, number: int) -> str:
        """What an operator carries up to the first new token."""
        carry, tokens = step.carries[number], self._tokens
        shape = [extent for axis, extent in enumerate(carry.desc.shape) if axis != carry.axis]
        state = self.builder.state(self._name(f"{node.name}.carry"), tokens.carry(math.prod(shape), carry.desc.dtype))
        self._carries[node.name, number] = state
        starts = [] if isinstance(carry.initial, str) else [node.inputs[carry.initial[0]]]
        start = make_start(carry, self.builder.desc(starts[0]) if starts else None, tokens)
        operands = (state, *self._list_places(), *starts)
        return self.builder.apply(start, operands, (self._name(f"{node.name}.start"),), reads_state=True)[0]

    def _list_places(self) -> list[str]:
        """The inputs that say where tokens are, and where each sequence has its row."""
        names = [POSITIONS_INPUT, *([BLOCKS_INPUT] if self._tokens.blocks is not None else [])]
        return [self._declare_extra(name) for name in names]

    def list_forms(self) -> dict[str, TokenForm]:
        """Of each tensor of the model that is in the step; pairs of tokens have rows of queries."""
        known = [(name, form) for name, form in self._forms.items() if form is not None]
        return {name: form.queries if isinstance(form, Pairs) else form for name, form in known}

    def find_loose_pairs(self, outputs: Sequence[str]) -> list[Diagnostic]:
        """An error for each output of which nobody knows what it has for later tokens."""
        message = "no step can be derived: '{}' is an output that says of each token what it has to do with later ones"
        forms = [(name, self._forms.get(name)) for name in outputs]
        loose = [name for name, form in forms if isinstance(form, Pairs) and not form.is_zero]
        return [Diagnostic(message.format(name), self._table[name].span) for name in loose]

    def _explain(self, node: Node, fault: OperatorError) -> Diagnostic:
        return Diagnostic(
            f"no step can be derived: '{node.name}' ({node.operator.title}) {fault.message}",
            node.span,
            f"along '{self._tokens.dimension}', a result may depend on its own and on earlier tokens alone",
        )

    def declare_weights(self, names: Sequence[str]) -> None:
        """Declares those of these tensors that are weights and were not declared: beside the operators that read them,
        so that equal layers have equal sections of the tensors (`einc.physical.few_layers`).

        Weights have no tokens of their own: their rows are those of positions.
        """
        for name in names:
            tensor = self._undeclared.pop(name, None)
            if tensor is not None:
                self.builder.declare(tensor)

    def _declare(self, tensor: GraphTensor) -> TokenForm:
        """Declares an input."""
        dimension = self._tokens.dimension
        axes = [axis for axis, dim in enumerate(tensor.desc.dims) if dim == dimension]
        if len(axes) > 1:
            finding = f"no step can be derived: the input '{tensor.name}' has the dimension '{dimension}' twice"
            raise ModelError([Diagnostic(finding, tensor.span, "compute what it says of pairs of tokens in the model")])
        form: TokenForm = axes[0] if axes else Dependence.NONE
        self.builder.input(tensor.name, self._tokens.shorten(tensor.desc, form), tensor.span)
        return form

    def _require_numbers(self, node: Node, forms: Sequence[TokenForm]) -> None:
        """Raises OperatorError for a lookup of tokens whose numbers are not an input, which then counts new ones."""
        lookup = find_lookup(node.operator)
        if lookup is None or not numbers_tokens(node.operator, forms):
            return
        if self._table[node.inputs[lookup.ids]].kind is not TensorKind.INPUT:
            raise OperatorError("looks up tokens by numbers that are not an input")

    def _read(self, item: StepInput, node: Node, step: StepForm) -> str:
        """The name of what an operator of the step reads."""
        if item.source is Source.CARRIED:
            return self._start(node, step, item.number)
        if item.source is Source.COUNTED:
            return self._keep(Source.COUNTED, "counted", 0, self._count)
        if item.source in (Source.POSITIONS, Source.BLOCKS):
            return self._declare_extra(POSITIONS_INPUT if item.source is Source.POSITIONS else BLOCKS_INPUT)
        name = node.inputs[item.number]
        if item.source is Source.SAME:
            return name
        if item.window is not None:
            key = name, item.axis, item.window
            if key not in self._windows:
                self._windows[key] = self._make_windows(*key)
            return self._windows[key]
        make = {
            Source.CACHE: self._cache,
            Source.APART: self._cache_apart,
            Source.SEEN: self._erase,
            Source.STATE: self._unpack,
            Source.POOL: self._append,
            Source.ROWS: self._read_rows,
        }
        return self._keep(item.source, name, item.axis, make[item.source])

    def _make_windows(self, name: str, axis: int, window: TokenWindow) -> str:
        """The windows of the new tokens, whose last rows take the places of the oldest in a state."""
        tokens, desc = self._tokens, self._table[name].desc
        state_desc, places = tokens.keep_windows(desc, axis, window), WindowPlaces(tokens, window.before)

        before, (positions, *table) = window.before, self._list_places()
        counted = self._keep(Source.COUNTED, "counted", 0, self._count)

        def find(role: str, make: Callable[[], Operator], *inputs: str) -> str:
            def apply(*_: object) -> str:
                return self.builder.apply(make(), inputs, (self._name(f"window_{role}"),))[0]

            return self._keep(Source.WINDOW, role, before, apply)

        is_new = find("new", places.find_new, positions)
        kept = find("kept", places.find_kept, positions, *table)
        rows = find("rows", places.find_replaced, positions, counted, *table)
        state = self.builder.state(self._name(f"{name}.window"), state_desc)
        maker = make_windows(tokens.shorten(desc, axis), axis, window, state_desc, tokens)
        operands = name, state, is_new, kept
        (divided,) = self.builder.apply(maker, operands, (self._name(f"{name}.windows"),), reads_state=True)
        recent = tokens.sequences * min(tokens.new, before)
        shapes = [(state_desc.shape[0], count, state_desc.shape[2]) for count in (tokens.new_extent, recent)]
        new = self._reshape(name, replace(state_desc, shape=shapes[0]), f"{name}.new")
        if recent < tokens.new_extent:
            (new,) = self.builder.apply(
                places.take_recent(self.builder.desc(new)), (new,), (self._name(f"{name}.recent"),)
            )
            new = self._reshape(new, replace(state_desc, shape=shapes[1]), f"{name}.recent")
        rows = self._reshape(rows, replace(tokens.positions, shape=(recent,)), "window_rows")
        lens = {"cache_lens": (state_desc.shape[1],), "new_lens": (recent,)}
        append = registry.restore("append", (state_desc, self.builder.desc(new), self.builder.desc(rows)), lens)
        self.builder.apply(append, (state, new, rows), (self._name(f"{name}.after"),))
        return self._reshape(divided, tokens.divide_windows(desc, axis, window), f"{name}.windows")

    def _declare_extra(self, name: str) -> str:
        """The input that says where tokens are, declared where it is needed first."""
        if name not in self.declared:
            desc = self._tokens.table if name == BLOCKS_INPUT else self._tokens.positions
            self.declared[name] = self.builder.input(self._name(name, "_"), desc)
        return self.declared[name]

    def _read_rows(self, name: str, axis: int) -> str:
        desc = self._table[name].desc
        reader = make_row_reader(desc, axis, self._tokens)
        operands = name, self._declare_extra(POSITIONS_INPUT)
        return self.builder.apply(reader, operands, (self._name(f"{name}.rows"),))[0]

    def _cache(self, name: str, axis: int) -> str:
        """All tokens of a tensor so far, with the tensor's dimensions."""
        desc = self._tokens.keep(self._table[name].desc, axis)
        return self._reshape(self._keep(Source.STATE, name, axis, self._unpack), desc, f"{name}.all")

    def _cache_apart(self, name: str, axis: int) -> str:
        """The same, with the sequences as a dimension."""
        cache = self._cache(name, axis)
        return self._reshape(cache, self._tokens.divide(self.builder.desc(cache), axis), f"{name}.apart")

    def _erase(self, name: str, axis: int) -> str:
        """All tokens of a tensor so far, and zeros in place of what earlier sequences left behind them."""
        several = self._tokens.sequences > 1
        cache = (self._cache_apart if several else self._cache)(name, axis)
        axis += several
        eraser = make_eraser(self.builder.desc(cache), axis, self._tokens)
        operands = cache, self._declare_extra(POSITIONS_INPUT)
        return self.builder.apply(eraser, operands, (self._name(f"{name}.seen"),))[0]

    def _keep(self, source: Source, name: str, axis: int, make: Callable[[str, int], str]) -> str:
        """What is made of a tensor once, however often it is read."""
        key = (source, name, axis)
        if key not in self._extra:
            self._extra[key] = make(name, axis)
        return self._extra[key]

    def _unpack(self, name: str, axis: int) -> str:
        """All tokens of a tensor so far, one sequence after another, with one dimension before and one behind."""
        pool = self._keep(Source.POOL, name, axis, self._append)
        blocks, desc = self._tokens.blocks, self._tokens.flatten(self._table[name].desc, axis)
        if blocks is None:
            return pool
        dims = make_unique((desc.dims[0], "blocks", *desc.dims[1:]))
        divided = TensorDesc(dims, (desc.shape[0], blocks.count, blocks.size, desc.shape[2]), desc.dtype)
        operands = self._reshape(pool, divided, f"{name}.blocks"), self._declare_extra(BLOCKS_INPUT)
        (gathered,) = self.builder.apply(
            make_gatherer(divided, self._tokens), operands, (self._name(f"{name}.gathered"),)
        )
        return self._reshape(gathered, desc, f"{name}.unpacked")

    def _append(self, name: str, axis: int) -> str:
        """All tokens of a tensor so far, as a state has them."""
        tokens, desc = self._tokens, self._table[name].desc
        state = tokens.flatten(desc, axis)
        rows = tokens.shorten(desc if state.shape == tokens.keep(desc, axis).shape else state, 1)
        state = tokens.pool(state)
        lens, new_lens, places = tokens.lens, tokens.new_lens, POSITIONS_INPUT
        if tokens.blocks is not None:  # each new token may be anywhere
            lens, new_lens, places = (state.shape[1],), (tokens.new_extent,), PLACES_INPUT
        new = self._reshape(name, rows, f"{name}.new")
        cache = self.builder.state(self._name(f"{name}.cache"), state)
        append = registry.restore(
            "append",
            (state, rows, tokens.positions),
            {"cache_lens": lens, "new_lens": new_lens},
        )
        operands = cache, new, self._declare_extra(places)
        return self.builder.apply(append, operands, (self._name(f"{name}.so_far"),))[0]

    def _reshape(self, name: str, desc: TensorDesc, preferred: str) -> str:
        """The tensor with these dimensions; itself, if it has as many and as large ones."""
        if self.builder.desc(name).shape == desc.shape:
            return name
        operator = registry.restore("reshape", (self.builder.desc(name),), {"dims": desc.dims, "shape": desc.shape})
        return self.builder.apply(operator, (name,), (self._name(preferred),))[0]

    def _name(self, preferred: str, separator: str = ".") -> str:
        """The preferred name, or with a number where a tensor of the model or of the step has it."""
        name, number = preferred, 1
        while name in self._taken:
            number += 1
            name = f"{preferred}{separator}{number}"
        self._taken.add(name)
        return name
