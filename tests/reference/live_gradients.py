"""Gradients beside those of torch.autograd: of operators, on one site and on several, and of random graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import einc as es
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.training.gradients import derive_gradients
from einc_runtime import Session
from einc_runtime.dtypes import storage_dtype
from tests.support.graph_interpreter import interpret

SIZES = "dim n = 3\ndim c = 6\ndim h = 5\ndim w = 8\ndim o = 4\n"
X, K = "input x : T[n, c, h, w]\n", "weight k : T[o, c, 3, 3]\n"
TOKENS = "dim heads = 4\ndim shared = 2\ndim tokens = 7\ndim d = 6\n"
QKV = TOKENS + "input q : T[heads, tokens, d]\ninput k : T[shared, tokens, d]\ninput v : T[shared, tokens, d]\n"
SITES = (1, 3, 8)
STEPS = "dim steps = 5\ndim size = 4\n"
RNN = STEPS + "input x : T[n, steps, c]\ninput u : T[R, c]\ninput v : T[R, size]\ninput a : T[R]\ninput b : T[R]\n"

Torch = Callable[..., torch.Tensor]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Causal attention, or with a mask, with two query heads for each head of keys."""
    k, v = (t.repeat_interleave(2, 0) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)


def attend_within(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in sequences of 3 and 4 tokens, to the last two keys."""
    rows = torch.arange(7)
    behind = rows[:, None] - rows
    same = (rows >= 3)[:, None] == (rows >= 3)
    return attend(q, k, v, (behind >= 0) & (behind < 2) & same)


def recur(kind: type[torch.nn.RNNBase]) -> Torch:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        module = kind(6, 4, batch_first=True, dtype=x.dtype)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        result: torch.Tensor = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))[0]
        return result

    return run


CASES: dict[str, tuple[str, str, Torch]] = {
    "conv2d": (X + K, "conv2d(x, k, 2, 1)", lambda x, k: F.conv2d(x, k, None, 2, 1)),
    "dilated": (X + K, "conv2d(x, k, 1, 2, 2)", lambda x, k: F.conv2d(x, k, None, 1, 2, 2)),
    "grouped": (X + "weight k : T[o, 3, 3, 3]\n", "grouped_conv2d(x, k, 2, padding=1)",
                lambda x, k: F.conv2d(x, k, padding=1, groups=2)),
    "transposed": (X + "weight k : T[c, o, 3, 3]\n", "conv_transpose2d(x, k, 2, 1)",
                   lambda x, k: F.conv_transpose2d(x, k, stride=2, padding=1)),
    "max_pool2d": (X, "max_pool2d(x, 3, 2, 1)", lambda x: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool2d": (X, "avg_pool2d(x, 3, 2, 1)", lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "groupnorm": (X + "weight g : T[c]\nweight b : T[c]\n", "groupnorm(x, g, b, 3)",
                  lambda x, g, b: F.group_norm(x, 3, g, b)),
    "cumsum": (X, 'cumsum(x, "h")', lambda x: x.cumsum(2)),
    "cumprod": (X, 'cumprod(x, "h")', lambda x: x.cumprod(2)),
    "cummax": (X, 'cummax(x, "w")', lambda x: x.cummax(3).values),
    "logsumexp": (X, 'logsumexp(x, "c")', lambda x: x.logsumexp(1)),
    "variance": (X, 'variance(x, "w")', lambda x: x.var(3, correction=0)),
    "l2norm": (X, 'l2norm(x, "w")', lambda x: x.norm(dim=3)),
    "pad": (X, 'pad(x, "w", 2, 1)', lambda x: F.pad(x, (2, 1))),
    "softmax": (X, 'softmax(x, "c")', lambda x: x.softmax(1)),
    "layernorm": (X + "weight g : T[w]\nweight b : T[w]\n", "layernorm(x, g, b)",
                  lambda x, g, b: F.layer_norm(x, (8,), g, b)),
    "rmsnorm": (X + "weight g : T[w]\n", "rmsnorm(x, g)", lambda x, g: F.rms_norm(x, (8,), g, 1e-5)),
    "extremes": (X, 'max(x, "h", "w") + min(x, "h", "w") * prod(x, "h", "w")',
                 lambda x: x.amax((2, 3)) + x.amin((2, 3)) * x.flatten(2).prod(2)),
    "gelu": (X, "gelu(x) + gelu_tanh(x) * silu(x)", lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") * F.silu(x)),
    "matmul": ("input x : T[n, c, h]\ninput z : T[h, w]\n", "matmul(x, z)", torch.matmul),
    "attention": (QKV, "attention(q, k, v, causal=true)", attend),
    "packed": (QKV, "attention(q, k, v, causal=true, window=2, seq_lens=[3, 4])", attend_within),
    "rnn": (RNN.replace("R", "4"), "rnn(x, u, v, a, b)", recur(torch.nn.RNN)),
    "gru": (RNN.replace("R", "12"), "gru(x, u, v, a, b)", recur(torch.nn.GRU)),
    "lstm": (RNN.replace("R", "16"), "lstm(x, u, v, a, b)", recur(torch.nn.LSTM)),
}  # fmt: skip
ERRORS = {"f64": 1e-9, "f32": 2e-4}
"""Relative to the largest element of a gradient: the target in f64, and the rounding of some hundred sums in f32."""


def make(name: str, dtype: str) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """A model text with its arrays, and the gradients of torch."""
    tensors, call, meaning = CASES[name]
    result = "y, cells" if name == "lstm" else "y"
    graph = build(f"model m\n{SIZES}{tensors.replace('T[', f'{dtype}[')}output {result} = {call}\n", "m.ein")
    table = graph.tensor_table()
    shape, dims = table["y"].desc.shape, table["y"].desc.dims
    names = [tensor.name for tensor in graph.tensors if tensor.kind.value in ("input", "weight")]
    rng = np.random.default_rng(len(name))
    width = {"f32": "f4", "f64": "f8"}[dtype]
    arrays = {tensor: rng.standard_normal(table[tensor].desc.shape).astype(width) for tensor in names}
    over = ", ".join(f'"{dim}"' for dim in dims)
    text = f"model m\n{SIZES}{tensors.replace('T[', f'{dtype}[')}{result} = {call}\noutput loss = sum(sin(y), {over})\n"
    leaves = [torch.from_numpy(arrays[tensor]).requires_grad_() for tensor in names]
    values = meaning(*leaves)
    assert tuple(values.shape) == shape
    gradients = torch.autograd.grad(values.sin().sum(), leaves)
    return text, arrays, {tensor: g.numpy() for tensor, g in zip(names, gradients, strict=True)}, names


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ERRORS)
def test_definitions(name: str, dtype: str) -> None:
    text, arrays, expected, names = make(name, dtype)
    results = interpret(fuse(derive_gradients(build(text, "m.ein"), "loss", names)), arrays)
    require_close(results, expected, ERRORS[dtype])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sites", SITES)
def test_plans(name: str, sites: int) -> None:
    text, arrays, expected, names = make(name, "f32")
    plan = es.compile(text, "host", sites, selector="eindecomp", schedule="naive", train="loss", gradients=names)
    session = Session(plan.bundle)
    for tensor, array in arrays.items():
        session.load(tensor, array)
    session.execute()
    require_close({f"{tensor}.gradient": session.offload(f"{tensor}.gradient") for tensor in names}, expected, 2e-4)


def require_close(results: dict[str, np.ndarray], expected: dict[str, np.ndarray], error: float) -> None:
    for name, gradient in expected.items():
        scale = max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(results[f"{name}.gradient"], gradient, rtol=0, atol=error * scale, err_msg=name)


# ---- random graphs ----

IDS = [2, 0, 2, 1]
OPERATORS: list[tuple[str, Torch, int]] = [
    ("silu({0})", F.silu, 1),
    ("tanh({0})", torch.tanh, 1),
    ("sigmoid({0})", torch.sigmoid, 1),
    ("gelu({0})", F.gelu, 1),
    ("sin({0})", torch.sin, 1),
    ("abs({0})", torch.abs, 1),
    ("relu({0})", torch.relu, 1),
    ("softmax({0}, \"b\")", lambda x: x.softmax(1), 1),
    ("cumsum({0}, \"a\")", lambda x: x.cumsum(0), 1),
    ("{0} + {1}", torch.add, 2),
    ("tanh({0}) * {1}", lambda x, y: x.tanh() * y, 2),
    ("{0} - {1}", torch.sub, 2),
    ("max({0}, {1})", torch.maximum, 2),
    ("where({0} > 0.25, {0}, {1})", lambda x, y: torch.where(x > 0.25, x, y), 2),
]  # fmt: skip
EQUATIONS: list[tuple[str, Torch, int]] = [
    ("[a, b] = sum[k = 4](0.5 * {0}[a, k] * {1}[k, b])", lambda x, y: x @ y / 2, 2),
    ("[a, b] = {0}[b, a]", lambda x: x.T, 1),
    ("[a, b = 4] = max[k = 3]({0}[a, b + k - 1, outside = -inf])",
     lambda x: F.pad(x, (1, 1), value=-torch.inf).unfold(1, 3, 1).amax(2), 1),
    ("[a = 4, b] = {0}[(a + 3) % 4, b]", lambda x: x.roll(-3, 0), 1),
    ("[a = 4, b] = {0}[a // 2, b]", lambda x: x[torch.arange(4) // 2], 1),
    ("[a, b] = {0}[ids[a], b]", lambda x: x[torch.tensor(IDS)], 1),
    ("[a, b] = {0}[a, b] / (1.0 + sum[k = 4]({0}[a, k] * {0}[a, k]))", lambda x: x / (1 + (x * x).sum(1, True)), 1),
]  # fmt: skip


JUMPS = ("abs", "relu", "max", "where")
"""How operators begin whose slopes jump: where rounding leads to the other side, gradients differ by no rounding."""
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROUNDING = 4.0
"""How many times as far from gradients in f64 as torch's of a narrower type ours may be: sums have another order."""


def draw_graph(seed: int, smooth: bool = False) -> tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """The text of a model of 20 operators on matrices [4, 4], and its loss in torch; of those without JUMPS if it is to
    be `smooth`."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    calls: list[tuple[Torch, list[int]]] = []
    for count in range(2, 22):
        table = EQUATIONS if rng.random() < 0.4 else OPERATORS
        usable = [row for row in table if not smooth or not any(jump in row[0] for jump in JUMPS)]
        form, meaning, arity = usable[rng.integers(len(usable))]
        operands = [int(rng.integers(max(0, count - 4), count)) for _ in range(arity)]
        text = form.format(*(f"v{operand}" for operand in operands))
        lines.append(f"v{count}{text}" if table is EQUATIONS else f"v{count} = {text}")
        calls.append((meaning, operands))
    declared = "dim a = 4\ndim b = 4\ninput v0 : f64[a, b]\ninput v1 : f64[a, b]\ninput ids : i64[a]\n"
    end = 'total = v19 + v20 + v21 + v0 * v1\noutput loss = sum(total, "a", "b")\n'

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for meaning, operands in calls:
            values.append(meaning(*(values[operand] for operand in operands)))
        return (values[19] + values[20] + values[21] + x * y).sum()

    return f"model m\n{declared}" + "\n".join(lines) + f"\n{end}", run


def check_graph(seed: int) -> None:
    """In f64: the graph itself, and a plan of it for one, three or eight sites."""
    text, run = draw_graph(seed)
    arrays = draw_arrays(seed)
    expected = compute_by_torch(run, arrays, torch.float64)
    derived = fuse(derive_gradients(build(text, "m.ein"), "loss", list(arrays)))
    require_close(interpret(derived, {**arrays, "ids": np.array(IDS)}), expected, 1e-9)
    require_close(run_plan(text, seed, arrays), expected, 1e-9)


def check_rounded_graph(seed: int, dtype: str) -> None:
    """In a narrower type, from numbers of this type: a plan for one, three or eight sites is as near to gradients in
    f64 as torch's own in this type are, times ROUNDING, or as that many steps of the largest number of the graph."""
    kind = TYPES[dtype]
    text, run = draw_graph(seed, smooth=True)
    arrays = {name: round_to(kind, array) for name, array in draw_arrays(seed).items()}
    exact, rounded = (compute_by_torch(run, arrays, each) for each in (torch.float64, kind))
    away = max(float(np.abs(rounded[name] - exact[name]).max()) for name in exact)
    scale = max(1.0, *(float(np.abs(gradient).max()) for gradient in exact.values()))
    results = run_plan(text.replace("f64", dtype), seed, arrays)
    for name, gradient in exact.items():
        distance = float(np.abs(np.asarray(results[f"{name}.gradient"], "f8") - gradient).max())
        assert distance <= ROUNDING * max(away, torch.finfo(kind).eps / 2 * scale), name


def draw_arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((4, 4)) for name in ("v0", "v1")}


