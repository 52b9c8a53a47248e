"""Modules of PyTorch that einc trains: steps are those of torch.optim, and weights come back.

Their gradients are compared in live_model_gradients.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import einc
from einc.errors import ModelError, UsageError


def square(result: torch.Tensor) -> torch.Tensor:
    """The mean of squares, each element with a weight of its own."""
    return (result.flatten() * torch.linspace(0.5, 1.5, result.numel())).square().mean()


def test_rows_and_shapes_of_attention_come_back() -> None:
    """Queries, keys and values are rows of one weight, and their heads are a dimension of their own."""
    torch.manual_seed(0)
    module, x = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True).eval(), torch.randn(2, 5, 12)
    model = einc.from_torch(module, (x,), loss=square)
    plan = einc.compile(model, "host", 2, train="loss", optimizer="sgd", selector="eindecomp", schedule="naive")
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)
    other = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    for _ in range(3):
        optimizer.zero_grad()
        square(module(x)).backward()
        optimizer.step()
        plan.trainStep(x, learning_rate=1e-2)
    other.load_state_dict(plan.stateDict())
    for mine, theirs in zip(other.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_becomes_the_weights_of_a_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True).eval(), torch.randn(2, 5, 12)
    model = einc.from_torch(module, (x,), loss=square)
    plan = einc.compile(model, "host", 2, train="loss", optimizer="sgd", selector="eindecomp", schedule="naive")
    plan.trainStep(x, learning_rate=1e-2)
    path = tmp_path / "own.safetensors"
    plan.saveCheckpoint(path)
    weights = einc.readStateDict(path, module)
    other = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True).eval()
    other.load_state_dict(weights)
    assert float(square(other(x)).detach()) == pytest.approx(plan.evaluate(x), rel=1e-5)
    with pytest.raises(UsageError, match="no weight of the file"):
        einc.readStateDict(path, nn.Linear(3, 4, bias=False))
    with pytest.raises(UsageError, match=r"norm1.weight has 12 elements.*\[8\]"):
        einc.readStateDict(path, nn.ModuleDict({"norm1": nn.LayerNorm(8)}))


class Record(nn.Module):
    """It returns no tensor, but a record with one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"kept": x, "logits": self.linear(x)}


def test_what_cannot_be_trained_as_it_is_says_what_to_do() -> None:
    with torch.device("meta"):
        module = nn.Linear(7, 5)
    with pytest.raises(ModelError, match=r"2 weights have no elements.*\n.*load_state_dict"):
        einc.from_torch(module, (torch.ones(3, 7),))
    targets = (torch.zeros(3, dtype=torch.int64),)
    with pytest.raises(ModelError, match=r"a dict with kept, logits.*\n.*result\['logits'\].*labels="):
        einc.from_torch(Record(), (torch.ones(3, 7),), loss=functional.cross_entropy, targets=targets)


class SharedRows(nn.Module):
    """Heads of a projection, which are rows of its weight, and the same projection as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.both(x).split([4, 6], -1)
        heads = [part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in (first, second)]
        gates = torch.sigmoid(self.both(2 * x))
        return torch.cat([torch.tanh(part).flatten() for part in heads] + [gates.flatten()])


def test_rows_of_a_weight_that_is_also_read_as_a_whole_do_not_part() -> None:
    torch.manual_seed(0)
    module, x = SharedRows(), torch.randn(3, 2, 6)
    model = einc.from_torch(module, (x,), loss=square)
    assert 'from "both.weight"' in model.text
    assert 'from "both.weight[0:4]"' in model.text
    plan = einc.compile(model, "host", 2, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        square(module(x)).backward()
        optimizer.step()
        plan.trainStep(x, learning_rate=1e-2)
    for name, weight in plan.stateDict().items():
        torch.testing.assert_close(weight, module.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_a_module_is_trained_and_gets_its_weights_back() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5))
    x, target = torch.randn(9, 7), torch.randint(0, 5, (9,))
    model = einc.from_torch(module, (x,), loss=functional.cross_entropy, targets=(target,))
    plan = einc.compile(model, "host", 2, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    other = nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5))
    for _ in range(20):
        loss = functional.cross_entropy(module(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert plan.trainStep(x, target, learning_rate=1e-2) == pytest.approx(loss.item(), rel=1e-5)
    other.load_state_dict(plan.stateDict())
    for mine, theirs in zip(other.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_mixed_precision_is_that_of_autocast(precision: Any, dtype: torch.dtype) -> None:
    """Three parts a step, clipped, and with f16 the scaled loss of GradScaler: losses and weights within rounding."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 5))
    parts = [(torch.randn(24, 6), torch.randint(0, 5, (24,))) for _ in range(9)]
    model = einc.from_torch(module, parts[0][:1], loss=functional.cross_entropy, targets=parts[0][1:])
    plan = einc.compile(
        model, "host", 3, train="loss", optimizer="adamw", clip=0.5, precision=precision, accumulate=True,
        selector="eindecomp", schedule="naive",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
    for step in range(12):
        optimizer.zero_grad()
        for n in range(3):
            x, target = parts[(3 * step + n) % 9]
            with torch.autocast("cpu", dtype=dtype):
                loss = functional.cross_entropy(module(x), target)
            scaler.scale(loss / 3).backward()
            found = plan.trainStep(x, target, learning_rate=1e-2, accumulate=(n + 1, 3))
            assert found == pytest.approx(loss.item(), rel=5e-3)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    for name, expected in module.state_dict().items():
        torch.testing.assert_close(plan.stateDict()[name], expected, rtol=2e-2, atol=2e-2)
    if precision == "f16":
        assert float(plan.session.offload("loss.scale")) == scaler.get_scale()


def test_attention_of_16_bits_is_as_exact_as_torch() -> None:
    """Gradients of bf16 queries, keys and values are as far from those in f64 as torch's, or nearer."""
    text = """model m
dim h = 4
dim k = 2
dim t = 24
dim d = 16
input q0 : f32[h, t, d]
input k0 : f32[k, t, d]
input v0 : f32[k, t, d]
input w : f32[h, t, d]
y = attention(cast(q0, "bf16"), cast(k0, "bf16"), cast(v0, "bf16"), causal=true)
output loss = sum(cast(y, "f32") * w, "h", "t", "d")
"""
    torch.manual_seed(1)
    heads = {"q0": 4, "k0": 2, "v0": 2}
    arrays = {name: torch.randn(count, 24, 16) for name, count in {**heads, "w": 4}.items()}
    plan = einc.compile(text, "host", 2, train="loss", gradients=list(heads), selector="eindecomp", schedule="naive")
    found = plan.run(**arrays)
    gradients = []
    for dtype in (torch.float64, torch.bfloat16):
        leaves = [arrays[name].clone().requires_grad_() for name in heads]
        q, k, v = (leaf.to(torch.bfloat16).to(dtype)[None] for leaf in leaves)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
        (y * arrays["w"]).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for name, exact, theirs in zip(heads, *gradients, strict=True):
        error = (torch.from_numpy(np.asarray(found[f"{name}.gradient"])) - exact).abs().max()
        assert error <= 1.25 * (theirs - exact).abs().max()
