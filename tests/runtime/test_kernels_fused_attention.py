"""Which invocations of attention a library can express, and that what it is told means the same."""

from __future__ import annotations

import contextlib
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.bundle import Block
from runtime.kernels import fused_attention
from runtime.kernels.attention_signature import parse
from runtime.kernels.fused_attention import packed
from runtime.kernels.gpu_base import GpuArray, Target, strides_of
from runtime.kernels.registry import prepare

BF16 = np.dtype(ml_dtypes.bfloat16)


def attributes(q_lens, k_lens, **changes):
    base = {"causal": False, "scale": 0.5, "q_lens": list(q_lens), "k_lens": list(k_lens), "window": 0, "extras": []}
    return {**base, **changes}


def invoked(a, q_range, k_range, dtype=np.float16, width=8, extras=()):
    """Arrays and blocks of some queries and keys; four heads for two."""
    (q0, q1), (k0, k1) = q_range, k_range
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(h, n, width)).astype(dtype) for h, n in ((4, q1 - q0), (2, k1 - k0), (2, k1 - k0)))
    outputs = [np.zeros(q.shape, dtype), np.zeros(q.shape[:2], np.float32)]
    q_block = Block((0, q0, 0), (4, q1, width))
    k_block = Block((0, k0, 0), (2, k1, width))
    blocks = [q_block, k_block, k_block, *(Block((k0,), (k1,)) for _ in extras)]
    return a, [q, k, v, *extras], outputs, blocks, [q_block, Block((0, q0), (4, q1))]


def library(q, k, v, how):
    """What such a library computes: for every packed sequence, its last query at the place of its last key."""
    o, lse = np.zeros(q.shape), np.full(q.shape[:2], np.inf)
    group = len(q) // len(k)
    for n in range(len(how.queries) - 1):
        q0, q1 = how.queries[n : n + 2]
        k0, k1 = (key + how.first_key for key in how.keys[n : n + 2])
        place = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = np.arange(k1 - k0)[None, :]
        seen = np.ones((q1 - q0, k1 - k0), bool)
        if how.causal:
            seen &= key <= place
        if how.window:
            seen &= key > place - how.window
        for h in range(len(q)):
            scores = how.scale * q[h, q0:q1].astype(float) @ k[h // group, k0:k1].astype(float).T
            weights = np.where(seen, np.exp(scores), 0)
            lse[h, q0:q1] = np.log(weights.sum(1))
            o[h, q0:q1] = weights @ v[h // group, k0:k1].astype(float) / weights.sum(1, keepdims=True)
    return o, lse


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_what_a_library_is_told_means_the_same(data):
    q_lens = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    k_lens = [data.draw(st.integers(1, 8)) for _ in q_lens]
    window = data.draw(st.sampled_from([0, 0, 1, 3]))
    a = attributes(q_lens, k_lens, causal=data.draw(st.booleans()), window=window)
    ranges = []
    for lens in (q_lens, k_lens):
        low = data.draw(st.sampled_from([0, 0, data.draw(st.integers(0, sum(lens) - 1))]))
        ranges.append((low, data.draw(st.sampled_from([sum(lens), data.draw(st.integers(low + 1, sum(lens)))]))))
    arguments = invoked(a, *ranges)
    how = packed(parse(*arguments))
    if how is None:
        return
    _, inputs, outputs, *_ = arguments
    kernel = prepare("attention", *arguments)
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    o, lse = library(*inputs, how)
    np.testing.assert_allclose(outputs[0].astype(float), o, atol=5e-3)
    np.testing.assert_allclose(outputs[1], lse, atol=1e-4)


def test_prefill_and_decoding_of_whole_sequences_fit():
    assert packed(parse(*invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8)))) is not None
    how = packed(parse(*invoked(attributes([1, 1], [7, 9], causal=True), (0, 2), (0, 16))))
    assert how is not None
    assert (how.queries, how.keys, how.longest) == ((0, 1, 2), (0, 7, 16), (1, 9))


def test_what_does_not_fit():
    whole = attributes([8], [8], causal=True)
    fits = invoked(whole, (0, 8), (0, 8))
    assert packed(parse(*fits)) is not None
    assert packed(parse(*invoked(whole, (0, 8), (0, 8), np.float32))) is None
    assert packed(parse(*invoked(whole, (0, 8), (0, 8), width=12))) is None
    assert packed(parse(*invoked(whole, (0, 4), (0, 8)))) is None  # its last query does not see its last key
    assert packed(parse(*invoked(whole, (4, 8), (4, 8)))) is not None
    assert packed(parse(*invoked(attributes([8], [4], causal=True), (0, 8), (0, 4)))) is None
    assert packed(parse(*invoked(attributes([4, 4], [4, 4]), (0, 8), (0, 4)))) is None  # nothing for the second
    masked = attributes([8], [8], extras=["mask"])
    assert packed(parse(*invoked(masked, (0, 8), (0, 8), extras=[np.ones(8, bool)]))) is None


