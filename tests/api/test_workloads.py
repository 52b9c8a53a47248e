"""The paper's Experiment 1 in the Python API: the same graphs and plans as those of the model texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import einc as es
from einc.compiler import Compiled, compile_model
from einc.graph.graph import dump_graph
from einc.options import CompileOptions
from einc_runtime.plan.schema import Bundle
from tests.support import api_workloads

MODELS = Path(__file__).parents[2] / "models"

LENGTHS = {"b1x1k": [1024], "b1x8k": [8192], "b1x128k": [131072], "b8x1k": [1024] * 8, "b128x1k": [1024] * 128}
BLOCKS: list[tuple[str, dict[str, Any], Callable[[], es.Graph]]] = [
    ("llama_block", {"preset": preset}, lambda lengths=lengths: api_workloads.llama_block(lengths))  # type: ignore[misc]
    for preset, lengths in LENGTHS.items()
]
CHAINS: list[tuple[str, dict[str, Any], Callable[[], es.Graph]]] = [
    (f"chain_{letter}", {}, getattr(api_workloads, f"chain_{letter}")) for letter in "abcde"
]


def compile_text(name: str, **options: Any) -> Compiled:
    file = f"{name}.ein"
    return compile_model((MODELS / file).read_text(encoding="utf-8"), file, CompileOptions(**options))


def without_places(bundle: Bundle) -> Bundle:
    """The plan without the lines of the text that operators are from."""
    operations = tuple(msgspec.structs.replace(operation, source=None) for operation in bundle.operations)
    return msgspec.structs.replace(bundle, operations=operations)


@pytest.mark.parametrize(("name", "options", "make"), BLOCKS + CHAINS)
def test_the_graph_is_that_of_the_text(name: str, options: dict[str, Any], make: Callable[[], es.Graph]) -> None:
    compiled = Compiled(make()._build(), CompileOptions(machine="dgx-a100"))
    assert dump_graph(compiled.graph) == dump_graph(compile_text(name, machine="dgx-a100", **options).graph)


@pytest.mark.parametrize(("name", "options", "make"), [BLOCKS[0], CHAINS[2]])
def test_the_plan_is_that_of_the_text(name: str, options: dict[str, Any], make: Callable[[], es.Graph]) -> None:
    plan = es.compileGraph(make(), machine="dgx-a100", schedule_mode="naive", selector="eindecomp")
    text = compile_text(name, machine="dgx-a100", schedule="naive", selector="eindecomp", **options)
    assert without_places(plan.bundle) == without_places(text.bundle)
