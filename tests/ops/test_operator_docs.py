"""The page on operators lists every call, and its model compiles."""

from __future__ import annotations

import re
from pathlib import Path

from einc.frontend import build
from einc.graph.fuse import fuse
from einc.graph.graph import verify_graph
from einc.ops import registry

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()


def test_every_call_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)\([^`]*\)`", PAGE.split("## Calls")[1].split("## Index equations")[0]))
    assert documented == set(registry.list_names())


def test_the_models_on_the_page_compile() -> None:
    models = re.findall(r"```ein\n(.*?)```", PAGE, re.S)
    assert len(models) == 2
    for model in reversed(models):
        graph = build(model, "page.ein")
        verify_graph(graph)
        verify_graph(fuse(graph))
    assert [output.shape for output in (t.desc for t in graph.tensors) if output.dims == ("heads", "d_head")] == [
        (2, 4),
        (2, 4),
    ]
