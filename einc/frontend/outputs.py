"""The saved outputs: what each `output` stands for at the end of the text, under the name that it is saved by."""

from __future__ import annotations

from collections.abc import Sequence

from einc.frontend import ast, constants
from einc.frontend.assembly import Assembly
from einc.frontend.expressions import Tensor
from einc.frontend.findings import Findings, Reported
from einc.frontend.names import Names


def save_outputs(outputs: Sequence[ast.Name], names: Names, assembly: Assembly, findings: Findings) -> None:
    """Saves every output under its name.

    A computed tensor that goes by another name gets this one. An input or weight, and a tensor that is saved already,
    is copied: outputs are computed tensors, and each has one name.
    """
    saved: list[tuple[ast.Name, Tensor]] = []
    for name in outputs:
        try:
            if name.text in (other.text for other, _ in saved):
                raise findings.fail(f"'{name.text}' is saved already", name.span)
            value = names.look_up(name)
            if not isinstance(value, Tensor):
                raise findings.fail(f"expected a tensor, found {constants.described(value)}", name.span)
            saved.append((name, value))
        except Reported:
            continue
    if findings:
        return
    moved: dict[str, str] = {}  # what has been renamed: the name before, the name now
    claimed: set[str] = set()
    for name, tensor in saved:
        try:
            now = moved.get(tensor.name, tensor.name)
            if assembly.is_declared(tensor.name) or tensor.name in claimed:
                now = assembly.copy(Tensor(now, tensor.desc), f"{name.text}.copy", name.span).name
            else:
                claimed.add(tensor.name)
            _rename(now, tensor.name, name, assembly, moved, findings)
            assembly.save(name.text)
        except Reported:
            continue


def _rename(
    now: str, before: str, name: ast.Name, assembly: Assembly, moved: dict[str, str], findings: Findings
) -> None:
    """Gives a tensor the name of its output; a computed tensor that has it takes the other name in turn."""
    if now == name.text:
        return
    if not assembly.rename(now, name.text):
        raise findings.fail(
            f"'{name.text}' names an input or weight, so that no output can have this name",
            name.span,
            f"save it under another name: `output y = {name.text}`",
        )
    holder = next((old for old, new in moved.items() if new == name.text), name.text)
    moved[holder] = now
    moved[before] = name.text
