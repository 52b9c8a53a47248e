"""Definitions of the library beside those of PyTorch, on one site and on several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from einc_runtime import Session
from tests.support.compiled_plans import compiled

SIZES = "dim n = 3\ndim c = 6\ndim h = 11\ndim w = 8\ndim o = 4\ndim t = 5\n"
X, K = "input x : f32[n, c, h, w]\n", "weight k : f32[o, c, 3, 3]\n"

CASES: dict[str, tuple[str, str, Callable[..., torch.Tensor]]] = {
    "conv2d": (X + K, "conv2d(x, k, padding=1)", lambda x, k: F.conv2d(x, k, padding=1)),
    "strided": (X + K, "conv2d(x, k, 2, 2, 2)", lambda x, k: F.conv2d(x, k, None, 2, 2, 2)),
    "grouped": (X + "weight k : f32[o, 3, 3, 3]\n", "grouped_conv2d(x, k, 2, padding=1)",
                lambda x, k: F.conv2d(x, k, padding=1, groups=2)),
    "depthwise": (X + "weight k : f32[c, 3, 3]\n", "depthwise_conv2d(x, k)",
                  lambda x, k: F.conv2d(x, k[:, None], groups=6)),
    "transposed": (X + "weight k : f32[c, o, 3, 3]\n", "conv_transpose2d(x, k, 2, 1)",
                   lambda x, k: F.conv_transpose2d(x, k, stride=2, padding=1)),
    "conv1d": ("input x : f32[n, c, h]\nweight k : f32[o, c, 3]\n", "conv1d(x, k, 1, 1)",
               lambda x, k: F.conv1d(x, k, padding=1)),
    "conv3d": ("input x : f32[n, o, t, h, w]\nweight k : f32[c, o, 3, 3, 2]\n", "conv3d(x, k, 2, 1)",
               lambda x, k: F.conv3d(x, k, stride=2, padding=1)),
    "max_pool2d": (X, "max_pool2d(x, 3, 2, 1)", lambda x: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool2d": (X, "avg_pool2d(x, 3, 2, 1)", lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "groupnorm": (X + "weight g : f32[c]\nweight b : f32[c]\n", "groupnorm(x, g, b, 3)",
                  lambda x, g, b: F.group_norm(x, 3, g, b)),
    "cumsum": (X, 'cumsum(x, "h")', lambda x: x.cumsum(2)),
    "cummax": (X, 'cummax(x, "w")', lambda x: x.cummax(3).values),
    "logsumexp": (X, 'logsumexp(x, "c")', lambda x: x.logsumexp(1)),
    "variance": (X, 'variance(x, "w")', lambda x: x.var(3, correction=0)),
    "argmin": (X, 'argmin(x, "w")', lambda x: x.argmin(3)),
    "any": (X, 'cast(any(x > 1.5, "h"), "i32")', lambda x: (x > 1.5).any(2).int()),
    "all": (X, 'cast(all(x > -1.0, "w"), "i32")', lambda x: (x > -1).all(3).int()),
    "roll": (X, 'roll(x, "h", 4)', lambda x: x.roll(4, 2)),
    "tril": (X, "tril(x, 2)", lambda x: x.tril(2)),
    "causal softmax": (X, "softmax(causal_mask(x))", lambda x: F.softmax(
        x.masked_fill(~torch.ones(11, 8, dtype=torch.bool).tril(-3), -1e30), -1) * (torch.arange(11) > 2)[:, None]),
}  # fmt: skip


def _run(module: torch.nn.RNNBase, x: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What a module of PyTorch computes with these weights and biases, and initial states, if there are more."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    started = tuple(part[None] for part in parts[4:])
    state = started if len(started) > 1 else started[0] if started else None
    weights = dict(zip(names, parts, strict=False))
    with torch.no_grad():
        return torch.func.functional_call(module, weights, (x, state) if state is not None else (x,))[0]


def _declare(gates: int, starts: int) -> str:
    weights = f"input x : f32[n, h, c]\nweight wi : f32[{gates}, c]\nweight u : f32[{gates}, t]\n"
    biases = f"weight a : f32[{gates}]\nweight b : f32[{gates}]\n"
    return weights + biases + "".join(f"input s{k} : f32[n, t]\n" for k in range(starts))


CASES |= {
    "rnn": (_declare(5, 0), "rnn(x, wi, u, a, b)", lambda x, *p: _run(torch.nn.RNN(6, 5, batch_first=True), x, p)),
    "gru": (_declare(15, 1), "gru(x, wi, u, a, b, s0)", lambda x, *p: _run(torch.nn.GRU(6, 5, batch_first=True), x, p)),
    "lstm": (_declare(20, 2), "lstm(x, wi, u, a, b, s0, s1)",
             lambda x, *p: _run(torch.nn.LSTM(6, 5, batch_first=True), x, p)),
}  # fmt: skip


@pytest.mark.parametrize("sites", [1, 3, 8])
def test_aggregations_of_tuples_are_those_of_torch(sites: int) -> None:
    text = (
        f"model m\n{SIZES}{X}k[n, c], m[n, c], s[n, c] = moments[i, j](1.0, x[n, c, i, j], 0.0)\noutput m\n"
        "output v = s / k\noutput least[n, h, w], at[n, h, w] = smallest[j](x[n, j, h, w], j)\n"
        "output most[n, c, h], where_most[n, c, h] = largest[j](x[n, c, h, j], j)\n"
    )
    x = np.random.default_rng(sites).standard_normal((3, 6, 11, 8)).astype("f4")
    found = Session(compiled(text, sites)).run({"x": x})
    variance, mean = torch.var_mean(torch.from_numpy(x), (2, 3), correction=0)
    assert np.allclose(found["m"], mean, atol=1e-6)
    assert np.allclose(found["v"], variance, atol=1e-6)
    tensor = torch.from_numpy(x)
    for value, position, best in (("least", "at", tensor.min(1)), ("most", "where_most", tensor.max(3))):
        assert (found[value] == best.values.numpy()).all()
        assert (found[position] == best.indices.numpy()).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sites", [1, 3, 8])
@pytest.mark.parametrize("name", CASES)
def test_the_library_computes_what_torch_does(name: str, sites: int) -> None:
    declared, call, torchs = CASES[name]
    results = "y, cells" if name == "lstm" else "y"
    bundle = compiled(f"model m\n{SIZES}{declared}output {results} = {call}\n", sites)
    rng = np.random.default_rng(sites)
    arrays = {t.name: rng.standard_normal(t.shape).astype("f4") for t in bundle.tensors if t.kind != "value"}
    found = Session(bundle).run(arrays)["y"]
    expected = torchs(*(torch.from_numpy(array) for array in arrays.values())).numpy()
    if name == "causal softmax":  # queries that see no key have no softmax
        found = np.nan_to_num(found, nan=0.0)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 2e-5 * max(1, np.abs(expected).max())