def round_to(kind: torch.dtype, array: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = torch.from_numpy(array).to(kind).double().numpy()
    return rounded


def compute_by_torch(run: Torch, arrays: dict[str, np.ndarray], kind: torch.dtype) -> dict[str, np.ndarray]:
    leaves = [torch.from_numpy(array).to(kind).requires_grad_() for array in arrays.values()]
    gradients = torch.autograd.grad(run(*leaves), leaves)
    return {name: gradient.double().numpy() for name, gradient in zip(arrays, gradients, strict=True)}


def run_plan(text: str, seed: int, arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    sites, wrt = SITES[seed % len(SITES)], list(arrays)
    plan = es.compile(text, "host", sites, selector="eindecomp", schedule="naive", train="loss", gradients=wrt)
    given = {t.name: t.dtype for t in plan.bundle.tensors if t.name in arrays}
    return plan.run(ids=np.array(IDS), **{name: arrays[name].astype(storage_dtype(given[name])) for name in arrays})


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    check_graph(seed)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6))
def test_rounded_random_graphs(seed: int, dtype: str) -> None:
    check_rounded_graph(seed, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 1000))
def test_more_random_graphs(seed: int) -> None:
    check_graph(seed)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6, 1000))
def test_more_rounded_random_graphs(seed: int, dtype: str) -> None:
    check_rounded_graph(seed, dtype)
