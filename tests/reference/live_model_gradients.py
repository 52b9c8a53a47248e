"""Gradients of imported models, of all their parameters, are those of torch.autograd: on one, three and eight sites.

`data/torch_gradients.json` has the result of each model and type; `-m slow` tries all that are equal. `make
bench-model-gradients` tries all models, or those that are named, and writes down here and in docs/training.md what
became of them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import einc
from einc.api.state_dict import join_rows
from einc.importers.pytorch.importing import TorchModel
from tests.bench.report import write
from tests.support.tiny_architectures import make_model
from tests.support.tiny_models import draw_ids, make_causal, randomize
from tests.support.trials import Check, Table, fill_table, list_equal

TABLE = Path(__file__).parent / "data" / "torch_gradients.json"
PAGE = Path(__file__).parents[2] / "docs" / "training.md"
RESULTS: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
SITES = (1, 3, 8)
MAX_SECONDS = 900
"""Of one core for a model: its gradients in three types, each on one, three and eight sites."""
EXACT = 1e-9
"""Of gradients in f64, relative to the largest of a parameter."""
ROUNDING = 4.0
"""How many times as far from those in f64 as torch's of a narrower type ours may be: sums have another order."""
STEPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""Half the distance between floats near 1: the least that a gradient may be away."""

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A module with what it reads, and the loss of its results for further inputs."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Loss
    targets: tuple[torch.Tensor, ...] = ()


class InDouble(TorchFunctionMode):
    """Whatever a model computes in f32 by name, as norms, angles and softmax, is computed in f64."""

    def __enter__(self) -> InDouble:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(torch.float32)
        super().__exit__(*error)

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        return function(*args, **{k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()})


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


def square(result: Any) -> torch.Tensor:
    """Of all results, each element with a weight of its own."""
    parts = [part.flatten() for part in ((result,) if isinstance(result, torch.Tensor) else result)]
    return sum((part * torch.linspace(0.5, 1.5, len(part), dtype=part.dtype)).square().mean() for part in parts)  # type: ignore[return-value]


OWN: dict[str, Callable[[], Case]] = {
    "perceptron": lambda: Case(
        nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5)),
        (torch.randn(9, 7),), functional.cross_entropy, (torch.randint(0, 5, (9,)),),
    ),
    "convolutions": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)),
        (torch.randn(3, 3, 11, 11),), functional.cross_entropy, (torch.randint(0, 4, (3,)),),
    ),
    "residual": lambda: Case(Residual(), (torch.randn(2, 3, 6, 5),), square),
    "pooling": lambda: Case(
        nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        (torch.randn(2, 3, 9),), square,
    ),
    "encoder": lambda: Case(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), (torch.randn(2, 5, 12),), square),
    "gru": lambda: Case(Recurrent(nn.GRU), (torch.randn(2, 4, 5),), square),
    "lstm": lambda: Case(Recurrent(nn.LSTM), (torch.randn(2, 4, 5),), square),
    "embedding": lambda: Case(
        nn.Sequential(nn.Embedding(37, 6), nn.Linear(6, 37)),
        (torch.randint(0, 37, (2, 9)),), next_tokens, (torch.randint(0, 37, (2, 9)),),
    ),
}  # fmt: skip
CAUSAL = (
    "bloom", "codegen", "cohere", "deepseek_v3", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gpt_oss",
    "llama", "mamba", "mistral", "mixtral", "olmo2", "opt", "phi", "qwen3", "qwen3_moe", "stablelm",
)  # fmt: skip
ARCHITECTURES = (
    "albert", "bart", "bert", "clip", "convnext", "deberta-v2", "distilbert", "modernbert", "resnet", "segformer",
    "swin", "t5", "vit", "whisper", "xlm-roberta",
)  # fmt: skip
NAMES = (
    *(f"torch/{name}" for name in OWN), *(f"causal/{name}" for name in CAUSAL),
    *(f"transformers/{name}" for name in ARCHITECTURES),
)  # fmt: skip
GROUPS = {
    "torch": "modules of torch",
    "causal": "causal models of transformers, tiny",
    "transformers": "other models of transformers, tiny",
}
"""What the table of the page calls the first part of names."""
SOME = ("torch/convolutions", "causal/llama")


def make_case(name: str) -> Case:
    """In f32, with random weights."""
    package, _, kind = name.partition("/")
    torch.manual_seed(3)
    if package == "torch":
        case = OWN[kind]()
        randomize(case.module.eval())
        return case
    if package == "causal":
        return Case(make_causal(kind), (draw_ids(),), next_tokens, (draw_ids().flip(1),))
    return Case(*make_model(kind), square)


def make_double(name: str) -> Case:
    """The same case in f64, made while InDouble: angles that a model computes when it is made are of f64, too."""
    single, case = import_single(name)[0], make_case(name)
    case.module.load_state_dict(single.module.state_dict())
    inputs = tuple(x.double() if x.is_floating_point() else x for x in single.inputs)
    return replace(case, inputs=inputs)


def compute_by_torch(case: Case) -> dict[str, torch.Tensor]:
    """The gradients of all parameters that have one, by all their names."""
    case.module.zero_grad()
    case.loss(case.module(*case.inputs), *case.targets).backward()
    named = case.module.named_parameters(remove_duplicate=False)
    return {name: value.grad.double() for name, value in named if value.grad is not None}


def import_case(case: Case) -> TorchModel:
    return einc.from_torch(case.module, case.inputs, loss=case.loss, targets=case.targets)


def compute_by_einc(case: Case, model: TorchModel, sites: int, **options: Any) -> dict[str, torch.Tensor]:
    """The gradients by the names of parameters; those of mixed precision are the first velocities of SGD."""
    plan = einc.compile(model, "host", sites, train="loss", selector="eindecomp", schedule="naive", **options)
    if options:
        plan.trainStep(*case.inputs, *case.targets, learning_rate=0.0)
        arrays = {t.name: plan.session.offload(t.name) for t in plan.session.states}
        ending = ".velocity"
    else:
        arrays = dict(plan.run(*case.inputs, *case.targets))
        ending = ".gradient"
    stored = {tensor.name: tensor.stored or tensor.name for tensor in plan.bundle.tensors}
    ours = {stored[n.removesuffix(ending)]: np.asarray(array) for n, array in arrays.items() if n.endswith(ending)}
    return {name: torch.from_numpy(array).double() for name, array in join_rows(ours, {}).items()}


@cache
def import_single(name: str) -> tuple[Case, TorchModel]:
    """The case in f32, which is imported once for both of its checks."""
    case = make_case(name)
    return case, import_case(case)


def hold_exact(name: str) -> None:
    """In f64, where gradients do not differ by more than EXACT."""
    import_single(name)
    with InDouble():
        case = make_double(name)
        exact, model = compute_by_torch(case), import_case(case)
        for sites in SITES:
            check(case, compute_by_einc(case, model, sites), exact, dict.fromkeys(exact, 0.0), EXACT)


def hold_rounded(name: str, dtype: torch.dtype) -> None:
    """In f32, or with products of `dtype`: as near to those in f64 as torch's, but for ROUNDING."""
    case, model = import_single(name)
    with InDouble():
        exact = compute_by_torch(make_double(name))
    mixed = {"optimizer": "sgd", "precision": "bf16"} if dtype is torch.bfloat16 else {}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(mixed)):
        theirs = compute_by_torch(case)
    errors = {key: measure(theirs[key], exact[key]) for key in exact}
    for sites in SITES:
        check(case, compute_by_einc(case, model, sites, **mixed), exact, errors, STEPS[dtype])


