"""Machines whose GPUs have no peers: no random plan is faster than the chosen one, staging included."""

import contextlib
from pathlib import Path

import pytest

from einc.compiler import compile_model
from einc.errors import CapacityError
from einc.machines.load import load_machine
from einc.options import CompileOptions

MODELS = Path(__file__).resolve().parents[2] / "models"
SLOW = [("chain_a", None), ("chain_b", None), ("chain_c", None), ("chain_d", None), ("chain_e", None),
        ("llama_block", "b1x1k"), ("llama_block", "b1x8k")]  # fmt: skip


def predict(model, preset, **options):
    chosen = CompileOptions(machine="geforce-4090x4", preset=preset, **options)
    text = (MODELS / f"{model}.ein").read_text(encoding="utf-8")
    return compile_model(text, f"{model}.ein", chosen, lambda _: None).bundle


@pytest.mark.parametrize(
    ("model", "preset", "draws"),
    [("chain_c", None, 12), *(pytest.param(*case, 200, marks=pytest.mark.slow) for case in SLOW)],
)
def test_no_random_plan_is_faster(model, preset, draws):
    best = predict(model, preset).predicted_ms
    drawn = []
    for seed in range(draws):
        with contextlib.suppress(CapacityError):  # some do not fit into a card
            drawn.append(predict(model, preset, seed=seed, selector="random", schedule="naive").predicted_ms)
    assert len(drawn) > draws // 2
    assert min(drawn) >= best * (1 - 1e-9)


def test_the_memory_of_the_host_is_in_the_times():
    """Every transfer crosses it, and no other resource that it shares with all."""
    machine = load_machine("geforce-4090x4")
    memory = machine.resources[-1]
    assert memory.name == "host memory"
    assert set(memory.pairs) == set(machine.routes)
    assert all(machine.resources[route[-1]] == memory for route in machine.routes.values())
