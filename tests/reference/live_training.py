"""The model of stories, trained from random weights: its losses are those of PyTorch's AdamW."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import einc as es
from einc_runtime import Session

STORIES = Path(__file__).parents[2] / "models" / "stories"
BATCH, LENGTH, STEPS, RATE = 2, 19, 20, 2e-3
ERROR = 1e-4
"""Relative, of losses after 20 steps: two ways of adding up f32 lead apart slowly."""


def draw_batches() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 400, (BATCH, LENGTH + 1)) for _ in range(STEPS)]


def make_module() -> torch.nn.Module:
    torch.manual_seed(0)
    module: torch.nn.Module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(STORIES))
    return module


def train_module(module: torch.nn.Module) -> list[float]:
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=RATE), []
    for batch in map(torch.from_numpy, draw_batches()):
        logits = module(input_ids=batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("sites", [1, 8])
def test_losses_are_those_of_torch(sites: int, tmp_path: Path) -> None:
    text, module = runpy.run_path(str(STORIES / "train.py"))["write_text"](tmp_path).read_text(), make_module()
    params = {"batch": BATCH, "length": LENGTH}
    plan = es.compile(
        text, "host", sites, params=params, train="loss", optimizer="adamw", clip=1.0,
        selector="eindecomp", schedule="naive",
    )  # fmt: skip
    session, losses = Session(plan.bundle), []
    session.load_weights({name: value.detach() for name, value in module.state_dict().items()})
    session.load("learning_rate", np.float32(RATE))
    for step, batch in enumerate(draw_batches(), 1):
        session.load("ids", batch[:, :-1].flatten())
        session.load("targets", batch[:, 1:].flatten())
        session.load("step", np.float32(step))
        session.execute()
        losses.append(float(session.offload("loss")))
    np.testing.assert_allclose(losses, train_module(module), rtol=ERROR)
