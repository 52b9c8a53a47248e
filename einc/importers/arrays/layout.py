"""Lays out a model text: declarations, statements, and blocks for what is repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc.importers.arrays.naming import NameTable
from einc.importers.arrays.repeats import Count, DeclaredWeight, Repeat, Statement, find_repeats
from einc.importers.writing import wrap_lines
from einc.ops.registry import is_callable


@dataclass(frozen=True, slots=True)
class TextParts:
    """What a text is made of. `outputs` are pairs of the name that is saved and the tensor's; `bases` say what names of
    tensors were to read like; `extents` are names for extents that are numbers, which become dims."""

    model: str
    params: Mapping[str, int]
    largest: Mapping[str, int | None]
    inputs: Sequence[tuple[str, str, str]]
    weights: Mapping[str, DeclaredWeight]
    statements: Sequence[Statement]
    outputs: Sequence[tuple[str, str]]
    bases: Mapping[str, str]
    extents: Mapping[int, str]


def write_text(parts: TextParts) -> str:
    """The model text of these parts."""
    names = NameTable()
    for fixed in (
        parts.model,
        *parts.params,
        *parts.extents.values(),
        *(name for name, _, _ in parts.inputs),
        *parts.weights,
    ):
        names.reserve(fixed)
    for saved, _ in parts.outputs:
        names.reserve(saved)
    repeats = find_repeats(parts.statements, parts.weights, {name for _, name in parts.outputs})
    body = _Body(parts, names)
    position = 0
    for repeat in repeats:
        body.add_statements(parts.statements[position : repeat.start])
        body.add_repeat(repeat)
        position = repeat.stop
    body.add_statements(parts.statements[position:])
    inside = {name for repeat in repeats for weight in repeat.weights for name in weight.names}
    inside -= _find_read_outside(parts, repeats)
    groups = [
        [f"dim {name} = {extent}" for extent, name in parts.extents.items()],
        [f"dim {name} = {default}{_limit(parts.largest.get(name))}" for name, default in parts.params.items()],
        [f"input {name} : {type_}{about}" for name, type_, about in parts.inputs],
        [_declare(weight) for name, weight in parts.weights.items() if name not in inside],
        *body.blocks,
        body.lines,
        [_write_output(saved, body.find(name)) for saved, name in parts.outputs],
    ]
    lines = [f"model {parts.model}"]
    for group in groups:
        lines += ["", *group] if group else []
    named = [_name_extents(line, parts.extents) for line in lines]
    return "\n".join(wrap_lines(named)) + "\n"


def _name_extents(line: str, extents: Mapping[int, str]) -> str:
    """A line in which dimensions of these extents have their names; what files call tensors stays."""
    before, stored, after = line.partition(" from ")
    for extent, name in extents.items():
        before = re.sub(rf"\bn{extent}(?=(_\d+)?\b)", name, before)
        if re.match(r"\s*(input|weight) ", before):
            head, bracket, dims = before.partition("[")
            dims, end, storage = dims.partition("]")
            before = head + bracket + re.sub(rf"\b{extent}\b", name, dims) + end + storage
    return before + stored + after


def _find_read_outside(parts: TextParts, repeats: Sequence[Repeat]) -> set[str]:
    """The names that statements outside of repeats, their calls, and outputs read."""
    covered = {position for repeat in repeats for position in range(repeat.start, repeat.stop)}
    names = {name for _, name in parts.outputs}
    for position, statement in enumerate(parts.statements):
        names.update(statement.operands if position not in covered else ())
    for repeat in repeats:
        names.update(repeat.outer, (initial for _, initial in repeat.carried))
    return names


def _limit(largest: int | None) -> str:
    return "" if largest is None else f"  # at most {largest}, as it was exported"


def _write_output(saved: str, name: str) -> str:
    return f"output {saved}" if saved == name else f"output {saved} = {name}"


def _declare(weight: DeclaredWeight, indent: str = "") -> str:
    stored = "" if weight.stored == weight.name else f' from "{weight.stored}"'
    return f"{indent}weight {weight.name} : {weight.type}{stored}"


class _Body:
    """The statements of the model, with names in order, and its blocks."""

    def __init__(self, parts: TextParts, names: NameTable) -> None:
        self.lines: list[str] = []
        self.blocks: list[list[str]] = []
        self._parts = parts
        self._names = names
        self._renamed: dict[str, str] = {}
        self._saved = {name: saved for saved, name in parts.outputs if parts.bases.get(name) == saved}

    def find(self, name: str) -> str:
        """The name in the text of a tensor of the program."""
        return self._renamed.get(name, name)

    def add_statements(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            for name in statement.names:
                self._renamed[name] = self._saved.get(name) or self._names.take(self._parts.bases.get(name, name))
            self.lines.append(_render(statement, self._renamed))

    def add_repeat(self, repeat: Repeat) -> None:
        """A block of the repeated statements, and the repeat that applies it."""
        title = _name_block(repeat)
        block = self._names.take(title)
        carried = [self._names.take("x" if k == 0 else f"carried_{k}") for k in range(len(repeat.carried))]
        counts = list(dict.fromkeys(weight.count for weight in repeat.weights))
        iteration = self._names.take("i")
        for name, (last, initial) in zip(carried, repeat.carried, strict=True):
            self.lines.append(f"{name} = {self.find(initial)}")
            self._renamed[last] = name
        arguments = [*carried, *(self.find(name) for name in repeat.outer), *(_count(c, iteration) for c in counts)]
        results = ", ".join(carried)
        call = f"{results} = {block}({', '.join(arguments)})"
        self.lines.append(f"repeat {repeat.count} as {iteration} {{ {call} }}")
        self.blocks.append(_write_block(self._parts, repeat, block, counts))


def _render(statement: Statement, renamed: Mapping[str, str]) -> str:
    targets = ", ".join(renamed.get(name, name) for name in statement.names) + statement.indices
    names = [renamed.get(name, name) for name in statement.operands]
    text = re.sub(r"\{(\d+)\}", lambda match: names[int(match[1])], statement.text)
    return f"{targets} = {text}"


def _count(count: Count, index: str) -> str:
    scaled = index if count.step == 1 else f"{count.step} * {index}"
    return scaled if count.start == 0 else f"{scaled} + {count.start}"


def _name_block(repeat: Repeat) -> str:
    """What the weights' names have before the number of the iteration, in the singular, unless an operator has it."""
    before = repeat.weights[0].stored.partition("{}")[0] if repeat.weights else ""
    word = ["", *re.findall("[A-Za-z]+", before)][-1].lower().removesuffix("s")
    return word if len(word) > 2 and not is_callable(word) else "layer"


