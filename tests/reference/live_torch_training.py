"""Modules of PyTorch that einc trains: gradients are those of torch.autograd, and steps those of torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

import einc
from einc.api.state_dict import join_rows

EAGER = {"attn_implementation": "sdpa"}
SMALL = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 32, "head_dim": 6}


class Decoder(nn.Module):
    """The logits of a causal model of transformers with random weights."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        config.use_cache = False
        self.model = AutoModelForCausalLM.from_config(config, **EAGER)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids).logits
        return logits


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1, groups=3)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(x + self.norm(self.second(torch.relu(self.first(x)))))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(5, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.layer(x)[0]
        return rows


def next_tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def ids() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 37, (2, 9)), torch.randint(0, 37, (2, 9))


def rows(*shape: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(*shape[:-1], dtype=torch.float64), torch.randint(0, shape[-1], (shape[0],))

    return draw


def like(*shape: int) -> Callable[[], tuple[torch.Tensor, None]]:
    return lambda: (torch.randn(*shape, dtype=torch.float64), None)


def square(result: torch.Tensor) -> torch.Tensor:
    return (result * torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)).square().mean()


Case = tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor | None]], Callable[..., Any]]
CASES: dict[str, Case] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5)),
        rows(9, 7, 5), functional.cross_entropy,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)),
        rows(3, 3, 11, 11, 4), functional.cross_entropy,
    ),
    "residual": (Residual, like(2, 3, 6, 5), square),
    "pooling": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        like(2, 3, 9), square,
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), like(2, 5, 12), square),
    "gru": (lambda: Recurrent(nn.GRU), like(2, 4, 5), square),
    "lstm": (lambda: Recurrent(nn.LSTM), like(2, 4, 5), square),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(37, 6), nn.Linear(6, 37)), ids, next_tokens,
    ),
    "llama": (lambda: Decoder(LlamaConfig(**LLAMA)), ids, next_tokens),
    "mistral": (lambda: Decoder(MistralConfig(**LLAMA, sliding_window=4)), ids, next_tokens),
    "qwen3": (lambda: Decoder(Qwen3Config(**LLAMA)), ids, next_tokens),
    "gpt2": (
        lambda: Decoder(GPT2Config(vocab_size=37, n_embd=24, n_layer=2, n_head=4, n_positions=32)), ids, next_tokens,
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_modules_are_those_of_autograd(name: str) -> None:
    """In f64, on one site and on three. Models of transformers compute norms and angles in f32 whatever they are asked
    for, so that they are compared in f32."""
    make, draw, loss = CASES[name]
    torch.manual_seed(3)
    module, (x, target) = make().eval(), draw()
    single = isinstance(module, Decoder)
    module, error = (module, 1e-4) if single else (module.double(), 1e-9)
    targets = () if target is None else (target,)
    model = einc.from_torch(module, (x,), loss=loss, targets=targets)
    assert model.outputs == ("loss",)
    value = loss(module(x), *targets)
    value.backward()
    named = dict(module.named_parameters(remove_duplicate=False))
    gradients = {key: p.grad.numpy() for key, p in named.items() if p.grad is not None}
    for sites in (1, 3):
        plan = einc.compile(model, "host", sites, train="loss", selector="eindecomp", schedule="naive")
        outputs = plan.run(x, *targets)
        assert float(outputs["loss"]) == pytest.approx(value.item(), rel=1e-5 if single else 1e-9)
        stored = {tensor.name: tensor.stored or tensor.name for tensor in plan.bundle.tensors}
        parts = {stored[name.removesuffix(".gradient")]: array for name, array in outputs.items() if name != "loss"}
        found = join_rows(parts, {})
        assert {id(named[key]) for key in found} == {id(named[key]) for key in gradients}
        for key, expected in ((key, gradients[key]) for key in found):
            scale = max(float(np.abs(expected).max()), 1e-6)
            assert np.abs(found[key].reshape(expected.shape) - expected).max() <= error * scale, key


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