def gpu(arrays):
    names = {"float16": "f16", "float32": "f32"}
    return [GpuArray(x.ctypes.data, x.shape, strides_of(x.shape, x.itemsize), names[x.dtype.name], 0) for x in arrays]


class FakeLibrary:
    name, version = "fake", "1.0"

    def __init__(self):
        self.calls = []

    def attend(self, q, k, v, q_bounds, k_bounds, how):
        self.calls.append((q.shape, k.shape, how))
        return "o", "lse"


class FakeTensor:
    def __init__(self, shape, log):
        self.shape, self.log = tuple(shape), log

    def permute(self, *order):
        return FakeTensor([self.shape[n] for n in order], self.log)

    def __getitem__(self, part):
        return FakeTensor((len(range(self.shape[0])[part]), *self.shape[1:]), self.log)

    def copy_(self, other):
        self.log.append(("copy", self.shape, other))


@pytest.fixture
def torch(monkeypatch):
    """As much of torch as is used, writing down what is done on which stream and with which memory."""
    log = []
    fake = types.ModuleType("torch")

    @contextlib.contextmanager
    def entering(*what):
        log.append(what)
        yield

    cuda = types.SimpleNamespace(
        synchronize=lambda device: log.append(("synchronize",)),
        MemPool=lambda: "pool",
        use_mem_pool=lambda pool: entering("pool", pool),
        ExternalStream=lambda stream, device: stream,
        stream=lambda stream: entering("stream", stream),
    )
    fake.__dict__.update(
        cuda=cuda, device=lambda kind, number: number, int32="i32", float16="f16", bfloat16="bf16", log=log,
        no_grad=lambda: entering("no grad"),
        tensor=lambda values, dtype, device: tuple(values),
        zeros=lambda shape, dtype, device: FakeTensor(shape, log),
        as_tensor=lambda array, device: FakeTensor(array.shape, log),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_launches_stay_on_the_stream_and_wait_for_nothing(torch, monkeypatch):
    a, inputs, outputs, *blocks = invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8))
    monkeypatch.setattr(fused_attention, "_works", lambda *_: True)
    library = FakeLibrary()
    arguments = (a, gpu(inputs), gpu(outputs), *blocks, Target(0, "a GPU", (9, 0), 132))
    kernel = fused_attention.prepare(*arguments, [library])
    assert kernel is not None
    assert kernel.description.provider == "fake"
    launch = kernel.bind(0, 0)
    torch.log.clear()
    launch(41)
    assert torch.log[:2] == [("stream", 41), ("pool", "pool")]
    assert ("synchronize",) not in torch.log
    assert torch.log[-2:] == [("copy", (8, 4, 8), "o"), ("copy", (4, 8), "lse")]
    assert library.calls[0][:2] == ((8, 4, 8), (8, 2, 8))


def test_a_library_without_code_for_the_device_is_passed_over(torch):
    class Broken(FakeLibrary):
        def attend(self, *_):
            raise RuntimeError("no kernel image is available for execution on the device")

    a, inputs, outputs, *blocks = invoked(attributes([8], [8]), (0, 8), (0, 8))
    arguments = (a, gpu(inputs), gpu(outputs), *blocks, Target(0, "a GPU", (9, 0), 132))
    assert fused_attention.prepare(*arguments, [Broken()]) is None
    assert fused_attention.prepare(*arguments, []) is None


def test_libraries_are_asked_for_by_name(monkeypatch):
    monkeypatch.delenv(fused_attention.ENVIRONMENT, raising=False)
    assert fused_attention.libraries() == []
    monkeypatch.setenv(fused_attention.ENVIRONMENT, "nothing, flash")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert fused_attention.libraries() == []
    module = types.ModuleType("flash_attn")
    module.__version__, module.flash_attn_varlen_func = "2.8", print
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    assert [(x.name, x.version) for x in fused_attention.libraries()] == [("flash-attn", "2.8")]


def test_pytorch_has_the_function_that_is_called():
    torch = pytest.importorskip("torch")
    schema = str(torch.ops.aten._flash_attention_forward.default._schema)
    for name in ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "is_causal", "window_size_left", "softmax_logsumexp"):
        assert name in schema
