"""The same computations in PyTorch, whole: scaled_dot_product_attention, eager or compiled with static shapes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from einc_runtime.dtypes import Array
from einc_runtime.plan.schema import Bundle
from tests.bench.cases import MODULES
from tests.bench.inputs import (
    EXPERT_EPS,
    GROUP_NORM_EPS,
    GROUPS,
    TOP_K,
    constants,
    count_stages,
    drawn,
    products,
    sentences,
)
from tests.bench.operators import OPERATORS, scan_chunk


def prepared(bundle: Bundle, folder: str, threads: int, *, compiled: bool):
    torch.set_num_threads(threads)
    if bundle.model in MODULES:
        from tests.bench.modules import make_module

        function, arguments = make_module(bundle.model)
    elif folder:
        function, arguments = _encoder(Path(folder), *sentences(bundle))
    elif bundle.model.startswith("chain"):
        function, arguments = _chain(bundle)
    elif bundle.model == "convnet":
        function, arguments = _convnet(bundle)
    elif bundle.model == "moe":
        function, arguments = _experts(bundle)
    elif bundle.model in OPERATORS:
        function, arguments = _operator(bundle, compiled=compiled)
    else:
        function, arguments = _block(bundle)
    if compiled and bundle.model != "selective_scan":  # which is compiled in parts
        function = torch.compile(function, fullgraph=True, dynamic=False)
    result = None

    def run() -> None:
        nonlocal result
        with torch.inference_mode():
            result = function(*arguments)

    return run, lambda: result.float().numpy()


def as_tensor(array: Array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype("f4")).to(torch.bfloat16)
    return torch.from_numpy(array)


def _operator(bundle: Bundle, *, compiled: bool):
    function = partial(OPERATORS[bundle.model].function, torch)
    if bundle.model == "selective_scan":
        chunk = torch.compile(scan_chunk, fullgraph=True, dynamic=False) if compiled else scan_chunk
        function = partial(function, run=chunk)
    return function, [as_tensor(array) for array in drawn(bundle).values()]


def _chain(bundle: Bundle):
    steps = products(bundle)
    given = {name: as_tensor(array) for name, array in drawn(bundle).items()}

    def chain(values: dict[str, torch.Tensor]) -> torch.Tensor:
        values = dict(values)
        for left, right, result in steps:
            values[result] = values[left] @ values[right]
        return values[steps[-1][-1]]

    return chain, (given,)


def _block(bundle: Bundle):
    w = {name: as_tensor(array) for name, array in drawn(bundle).items()}
    eps, theta = constants(bundle)["eps"], constants(bundle)["theta"]
    (heads, d_head, d_model), heads_kv, tokens = w["w_q"].shape, w["w_k"].shape[0], w["x"].shape[0]
    flat = {name: w[name].reshape(-1, d_model) for name in ("w_q", "w_k", "w_v")}
    w_o = w["w_o"].reshape(d_model, -1)
    angles = torch.arange(tokens)[:, None] * theta ** (-torch.arange(0, d_head, 2) / d_head)
    cosine, sine = angles.cos().to(w["x"].dtype), angles.sin().to(w["x"].dtype)

    def rope(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def split(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(tokens, count, d_head).transpose(0, 1)

    def block(x: torch.Tensor) -> torch.Tensor:
        h = F.rms_norm(x, (d_model,), w["g_attn"], eps)
        q = rope(split(F.linear(h, flat["w_q"]), heads))
        k = rope(split(F.linear(h, flat["w_k"]), heads_kv))
        v = split(F.linear(h, flat["w_v"]), heads_kv)
        k, v = (one.repeat_interleave(heads // heads_kv, 0) for one in (k, v))
        a = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        r = x + F.linear(a.transpose(0, 1).reshape(tokens, -1), w_o)
        n = F.rms_norm(r, (d_model,), w["g_ffn"], eps)
        return r + F.linear(F.silu(F.linear(n, w["w_gate"])) * F.linear(n, w["w_up"]), w["w_down"])

    return block, (w["x"],)


def _convnet(bundle: Bundle):
    w = {name: as_tensor(array) for name, array in drawn(bundle).items()}
    stages = range(count_stages(bundle))

    def network(images: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.conv2d(images, w["stem"], stride=2, padding=3))
        for stage in stages:
            first, second, gain, bias = (w[f"stage.{stage}.{name}"] for name in ("first", "second", "gain", "bias"))
            h = F.relu(F.group_norm(F.conv2d(x, first, padding=1), GROUPS, gain, bias, GROUP_NORM_EPS))
            x = F.relu(x + F.conv2d(h, second, padding=1))
        return F.max_pool2d(x, 2).mean((2, 3)) @ w["head"]

    return network, (w["images"],)


def _experts(bundle: Bundle):
    """As transformers computes it where there is no kernel for groups: expert by expert, the rows that picked it."""
    w = {name: as_tensor(array) for name, array in drawn(bundle).items()}
    both = torch.cat([w["w_gate"], w["w_up"]], 1)

    def layer(x: torch.Tensor) -> torch.Tensor:
        h = F.rms_norm(x, x.shape[-1:], w["gain"], EXPERT_EPS)
        chances, picks = F.linear(h.float(), w["w_router"]).softmax(-1).topk(TOP_K, -1)
        shares = (chances / chances.sum(-1, keepdim=True)).to(x.dtype)
        y = x.clone()
        for expert in range(len(both)):
            rows, slots = torch.where(picks == expert)
            gate, up = F.linear(h[rows], both[expert]).chunk(2, -1)
            act = F.silu(gate) * up * shares[rows, slots, None]
            y.index_add_(0, rows, F.linear(act, w["w_down"][expert]))
        return y

    return layer, (w["x"],)


def _encoder(folder: Path, *inputs: Array):
    import transformers

    model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    ids, mask = (torch.from_numpy(array) for array in inputs)
    weight = mask[..., None].float()

    def encode(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return F.normalize((hidden * weight).sum(1) / weight.sum(1))

    return encode, (ids, mask.long())