def measure(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, relative to the largest element."""
    return float((gradient.reshape(exact.shape) - exact).abs().max() / exact.abs().max().clamp(min=1e-6))


def check(
    case: Case,
    ours: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    errors: Mapping[str, float],
    least: float,
) -> None:
    """Each parameter has a gradient, of which tied ones have one; no further from the exact one than ROUNDING times
    torch's, of this parameter or in the median of all: where terms cancel, how far away torch's is is chance."""
    named = dict(case.module.named_parameters(remove_duplicate=False))
    assert {id(named[key]) for key in ours} == {id(named[key]) for key in exact}
    typical = statistics.median(errors.values())
    for key, gradient in ours.items():
        away, allowed = measure(gradient, exact[key]), max(ROUNDING * errors[key], ROUNDING * typical, least)
        assert away <= allowed, f"{key}: {away:.2g} away, and {allowed:.2g} is allowed"


CHECKS: dict[str, Check] = {
    "f64": hold_exact, "f32": partial(hold_rounded, dtype=torch.float32),
    "bf16": partial(hold_rounded, dtype=torch.bfloat16),
}  # fmt: skip
EQUAL = [(name, check) for check in CHECKS for name in list_equal(RESULTS, check)]


@pytest.mark.parametrize(("name", "check"), [case for case in EQUAL if case[0] in SOME])
def test_some_models(name: str, check: str) -> None:
    CHECKS[check](name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), [case for case in EQUAL if case[0] not in SOME])
def test_further_models(name: str, check: str) -> None:
    CHECKS[check](name)


def make_page_table() -> str:
    """How many models of each group have equal gradients, by types, and which ones have not."""
    results: Table = json.loads(TABLE.read_text())
    lines = [f"| models | {' | '.join(CHECKS)} |", "| --- | ---: | ---: | ---: |"]
    for group, title in GROUPS.items():
        rows = {name.partition("/")[2]: row for name, row in results.items() if name.startswith(f"{group}/")}
        counts = [f"{sum(row[check] == 'equal' for row in rows.values())} of {len(rows)}" for check in CHECKS]
        lines.append(f"| {title}: {', '.join(rows)} | {' | '.join(counts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    fill_table(TABLE, sys.argv[1:] or NAMES, CHECKS, seconds=MAX_SECONDS)
    write("model gradients", make_page_table(), PAGE)
