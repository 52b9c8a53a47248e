"""From the AST to the graph: declarations, assignments, blocks and repeats, in the order of the text.

Blocks and repeats are unrolled: each application adds its own weights and operators. A statement that fails is reported
and its names are lost; reading a lost name is no error of its own, so that one mistake is reported once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einc.core.tensor import DType, TensorDesc
from einc.frontend import ast, constants, foreign, limits
from einc.frontend.assembly import Assembly
from einc.frontend.blocks import Blocks
from einc.frontend.equations import Equations
from einc.frontend.expressions import Application, Expressions, Several, Value
from einc.frontend.findings import Findings, Reported
from einc.frontend.names import Names
from einc.frontend.outputs import Outputs
from einc.frontend.parameters import DTYPES, Parameters
from einc.frontend.scope import Scope
from einc.frontend.walk import own_expressions, parts
from einc.graph.graph import Graph, TensorKind
from einc.ops import registry
from einc_runtime.text import counted, did_you_mean


class Lowering:
    """One model on its way to a graph; `name` is the graph's."""

    def __init__(
        self,
        model: ast.Model,
        name: str,
        parameters: Parameters,
        lost: frozenset[str],
        dtype: DType | None,
        findings: Findings,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._findings = findings
        later = {name.text: name.span.line for s in reversed(model.statements) for name in targets(s)}
        self._names = Names(parameters, lost, later, findings)
        self._assembly = Assembly(name, dtype, findings)
        self._expressions = Expressions(findings, self._names.look_up, self._apply)
        self._equations = Equations(self._expressions, self._assembly, parameters.dims, findings)
        self._blocks = Blocks(model, parameters, findings)
        self._active: list[str] = []  # the blocks that are being applied, the innermost last
        self._outputs = Outputs(self._names, findings)
        self._steps = 0
        self._exhausted = False
        self._sizes: dict[int, int] = {}  # each statement with the expressions in it, by identity

    def run(self) -> Graph:
        """The graph, as far as it could be made; the findings tell whether it is whole."""
        self._run(self._model.statements)
        self._outputs.collect(self._names.scope.outputs)
        self._outputs.save(self._assembly)
        return self._assembly.build()

    def _run(self, statements: Sequence[ast.Statement]) -> None:
        """Lowers the statements of a body; a return is left to whoever applies the block."""
        for statement in statements:
            try:
                self._count(statement)
                self._statement(statement)
            except Reported:
                for name in targets(statement):
                    self._names.lose(name)

    def _statement(self, statement: ast.Statement) -> None:
        scope = self._names.scope
        at_top = scope.outer is None and not scope.is_block
        match statement:
            case ast.Assign():
                self._assign(statement)
            case ast.Equation():
                name = self._names.scope.full_name(statement.target.text)
                self._assembly.start(name)
                self._names.define(statement.target, self._equations.tensor(statement, name))
            case ast.Repeat():
                self._repeat(statement)
            case ast.Return():
                if not scope.is_block:
                    raise self._findings.fail(
                        "'return' stands in blocks only", statement.span, "a model has `output y`"
                    )
                raise self._findings.fail("'return' must be the last statement of a block", statement.span)
            case ast.Input() | ast.Output() if scope.is_block:
                word, advice = "output", "return it from the block"
                if isinstance(statement, ast.Input):
                    word, advice = "input", "hand it to the block as an argument"
                raise self._findings.fail(f"'{word}' cannot stand in a block", statement.span, advice)
            case ast.Input():
                self._declare(statement, TensorKind.INPUT, None)
            case ast.Weight():
                self._declare(statement, TensorKind.WEIGHT, statement.stored)
            case ast.Output():
                scope.outputs += statement.names
                if statement.definition is not None:
                    self._statement(statement.definition)
            case _ if not at_top:
                word = type(statement).__name__.lower().replace("modelname", "model")
                raise self._findings.fail(f"'{word}' cannot stand in a block or repeat", statement.span)
            case _:
                pass  # params, dims, presets and blocks have been looked at before

    # -- declarations --

    def _desc(self, dtype: ast.Name, dims: Sequence[ast.Name]) -> TensorDesc:
        """A declared type; all of its mistakes are reported."""
        failed = False
        if dtype.text not in DTYPES:
            hint = did_you_mean(dtype.text, DTYPES) or f"the element types are {', '.join(DTYPES)}"
            self._findings.add(f"there is no element type '{dtype.text}'", dtype.span, hint)
            failed = True
        extents = []
        for dim in dims:
            if dim.text in self._parameters.dims:
                extents.append(self._parameters.dims[dim.text])
                continue
            failed = True
            self._report_dim(dim)
        if failed:
            raise Reported
        return TensorDesc(tuple(d.text for d in dims), tuple(extents), DType(self._assembly.element_type(dtype.text)))

    def _report_dim(self, dim: ast.Name) -> None:
        if dim.text in self._parameters.values:
            hint = f"declare it as `dim {dim.text} = ...`"
            self._findings.add(f"'{dim.text}' is a param, not a dim", dim.span, hint)
        elif not self._names.is_lost(dim.text):
            suggestion = did_you_mean(dim.text, self._parameters.dims)
            self._findings.add(f"there is no dim '{dim.text}'", dim.span, suggestion)

    def _declare(self, statement: ast.Input | ast.Weight, kind: TensorKind, literal: ast.Literal | None) -> None:
        desc = self._desc(statement.dtype, statement.dims)
        stored = None if literal is None else self._stored_name(literal)
        self._names.check_new(statement.name)
        name = self._names.scope.full_name(statement.name.text)
        self._names.define(statement.name, self._assembly.declare(kind, name, desc, stored, statement.span))

    def _stored_name(self, literal: ast.Literal) -> str:
        """The name in the weight file: `{i}` stands for the value of i."""

        def fill(match: re.Match[str]) -> str:
            word = match[1].strip()
            value = self._names.look_up(ast.Name(word, span=literal.span)) if word.isidentifier() else None
            if isinstance(value, bool) or not isinstance(value, int | str):
                message = f"expected the name of an integer or string in braces, found '{{{match[1]}}}'"
                raise self._findings.fail(message, literal.span)
            return str(value)

        filled = re.sub(r"\{([^{}]*)\}", fill, str(literal.value))
        if len(filled) > limits.FULL_NAME_CHARACTERS:
            message = f"this name has more than {limits.FULL_NAME_CHARACTERS:,} characters"
            raise self._findings.fail(message, literal.span)
        if not filled or not filled.isprintable():
            message = "the name of a stored tensor is not empty, and has printable characters only"
            raise self._findings.fail(message, literal.span)
        return filled

    # -- values --

    def _assign(self, statement: ast.Assign) -> None:
        wishes = tuple(self._names.scope.full_name(name.text) for name in statement.targets)
        self._assembly.start(wishes[0])
        result = self._expressions.results(statement.value, wishes)
        values = result.values if isinstance(result, Several) else (result,)
        if isinstance(result, Several) and result.first_alone and len(statement.targets) == 1:
            values = values[:1]
        if len(values) != len(statement.targets):
            message = f"expected {counted(len(statement.targets), 'value')}, found {len(values)}"
            raise self._findings.fail(message, statement.value.span)
        for name, value in zip(statement.targets, values, strict=True):
            self._names.define(name, value)

    def _apply(self, application: Application) -> Value | Several:
        """A call that is not arithmetic on lists and numbers: of a block, or of an operator."""
        name = application.function
        block = self._blocks.get(name)
        if block is not None:
            return self._apply_block(block, application)
        if registry.is_callable(name):
            return self._assembly.call(application)
        if name in constants.FUNCTIONS:
            raise self._findings.fail(f"'{name}' takes a list of numbers", application.syntax.span)
        if self._names.is_lost(name) or name in self._blocks.broken:
            raise Reported
        known = [*registry.names(), *self._blocks.names(), *constants.FUNCTIONS]
        hint = foreign.HINTS.get(name) or did_you_mean(name, known)
        raise self._findings.fail(f"there is no operator or block '{name}'", application.syntax.span, hint)

    # -- blocks and repeats --

    def _apply_block(self, block: ast.Block, application: Application) -> Value | Several:
        name = block.name.text
        if name in self._active:
            circle = " -> ".join([*self._active[self._active.index(name) :], name][-8:])
            raise self._findings.fail(f"block '{name}' applies itself: {circle}", application.syntax.span)
        arguments = self._blocks.bind(block, application)
        if not block.body or not isinstance(block.body[-1], ast.Return):
            raise self._findings.fail(
                f"block '{name}' does not end with 'return'", block.span, "end it with `return y`"
            )
        label = self._blocks.label(self._names.scope.full_name(name))
        scope = Scope(prefix=f"{label}.", is_block=True)
        statement = self._assembly.start(label)
        self._active.append(name)
        try:
            with self._names.inside(scope):
                for parameter, value in zip(block.parameters, arguments, strict=True):
                    self._names.define(parameter, value)
                self._run(block.body[:-1])
                self._count(block.body[-1])
                self._assembly.start(f"{label}.return")
                return self._returned(block.body[-1], application.wishes)
        finally:
            self._active.pop()
            self._assembly.resume(statement)

    def _returned(self, statement: ast.Return, wishes: tuple[str, ...]) -> Value | Several:
        if len(statement.values) == 1:
            return self._expressions.results(statement.values[0], wishes)
        names: Sequence[tuple[str, ...]] = [()] * len(statement.values)
        if len(wishes) == len(statement.values):
            names = [(wish,) for wish in wishes]
        return Several(
            tuple(self._expressions.value(value, name) for value, name in zip(statement.values, names, strict=True))
        )

    def _repeat(self, statement: ast.Repeat) -> None:
        count = self._expressions.number(statement.count, "how often to repeat")
        if count < 0:
            raise self._findings.fail(f"expected how often to repeat, found {count}", statement.count.span)
        outer = self._names.scope
        self._expressions.enter(statement.span)
        try:
            for number in range(count):
                before = len(self._findings)
                with self._names.inside(outer.iteration(number)):
                    if statement.variable is not None:
                        self._names.check_new(statement.variable)
                        self._names.define(statement.variable, number)
                    self._run(statement.body)
                    self._outputs.collect(self._names.scope.outputs)
                if len(self._findings) > before:
                    raise Reported  # the other iterations would say the same
                self._count(statement)
        finally:
            self._expressions.leave()

    def _count(self, statement: ast.Statement) -> None:
        """Bounds the work of unrolling."""
        if id(statement) not in self._sizes:
            self._sizes[id(statement)] = 1 + sum(1 for own in own_expressions(statement) for _ in parts(own))
        self._steps += self._sizes[id(statement)]
        if self._steps <= limits.STEPS:
            return
        if not self._exhausted:
            self._exhausted = True
            message = f"unrolling this model takes more than {limits.STEPS:,} steps, the most that are allowed"
            self._findings.add(message, statement.span, "blocks and repeats are unrolled; repeat fewer times")
        raise Reported


def targets(statement: ast.Statement) -> tuple[ast.Name, ...]:
    """The tensors and values that a statement defines where it stands."""
    match statement:
        case ast.Assign():
            return statement.targets
        case ast.Equation():
            return (statement.target,)
        case ast.Input() | ast.Weight():
            return (statement.name,)
        case ast.Output(definition=ast.Assign() | ast.Equation() as definition):
            return targets(definition)
        case ast.Repeat():
            return tuple(name for inner in statement.body for name in targets(inner))
        case _:
            return ()
