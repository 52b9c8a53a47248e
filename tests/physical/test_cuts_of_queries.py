"""One sequence on five to eight sites, planned by hand: all by tokens, attention by heads, queries or keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from einc.compiler import Compiled, compile_model
from einc.logical.candidates import build_candidates
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import TransferTask
from tests.support.compiled_plans import MODELS

EVEN, BALANCED = 0, 1


@cache
def stages_of(machine: str, sites: int, heads: int, tokens: int) -> Compiled:
    """A block over one sequence, with all operators cut by tokens."""
    options = CompileOptions(
        machine=machine,
        devices=sites,
        definitions=(("seq_lens", f"[{tokens}]"), ("heads_kv", str(heads))),
        pins=(parse_pin(f"*=tokens/{sites}"),),
    )
    return compile_model((MODELS / "llama_block.ein").read_text(), "block.ein", options)


def planned(machine: str, sites: int, heads: int, way: int, tokens: int = 131072, **cut: int) -> DeviceProgram:
    """The block with this cut of attention; `way` is that of queries that are cut."""
    stages = stages_of(machine, sites, heads, tokens)
    plan = stages.plan
    choices = list(plan.choices)
    at = next(n for n, node in enumerate(plan.graph.nodes) if node.operator.family == "attention")
    operator = plan.graph.nodes[at].operator
    candidates = build_candidates(operator, tuple(cut.get(index.name, 1) for index in operator.indices))
    choices[at] = replace(choices[at], candidate=candidates[way])
    return build(replace(plan, choices=tuple(choices)), stages.target.machine)


def moved(program: DeviceProgram) -> Mapping[str, int]:
    """The bytes that cross links, by the tensor that they are of."""
    counts: Counter[str] = Counter()
    for task in program.tasks:
        if isinstance(task, TransferTask):
            tensor = program.tensors[program.buffers[task.read.buffer].tensor].name
            counts[tensor] += region_bytes(program, task.read)
    return counts


CUTS = {
    ("dgx-a100", 5): {"queries": 5},
    ("dgx-a100", 6): {"heads_kv": 2, "queries": 3},
    ("dgx-a100", 7): {"queries": 7},
    ("dgx-h100", 7): {"queries": 7},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("machine", "sites"),
    [pytest.param(*cut, marks=[] if cut[0] == "dgx-a100" else [pytest.mark.slow]) for cut in CUTS],
)
def test_eight_heads_of_keys_take_their_share_of_time_on_any_number_of_sites(machine: str, sites: int) -> None:
    share = planned(machine, 8, 8, EVEN, heads_kv=8).predicted_ms * 8 / sites
    even, balanced = (planned(machine, sites, 8, way, **CUTS[machine, sites]).predicted_ms for way in (EVEN, BALANCED))
    assert balanced < 1.05 * share
    assert balanced < 0.99 * planned(machine, sites, 8, EVEN, keys=sites).predicted_ms
    assert min(even, planned(machine, sites, 8, EVEN, heads_kv=sites).predicted_ms) > 1.15 * share


def test_one_head_of_keys_is_gathered_and_not_the_queries() -> None:
    """Parts of results for every query would have to be moved where keys are cut: 14 GiB."""
    by_keys = planned("dgx-a100", 8, 1, EVEN, keys=8)
    even, balanced = (planned("dgx-a100", 8, 1, way, queries=8) for way in (EVEN, BALANCED))
    assert sum(moved(by_keys).values()) == pytest.approx(14.135 * 2**30, rel=1e-3)
    tokens = 131072 * 128 * 2
    assert moved(even) == {"rk": tokens * 28 // 8, "v": tokens * 28 // 8}
    gathered = {name: size for name, size in moved(balanced).items() if name in ("rk", "v")}
    assert sum(gathered.values()) < 0.44 * 2**30
    assert sum(moved(balanced).values()) == pytest.approx(1.133 * 2**30, rel=1e-3)
    assert balanced.predicted_ms < 0.96 * by_keys.predicted_ms < 0.7 * even.predicted_ms


def test_a_short_sequence_is_fastest_where_queries_are_cut_as_their_neighbours() -> None:
    """1K tokens: what exchanges of queries and results would take is more than the pairs that some sites have less."""
    even, balanced = (planned("dgx-h100", 8, 8, way, tokens=1024, queries=8) for way in (EVEN, BALANCED))
    by_heads = planned("dgx-h100", 8, 8, EVEN, tokens=1024, heads_kv=8)
    assert set(moved(even)) == {"rk", "v"}
    assert max(even.predicted_ms, by_heads.predicted_ms) < balanced.predicted_ms
    assert even.predicted_ms < 1.01 * by_heads.predicted_ms
