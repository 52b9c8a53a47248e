"""The blocks of a model: their names, their arguments, and what each application is called."""

from __future__ import annotations

from einc.errors import SourceSpan
from einc.frontend import ast, constants
from einc.frontend.expressions import Application, Value
from einc.frontend.findings import Findings, Reported
from einc.frontend.parameters import Parameters, check_new_name
from einc.ops import registry
from einc_runtime.text import counted, did_you_mean


class Blocks:
    """The blocks that a model declares, in any order."""

    def __init__(self, model: ast.Model, parameters: Parameters, findings: Findings) -> None:
        self._parameters = parameters
        self._findings = findings
        self._blocks: dict[str, ast.Block] = {}
        self._labels: set[str] = set()
        self.broken: set[str] = set()  # declared, but in error
        for statement in model.statements:
            if isinstance(statement, ast.Block):
                self._declare(statement)

    def get(self, name: str) -> ast.Block | None:
        return self._blocks.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(self._blocks)

    def bind(self, block: ast.Block, application: Application) -> list[Value]:
        """The arguments of a block in the order of its parameters."""
        names = [parameter.text for parameter in block.parameters]
        given: dict[str, Value] = dict(zip(names, application.arguments, strict=False))
        if len(application.arguments) > len(names):
            message = f"block '{application.function}' takes {counted(len(names), 'argument')}"
            raise self._findings.fail(f"{message}, found {len(application.arguments)}", application.span_of(len(names)))
        for name, value in application.keywords.items():
            if name not in names:
                hint = did_you_mean(name, names)
                message = f"block '{application.function}' has no parameter '{name}'"
                raise self._findings.fail(message, application.span_of(name), hint)
            if name in given:
                raise self._findings.fail(f"parameter '{name}' is given twice", application.span_of(name))
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            message = f"block '{application.function}' needs an argument for '{missing[0]}'"
            raise self._findings.fail(message, application.syntax.span)
        return [given[name] for name in names]

    def label(self, wish: str) -> str:
        """A name for one application of a block that no other one has."""
        label, number = wish, 1
        while label in self._labels:
            number += 1
            label = f"{wish}_{number}"
        self._labels.add(label)
        return label

    def _declare(self, block: ast.Block) -> None:
        """Notes a block; its name and those of its parameters must be new."""
        try:
            check_new_name(block.name, self._parameters.spans, self._findings)
            check_new_name(block.name, {n: b.name.span for n, b in self._blocks.items()}, self._findings)
            if registry.is_callable(block.name.text) or block.name.text in constants.FUNCTIONS:
                raise self._findings.fail(f"'{block.name.text}' is an operator of the library", block.name.span)
            parameters: dict[str, SourceSpan] = {}
            for parameter in block.parameters:
                check_new_name(parameter, {**self._parameters.spans, **parameters}, self._findings)
                parameters[parameter.text] = parameter.span
        except Reported:
            self.broken.add(block.name.text)
            return
        self._blocks[block.name.text] = block
