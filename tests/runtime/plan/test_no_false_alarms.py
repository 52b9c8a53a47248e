"""No false alarms: every plan of the compiler is proved. The slow suite has all models, selectors and machines."""

from __future__ import annotations

import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.plan.proof import prove
from tests.support.compiled_plans import EVERYTHING, MODELS, TRANSFORMER
from tests.support.sampling import one_in

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(MODELS.glob("*.ein"))}
TEXTS.update(everything=EVERYTHING, transformer=f"model transformer\n{TRANSFORMER}")
LARGE = {"llama", "llama_decode", "bert"}
"""Models whose layers are many: two layers of each are enough."""

CHOICES = {
    "fastest": {},
    "synthesized paper": {"selector": "eindecomp"},
    "naive": {"schedule": "naive"},
    "naive paper": {"selector": "eindecomp", "schedule": "naive"},
    "random 1": {"selector": "random", "seed": 1},
    "random 2": {"selector": "random", "seed": 2, "schedule": "naive"},
    "random 3": {"selector": "random", "seed": 3, "input_placement": "once"},
    "once": {"input_placement": "once"},
    "greedy": {"selector": "greedy"},
}


def check(name: str, **options: object) -> None:
    definitions = (("n_layers", "2"),) if name in LARGE else ()
    bundle = compile_model(TEXTS[name], f"{name}.ein", CompileOptions(definitions=definitions, **options)).bundle  # type: ignore[arg-type]
    prove(bundle)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "sites"), one_in(5, sorted(set(TEXTS) - LARGE), range(1, 9)))
def test_plans_of_small_models(name: str, sites: int) -> None:
    check(name, machine="host", devices=sites, selector="random", seed=sites, schedule="naive")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sites", "choice"), one_in(10**9, sorted(TEXTS), range(1, 9), CHOICES))
def test_plans_of_all_models_however_they_are_chosen(name: str, sites: int, choice: str) -> None:
    check(name, machine="host", devices=sites, **CHOICES[choice])


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "dgx-v100", "gb200-nvl72"])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_plans_for_all_machines(name: str, machine: str) -> None:
    for sites in (5, 8):
        check(name, machine=machine, devices=sites)
