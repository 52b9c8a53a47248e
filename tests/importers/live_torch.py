"""Modules of PyTorch, exported and imported: what their texts compute on one site and on three is what PyTorch does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import einc
from einc.errors import ModelError, ModelWarning, UsageError
from einc.importers.pytorch.importing import from_torch
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.session import Session
from tests.support.torch_models import check_model, check_result, compare, draw, import_undecomposed

Tensor = torch.Tensor


class Computation(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def write_steps(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:5:2] = x[:, :2] * 2
    return y


def turn(x: Tensor) -> Tensor:
    """Rotary positions of neighbouring elements, as complex numbers."""
    angles = torch.outer(torch.arange(x.shape[1]), 0.5 ** torch.arange(x.shape[2] // 2))
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)


class Tied(nn.Module):
    """One weight under two names, a buffer that is not saved, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(13, 6)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("ramp", torch.arange(5.0), persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(ids) + self.ramp[:, None]
        return self.head(x), x.amax(1)


MODULES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(7, 13), nn.ReLU(inplace=True), nn.Linear(13, 5)), (draw(3, 7),)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(3, 2, 1)),
        (draw(2, 4, 17, 13),),
    ),
    "a transposed convolution": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (draw(2, 4, 5, 4),)),
    "sequences": (nn.Sequential(nn.Conv1d(6, 6, 4, padding=3, groups=6), nn.GLU(1)), (draw(2, 6, 11),)),
    "norms": (nn.Sequential(nn.GroupNorm(2, 6), nn.InstanceNorm2d(6), nn.LayerNorm([5, 4])), (draw(2, 6, 5, 4),)),
    "tied weights": (Tied(), (torch.randint(0, 13, (3, 5)),)),
    "an encoder": (nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), (draw(2, 5, 12),)),
    "multi-head attention": (
        Computation(lambda q, k: F.multi_head_attention_forward(
            q, k, k, 12, 4, torch.ones(36, 12) / 9, torch.zeros(36), None, None, False, 0.0, torch.ones(12, 12) / 7,
            torch.zeros(12), training=False, need_weights=False)[0]),
        (draw(5, 2, 12), draw(7, 2, 12)),
    ),
    "adaptive pooling": (nn.AdaptiveAvgPool2d((3, 2)), (draw(2, 3, 7, 4),)),
    "resizing": (
        Computation(lambda x: [
            F.interpolate(x, (9, 5), mode="bilinear"), F.interpolate(x, scale_factor=2.0),
            F.interpolate(x, (3, 9), mode="bicubic"),
        ]),
        (draw(2, 3, 5, 4),),
    ),
    "pixel shuffling": (nn.Sequential(nn.PixelShuffle(2), nn.ReflectionPad2d(1)), (draw(2, 8, 3, 4),)),
    "indices": (
        Computation(lambda x, at: [
            x[at], x[:, at[0]], x.gather(0, at.T[:, :3]), x[at, at % 3], x.index_select(1, at[1])
        ]),
        (draw(5, 4), torch.tensor([[0, 3, 1], [2, 2, 0], [1, 0, 3]])),
    ),
    "writes": (
        Computation(lambda x, at: [
            torch.zeros(5, 4).scatter_add(0, at, x), x.masked_fill(x > 0, 2.0), x.slice_scatter(x[:, :1] * 2, 1, 2, 3),
            x.select_scatter(x[0] * 3, 0, -1), torch.zeros(3, 6).scatter(1, at % 6, x),
        ]),
        (draw(3, 4), torch.tensor([[0, 1, 2, 3], [4, 0, 1, 2], [1, 2, 3, 0]])),
    ),
    "writes at positions": (
        Computation(lambda x, at: [
            x.masked_scatter(x > 0, x * 3), x.index_put((at[0],), x[:3] * 2),
            x.index_put((at[0], at[1]), x[:3, 0], accumulate=True), x[torch.tensor([True, False, True, True])],
            write_steps(x), torch.zeros(4, 5, dtype=torch.bool).scatter(1, at[:, :1].T % 5, True),
        ]),
        (draw(4, 5), torch.tensor([[2, 0, 3], [4, 4, 1]])),
    ),
    "complex numbers": (Computation(lambda x: turn(x)), (draw(2, 5, 6),)),
    "aggregates": (
        Computation(lambda x: [
            x.var(1), x.std(), x.max(1)[0], x.argmax(0), x.cumsum(1), x.softmax(0), x.log_softmax(-1), x.logsumexp(1),
            torch.linalg.vector_norm(x, dim=0), x.sort(1)[0], x.topk(2, 0)[1], (x > 0).any(1), x.prod(), x.mean((0, 1)),
            *x.cummax(1), *x.cummin(0),
        ]),
        (draw(4, 5),),
    ),
    "records": (Computation(lambda x: x.max(1)), (draw(4, 5),)),
    "averages": (
        Computation(lambda x: [F.avg_pool2d(x, (2, 3), 2, 1, divisor_override=5), x[0, 0].round(decimals=1)]),
        (draw(2, 3, 7, 6),),
    ),
    "types": (
        Computation(lambda x, i: [
            x + i, i / 2, i // 2, i % 3, (x * 3).to(torch.int32), i.to(torch.int8) * 100, x.double().sum(), i > x,
            -i // 2,
        ]),
        (draw(3, 4), torch.tensor([[-3, -1, 0, 5], [7, 2, -8, 1], [4, 4, -5, 9]])),
    ),
    "moves": (
        Computation(lambda x: [
            x.roll(1, 1), x.flip(0), x.repeat(2, 3), x.repeat_interleave(2, 1), x.unfold(1, 2, 1), x.tril(1),
            x.triu(-1), torch.stack([x, x * 2], 1), x.chunk(2, 1)[1], x.T.reshape(2, -1), x.expand(2, 3, 4),
            x.movedim(0, 1),
        ]),
        (draw(3, 4),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    compare(*MODULES[name])


def test_norms_of_groups_ask_for_no_weights_of_their_own() -> None:
    module = nn.Sequential(nn.GroupNorm(3, 6), nn.SiLU(), nn.GroupNorm(2, 6, affine=False), nn.InstanceNorm2d(6))
    model = compare(module.eval(), (draw(2, 6, 5, 4) + 40,), tolerance=1e-4, sites=(3,))
    assert set(model.weights) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("mask", ["none", "causal", "table", "bias", "padding"])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention(mask: str, heads: int) -> None:
    q, k, v = draw(2, 4, 5, 6), draw(2, heads, 5, 6), draw(2, heads, 5, 3)
    masks = {
        "table": torch.rand(5, 5) < 0.7, "bias": draw(4, 5, 5), "padding": torch.rand(2, 1, 1, 5) < 0.7
    }  # fmt: skip
    if mask in masks:
        masks[mask][..., 0] = True if masks[mask].dtype is torch.bool else 0.5

    def attend(*tensors: Tensor) -> Tensor:
        table = tensors[3] if len(tensors) > 3 else None
        return F.scaled_dot_product_attention(
            *tensors[:3], attn_mask=table, is_causal=mask == "causal", enable_gqa=True
        )

    compare(Computation(attend), (q, k, v, *([masks[mask]] if mask in masks else [])))


def spell(form: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention [batch, heads, tokens, d] as models write it out."""
    heads, tokens = q.shape[1:3]
    scores = q @ k.transpose(-1, -2) * 0.4
    hidden = torch.full((tokens, tokens), torch.finfo(scores.dtype).min).triu(1)
    if form == "a soft cap":
        scores = torch.tanh(scores / 3.0) * 3.0
    if form == "ALiBi":
        scores = scores + 0.5 ** torch.arange(1, heads + 1)[:, None, None] * torch.arange(tokens)
    if form == "a window":
        hidden = hidden + torch.full((tokens, tokens), torch.finfo(scores.dtype).min / 2).tril(-3)
    if form == "a choice":
        scores = torch.where(torch.ones(tokens, tokens, dtype=torch.bool).tril(), scores, hidden.min())
    else:
        scores = scores + hidden
    if form != "sinks":
        return scores.softmax(-1) @ v
    column = v[0, :, 0, 0].reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    both = torch.cat([scores, column], -1)
    return (both - both.max(-1, keepdim=True)[0]).softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("form", ["a soft cap", "ALiBi", "a window", "a choice", "sinks"])
def test_attention_that_is_spelled_out(form: str) -> None:
    model = compare(Computation(lambda *t: spell(form, *t)), (draw(2, 4, 5, 6), draw(2, 4, 5, 6), draw(2, 4, 5, 3)))
    assert " attention(" in model.text
    assert "softmax(" not in model.text


def test_attention_whose_batches_and_heads_are_one_dimension() -> None:
    """Scores of baddbmm, as GPT-NeoX has them; a gated norm over heads, as models with delta rules have it."""
    hidden = torch.full((5, 5), -1e9).triu(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = (part.reshape(-1, 5, 6) for part in (q, k))
        scores = torch.baddbmm(torch.zeros(8, 5, 5), next(flat), next(flat).transpose(1, 2), beta=1.0, alpha=0.4)
        return (scores.view(2, 4, 5, 5) + hidden).softmax(-1) @ v

    model = compare(Computation(attend), (draw(2, 4, 5, 6), draw(2, 4, 5, 6), draw(2, 4, 5, 3)))
    assert " attention(" in model.text

    def norm(x: Tensor, gate: Tensor) -> Tensor:
        rows = x.reshape(-1, 6)
        return (F.rms_norm(rows, (6,), torch.ones(6) / 3) * F.silu(gate.reshape(-1, 6))).reshape(2, 5, 24)

    model = compare(Computation(norm), (draw(2, 5, 4, 6), draw(2, 5, 24)))
    assert "n40" not in model.text


@pytest.mark.parametrize("type_", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(type_: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.LayerNorm(13), nn.Linear(13, 5)).to(type_)
    compare(module, (draw(3, 7).to(type_),), tolerance={torch.float16: 5e-3, torch.bfloat16: 4e-2}.get(type_, 1e-12))


class Written(nn.Module):
    """Operators that write over what they read, dropout, and a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.mean() + 1
        h = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.drop(self.second(h) * scale)
        y += h
        return y.mul_(0.5)


def test_programs_that_are_not_decomposed(tmp_path: Path) -> None:
    """As torch.export.save(torch.export.export(...)) writes them."""
    module, images = Written().eval(), draw(2, 3, 6, 7)
    check_model(import_undecomposed(module, (images,), tmp_path), module, (images,))
    views = Computation(lambda x: [y := x * 2, y[0].add_(1)][0] * 3)
    check_model(import_undecomposed(Computation(lambda x: x.clone().add_(1)), (images,), tmp_path), Computation(
        lambda x: x + 1), (images,))  # fmt: skip
    with pytest.raises(ModelError, match=r"run_decompositions|views"):
        import_undecomposed(views, (images,), tmp_path)


class FixedRows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(draw(6, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shifted = x + self.p
        return shifted.sum() if y.shape[0] == 5 else y


def test_dimensions_that_torch_makes_constant_are_named_with_the_line() -> None:
    auto = torch.export.Dim.AUTO
    with pytest.warns(ModelWarning) as caught:
        einc.compile(FixedRows(), "host", 1, args=(draw(3, 6, 4), draw(5, 2)), dynamic_shapes=({1: auto}, None))
    assert caught[0].filename == __file__
    with pytest.warns(ModelWarning) as caught:
        model = from_torch(FixedRows(), (draw(3, 6, 4), draw(5, 2)), dynamic_shapes=({0: auto, 1: auto}, {0: auto}))
    _, line = inspect.getsourcelines(FixedRows.forward)
    words = [str(warning.message) for warning in caught]
    assert [text.partition(" that ")[0] for text in words] == [
        f"dimension 1 of x was to be dynamic, and is always 6: torch.export found in {__file__}:{line + 1}",
        f"dimension 0 of y was to be dynamic, and is always 5: torch.export found in {__file__}:{line + 2}",
    ]
    assert model.dims == {"x_dim0": None}


def test_what_only_training_steps_have_is_an_error() -> None:
    with pytest.raises(ArrayFault, match="no training step"):
        einc.compile(nn.Linear(2, 3).eval(), "host", 1, args=(draw(1, 2),)).stateDict()
    with pytest.raises(UsageError, match=r"no option 'loss'(.|\n)*einc\.from_torch\(module, args, loss="):
        einc.compile(nn.Linear(2, 3).eval(), "host", 1, args=(draw(1, 2),), loss=F.mse_loss)


def test_dynamic_dimensions() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = from_torch(module, (draw(4, 3, 6, 6),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    (declared,) = [line for line in model.text.splitlines() if line.startswith("dim ")]
    assert declared.endswith("= 4")
    compare(module, (draw(4, 3, 6, 6),), dynamic=({0: torch.export.Dim.AUTO},))


def test_a_dynamic_batch_needs_no_copies_that_a_fixed_one_does_not() -> None:
    module, x = nn.TransformerEncoderLayer(24, 4, 20, batch_first=True).eval(), draw(5, 7, 24)
    dynamic = ({0: torch.export.Dim("batch", min=2, max=9)},)
    fixed_text, text = from_torch(module, (x,)).text, from_torch(module, (x,), dynamic_shapes=dynamic).text
    assert text.count(" = ") == fixed_text.count(" = ") + 1  # dim batch = 5
    assert "transpose" not in text
    compare(module, (x,), dynamic=dynamic)


def test_names_of_dimensions_and_outputs_are_those_of_the_module() -> None:
    rows = torch.export.Dim("Rows", max=9)
    module = Computation(lambda x: {"scores": x * 2, "parts": [x.exp(), x.sum()]})
    model = from_torch(module, (torch.ones(4, 3),), dynamic_shapes=[({0: rows},)])
    assert "dim Rows = 4  # at most 9" in model.text
    assert model.outputs == ("scores", "parts_0", "parts_1")
    assert model.dims == {"Rows": 9}


def test_a_module_in_training_mode_is_a_warning() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout(0.1))
    with pytest.warns(ModelWarning, match="Dropout"):
        from_torch(module, (torch.ones(4, 3),))
    assert [part.training for part in module.modules()] == [True, False, True]  # as they were


def test_missing_arguments_get_a_hint() -> None:
    with pytest.raises(ModelError, match=r"args=\(x,\)"):
        from_torch(nn.Linear(3, 4), ())


class ComplexTable(nn.Module):
    """Rotary positions as LLaMA's first program has them, from a table that is stored."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(9.0), torch.tensor([1.0, 0.1]))
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.table[: x.shape[0]]).flatten(-2)


def test_buffers_of_complex_numbers_are_two_constants() -> None:
    compare(ComplexTable().eval(), (torch.linspace(-1, 2, 20).reshape(5, 4),))


def test_a_module_that_cannot_be_exported_is_an_error() -> None:
    with pytest.raises(
        ModelError, match=r"cannot export(.|\n)*hint: what is computed(.|\n)*stopped in .*live_torch\.py:\d"
    ):
        from_torch(Computation(lambda x: x * 2 if x.sum() > 0 else x), (draw(3),))
    with pytest.raises(ModelError, match=r"live_torch\.py"):
        from_torch(Computation(lambda x: torch.linalg.qr(x)[0]), (draw(3, 3),))


def test_folders_are_those_of_the_command(tmp_path: Path) -> None:
    import safetensors.numpy

    model = from_torch(nn.Linear(3, 2), (draw(4, 3),), name="pair")
    model.write(str(tmp_path))
    assert (tmp_path / "model.ein").read_text() == model.text
    stored = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert {name: array.shape for name, array in stored.items()} == {"weight": (2, 3), "bias": (2,)}
    np.testing.assert_array_equal(stored["weight"], model.weights["weight"])


def choose_keys(x: Tensor) -> Tensor:
    """Attention to two keys that scores choose, beside a sink, under masks that are tables: x [1, tokens, width]."""
    tokens = x.shape[1]
    hidden = torch.full((tokens, tokens), float("-inf")).triu(1)
    scores = x @ x.transpose(1, 2) + 0.1 * torch.arange(tokens)
    chosen = (torch.relu(scores) + hidden).topk(2, -1)[1]
    left_out = torch.ones_like(scores, dtype=torch.bool).scatter(-1, chosen, False)
    mask = torch.where(
        left_out, torch.finfo(x.dtype).min, torch.zeros(tokens, tokens) + hidden.clamp(min=torch.finfo(x.dtype).min)
    )
    both = torch.cat([scores + mask, torch.full((1, tokens, 1), 0.3)], -1)
    return both.softmax(-1)[..., :-1] @ x


def test_keys_that_are_chosen_have_steps() -> None:
    x = draw(1, 7, 4).abs()  # scores above 0: of equal ones, PyTorch chooses any
    model = from_torch(Computation(choose_keys), (x,))
    check_model(model, Computation(choose_keys), (x,), sites=(2,))
    plan = einc.compile(model, "host", 1, step={"n7": 1})
    with Session(plan.bundle, backend="cpu") as session:
        (positions,) = {tensor.name for tensor in session.inputs} - set(model.inputs)
        session.load_weights(model.weights)
        rows = [
            np.array(session.run({model.inputs[0]: x[:, at : at + 1].numpy(), positions: np.array([at])})["output0"])
            for at in range(7)
        ]
    check_result(torch.from_numpy(np.concatenate(rows, 1)), choose_keys(x), 2e-5, "rows of steps")


class Recurrent(nn.Module):
    """A layer of PyTorch with what it returns as one tuple: values, and what each layer keeps."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 5, **options)

    def forward(self, x: Tensor, *starts: Tensor) -> tuple[Tensor, ...]:
        values, kept = self.layer(x, *starts)
        return (values, *kept) if isinstance(kept, tuple) else (values, kept)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("LSTM", {"bidirectional": True}),
        ("RNN", {"bias": False, "batch_first": True}),
    ],
)
def test_recurrent_layers_are_recurrences(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = compare(Recurrent(kind, **options), (draw(3, 7, 6),), sites=(3,))
    assert f"{kind.lower()}(" in model.text
    assert len(model.text.splitlines()) < 60


def test_a_recurrent_layer_goes_on_from_a_start() -> None:
    torch.manual_seed(3)
    compare(Recurrent("GRU", batch_first=True), (draw(3, 7, 6), draw(1, 3, 5)), sites=(2,))


def test_arguments_keep_their_names_with_a_loss() -> None:
    """Those of the module, then those of the loss; dimensions may be dynamic."""

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
            return x if factor is None else x * factor

    def loss(result: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return ((result - goal) ** 2).mean()

    x, goal, rows = draw(6, 5), draw(6, 5), torch.export.Dim("rows")
    model = from_torch(Scaled(), (x,), {"factor": draw(5)}, loss=loss, targets=(goal,))
    assert model.inputs == ("x", "goal", "factor")
    model = from_torch(Scaled(), (x,), dynamic_shapes=({0: rows}, {0: rows}), loss=loss, targets=(goal,))
    assert model.inputs == ("x", "goal")
    assert "input goal : f32[rows, 5]" in model.text