def _write_block(parts: TextParts, repeat: Repeat, block: str, counts: Sequence[Count]) -> list[str]:
    """The block of the first iteration, with weights by the number of each."""
    names = NameTable()
    for fixed in (*parts.params, *parts.extents.values(), block):
        names.reserve(fixed)
    renamed: dict[str, str] = {}
    first = parts.statements[repeat.start : repeat.start + repeat.period]
    last = parts.statements[repeat.stop - repeat.period : repeat.stop]
    parameters = []
    for k, (_, initial) in enumerate(repeat.carried):
        renamed[initial] = names.take("x" if k == 0 else f"carried_{k}")
        parameters.append(renamed[initial])
    for name in repeat.outer:
        renamed[name] = names.take(parts.bases.get(name, name))
        parameters.append(renamed[name])
    numbers = {count: names.take("i") for count in counts}
    lines = []
    for weight in repeat.weights:
        local = names.take(weight.stored.partition("{}")[2].replace("{}", "") or weight.names[0])
        renamed[weight.names[0]] = local
        stored = weight.stored.replace("{}", f"{{{numbers[weight.count]}}}")
        lines.append(f'    weight {local} : {weight.type} from "{stored}"')
    lines += [""] if lines else []
    for statement in first:
        for name in statement.names:
            renamed[name] = names.take(parts.bases.get(name, name))
        lines.append(f"    {_render(statement, renamed)}")
    positions = {name: (j, part) for j, statement in enumerate(last) for part, name in enumerate(statement.names)}
    returned = [renamed[first[j].names[part]] for j, part in (positions[name] for name, _ in repeat.carried)]
    heading = f"block {block}({', '.join([*parameters, *numbers.values()])}) {{"
    return [heading, *lines, f"    return {', '.join(returned)}", "}"]
