"""The saved outputs: what each `output` stands for at the end of the text, under the name that it is saved by."""

from __future__ import annotations

from collections.abc import Sequence

from einc.frontend import ast, constants
from einc.frontend.assembly import Assembly
from einc.frontend.expressions import Tensor
from einc.frontend.findings import Findings, Reported
from einc.frontend.names import Names


def save_outputs(outputs: Sequence[ast.Name], names: Names, assembly: Assembly, findings: Findings) -> None:
    """Saves every output under its name; what cannot be saved is reported."""
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
    for name, tensor in saved:
        if not assembly.save(tensor, name.text, name.span):
            findings.add(
                f"'{name.text}' names an input or weight, so that no output can have this name",
                name.span,
                f"save it under another name: `output y = {name.text}`",
            )
