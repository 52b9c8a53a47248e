"""Causal families of transformers at tiny sizes: logits, and what derived decode steps make, are those of transformers.

`data/torch_families.json` says of each family whether its logits and its steps are equal, or why not; `-m slow` tries
all that are. `python -m tests.importers.live_families` tries families, or all, and writes down what became of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import einc
from einc.importers.pytorch.importing import from_torch
from einc_runtime import Session
from tests.support.tiny_models import draw_ids, make_causal
from tests.support.torch_models import check_result, compare
from tests.support.trials import Check, Table, fill_table, list_equal

TABLE = Path(__file__).parent / "data" / "torch_families.json"
FAMILIES: Table = json.loads(TABLE.read_text())
SOME = (
    "bloom", "codegen", "cohere", "deepseek_v3", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "llama",
    "llama4_text", "mamba", "mixtral", "olmo_hybrid", "opt", "qwen3_moe",
)  # fmt: skip
TOLERANCE = 1e-5
PROMPT, GREEDY = 7, 24
"""Tokens that are read and that are made then: 31 in all, an extent that no other dimension of a tiny model has."""


def hold_logits(family: str) -> None:
    compare(make_causal(family), (draw_ids(),), tolerance=TOLERANCE)


def hold_steps(family: str) -> None:
    """The greedy tokens after a prompt, and the logits of each step, are those of the module for the whole text."""
    module = make_causal(family)
    text = draw_ids(1, PROMPT + GREEDY)
    model = from_torch(module, (text,))
    plan = einc.compile(model, "host", 1, step={f"n{PROMPT + GREEDY}": 1})
    rows = []
    with Session(plan.bundle, backend="cpu") as session:
        session.load_weights(model.weights)
        (positions,) = {tensor.name for tensor in session.inputs} - set(model.inputs)
        for position in range(PROMPT + GREEDY - 1):
            inputs = {model.inputs[0]: text[:, position : position + 1].numpy(), positions: np.array([position])}
            rows.append(np.array(session.run(inputs)[model.outputs[0]]).reshape(-1))
            if position >= PROMPT - 1:
                text[0, position + 1] = int(rows[-1].argmax())
    with torch.no_grad():
        expected = module(text)[0, :-1]
    check_result(torch.from_numpy(np.stack(rows)), expected, 2 * TOLERANCE, "logits of steps")
    assert torch.equal(expected[PROMPT - 1 :].argmax(-1), text[0, PROMPT:]), "greedy tokens of steps"


CHECKS: dict[str, Check] = {"logits": hold_logits, "steps": hold_steps}
EQUAL = [(family, check) for check in CHECKS for family in list_equal(FAMILIES, check)]


@pytest.mark.parametrize(("family", "check"), [case for case in EQUAL if case[0] in SOME])
def test_some_families(family: str, check: str) -> None:
    CHECKS[check](family)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "check"), [case for case in EQUAL if case[0] not in SOME])
def test_further_families(family: str, check: str) -> None:
    CHECKS[check](family)


if __name__ == "__main__":
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    fill_table(TABLE, sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), CHECKS)
