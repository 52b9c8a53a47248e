"""The pages of docs/truth say what the committed data says, and what they call targets is met or named as missed."""

from __future__ import annotations

from types import ModuleType

import pytest

from einc.machines.catalogue import require_by_name
from einc.machines.load import build_gpu_site, load_machine
from tests.truth import exchanges, overview, paper, steps
from tests.truth.cases import DECODE, Step
from tests.truth.fitting import read_parameters
from tests.truth.planning import MACHINE_OF, plan_step
from tests.truth.ratios import is_within, spread
from tests.truth.reasons import explain
from tests.truth.replaying import replay


@pytest.mark.parametrize("module", [exchanges, steps, paper, overview])
def test_a_page_has_the_tables_of_its_data(module: ModuleType) -> None:
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.fill_page(page) == page


def test_collectives_are_within_the_stated_ratios_or_have_a_reason() -> None:
    replayed, _ = exchanges.read_data()
    for system in exchanges.SYSTEMS:
        assert is_within(spread(r.ratio for r in replayed if r.table.startswith(f"{system} nccl")).middle, 1.15)
    assert [r.row.title for r in exchanges.list_far(replayed) if not explain(r.table, r.row)] == []


def test_committed_replays_are_those_of_the_committed_parameters() -> None:
    model = read_parameters()[0]["a100_sxm"]
    for each in exchanges.read_data()[0][7:200:40]:
        found = replay(model, each.row.collective, each.row.size, each.row.gpus)
        assert found == pytest.approx(each.us, abs=0.01)


def test_a_committed_step_is_what_is_planned() -> None:
    step = Step("llama-3.1-8b", "h100_sxm", 1, DECODE, 1, 8192)
    assert plan_step(step).ms == pytest.approx(steps.read_data()[0][step].ms, abs=0.001)


@pytest.mark.parametrize(("system", "key"), [("a100_sxm", "a100-80gb"), ("h200_sxm", "h200"), ("b200_sxm", "b200")])
def test_machines_of_this_folder_are_those_that_the_importer_makes(system: str, key: str) -> None:
    machine, gpu = load_machine(MACHINE_OF[system]), require_by_name(key)
    site = build_gpu_site(gpu)
    assert {each.memory_bytes for each in machine.sites} == {site.memory_bytes}
    assert {each.hbm_gbs for each in machine.sites} == {site.hbm_gbs}
    assert {dict(each.flops)["bf16"] for each in machine.sites} == {dict(site.flops)["bf16"]}
    assert gpu.links is not None
    assert [resource.gbs for resource in machine.resources] == pytest.approx([gpu.links.count * gpu.links.gbs] * 16)
