"""Attention by libraries: what they can express, that they are told the same, and what happens where they are wrong."""

from __future__ import annotations

import contextlib
import ctypes
import types
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.bundle import Block
from runtime.kernels.base import Invocation
from runtime.kernels.cuda import attention_libraries, fused_attention
from runtime.kernels.cuda.attention_libraries import ENVIRONMENT, Packed, TorchAttention, Useless, defined, flaw, small
from runtime.kernels.cuda.fused_attention import Libraries, packed
from runtime.kernels.gpu import GpuArray, Target
from runtime.kernels.registry import prepare
from runtime.kernels.signatures.attention import parse
from runtime.strides import strides_of

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
    return Invocation("attention", a, [q, k, v, *extras], outputs, blocks, [q_block, Block((0, q0), (4, q1))])


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


@settings(max_examples=120)
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
    invocation = invoked(a, *ranges)
    how = packed(parse(invocation))
    if how is None:
        return
    inputs, outputs = invocation.inputs, invocation.outputs
    kernel = prepare(invocation)
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    o, lse = library(*inputs, how)
    np.testing.assert_allclose(outputs[0].astype(float), o, atol=5e-3)
    np.testing.assert_allclose(outputs[1], lse, atol=1e-4)
    q, k, v = (x.transpose(1, 0, 2) for x in inputs)
    keys = slice(how.first_key, how.first_key + how.keys[-1])
    for found, own in zip(defined(q, k[keys], v[keys], how), (o.transpose(1, 0, 2), lse), strict=True):
        np.testing.assert_allclose(found, own, atol=1e-9)


def test_prefill_and_decoding_of_whole_sequences_fit():
    assert packed(parse(invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8)))) is not None
    how = packed(parse(invoked(attributes([1, 1], [7, 9], causal=True), (0, 2), (0, 16))))
    assert how is not None
    assert (how.queries, how.keys, how.longest) == ((0, 1, 2), (0, 7, 16), (1, 9))


def test_what_does_not_fit():
    whole = attributes([8], [8], causal=True)
    fits = invoked(whole, (0, 8), (0, 8))
    assert packed(parse(fits)) is not None
    assert packed(parse(invoked(whole, (0, 8), (0, 8), np.float32))) is None
    assert packed(parse(invoked(whole, (0, 8), (0, 8), width=12))) is None
    assert packed(parse(invoked(whole, (0, 4), (0, 8)))) is None  # its last query does not see its last key
    assert packed(parse(invoked(whole, (4, 8), (4, 8)))) is not None
    assert packed(parse(invoked(attributes([8], [4], causal=True), (0, 8), (0, 4)))) is None
    assert packed(parse(invoked(attributes([4, 4], [4, 4]), (0, 8), (0, 4)))) is None  # nothing for the second
    crooked = [np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape) for x in fits.inputs]
    assert packed(parse(fits.on(crooked, fits.outputs))) is None  # no 16 bytes can be read at once
    far = np.lib.stride_tricks.as_strided(fits.inputs[0], strides=(1 << 31, 16, 2))
    assert packed(parse(fits.on([far, *fits.inputs[1:]], fits.outputs))) is None
    masked = attributes([8], [8], extras=["mask"])
    assert packed(parse(invoked(masked, (0, 8), (0, 8), extras=[np.ones(8, bool)]))) is None


def gpu(arrays):
    names = {"float16": "f16", "float32": "f32"}
    return [GpuArray(x.ctypes.data, x.shape, strides_of(x.shape, x.itemsize), names[x.dtype.name], 0) for x in arrays]


TARGET = Target(0, "a GPU", (9, 0), 132)


def by_pytorch(q, k, v, q_bounds, k_bounds, how, *, corner=1, base=np.e, window=0, repeat="interleave"):
    """Attention with PyTorch's functions, sequence by sequence; the keywords make one mistake each."""
    import torch

    marks = [list(map(int, bounds)) for bounds in (q_bounds, k_bounds)]
    results, logs = [], []
    for q0, q1, k0, k1 in zip(marks[0], marks[0][1:], marks[1], marks[1][1:], strict=False):
        own, keys, values = (x[a:b].permute(1, 0, 2).double() for x, a, b in ((q, q0, q1), (k, k0, k1), (v, k0, k1)))
        group = own.shape[0] // keys.shape[0]
        keys, values = (
            x.repeat_interleave(group, 0) if repeat == "interleave" else x.repeat(group, 1, 1) for x in (keys, values)
        )
        place = torch.arange(q1 - q0)[:, None] + corner * ((k1 - k0) - (q1 - q0))
        key = torch.arange(k1 - k0)[None, :]
        seen = key <= place if how.causal else torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if how.window:
            seen = seen & (key > place - how.window + window)
        results.append(
            torch.nn.functional.scaled_dot_product_attention(own, keys, values, attn_mask=seen, scale=how.scale)
        )
        scores = (how.scale * own @ keys.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        logs.append(torch.logsumexp(scores, 2) / np.log(base))
    return torch.cat(results, 1).permute(1, 0, 2).to(q.dtype), torch.cat(logs, 1).float()


KINDS = [
    Packed((0, 512), (0, 512), 0, True, 0, 0.125),
    Packed((0, 512), (0, 900), 0, False, 0, 0.125),
    Packed((0, 300, 512), (0, 400, 900), 0, True, 0, 0.125),
    Packed((0, 1, 2), (0, 70, 90), 0, True, 0, 0.125),
    Packed((0, 512), (0, 512), 0, True, 100, 3.0),
    Packed((0, 512), (0, 512), 0, False, 0, 0.0),
]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_library_that_is_right_has_no_flaw(how, kind):
    pytest.importorskip("torch")
    assert flaw(by_pytorch, how, kind, 4, 64, "cpu") is None


@pytest.mark.parametrize(
    ("how", "mistake"),
    [
        (KINDS[2], {"corner": 0}),
        (KINDS[3], {"corner": 0}),
        (KINDS[0], {"base": 2}),
        (KINDS[4], {"window": 1}),
        (KINDS[1], {"repeat": "tiled"}),
    ],
)
def test_what_a_library_means_otherwise_is_seen(how, mistake):
    pytest.importorskip("torch")

    def attend(*given):
        return by_pytorch(*given, **mistake)

    assert "of a small test is off by" in flaw(attend, how, "f16", 4, 64, "cpu")


def test_other_shapes_and_failures_are_flaws():
    torch = pytest.importorskip("torch")

    def turned(*given):
        o, lse = by_pytorch(*given)
        return o, lse.T

    def broken(*_):
        raise RuntimeError("no kernel image is available for execution on the device")

    def empty(*given):
        o, lse = by_pytorch(*given)
        return o * torch.nan, lse

    assert "its lse has the shape (128, 8), and not (8, 128)" in flaw(turned, KINDS[0], "f16", 4, 64, "cpu")
    assert "no kernel image" in flaw(broken, KINDS[0], "f16", 4, 64, "cpu")
    assert "off by nan" in flaw(empty, KINDS[0], "f16", 4, 64, "cpu")


@pytest.mark.parametrize("how", KINDS)
def test_small_tests_are_of_the_same_kind(how):
    few = small(how)
    assert (few.causal, few.window > 0, few.scale) == (how.causal, how.window > 0, how.scale)
    assert few.one_square == how.one_square
    if how.one_square:
        assert (few.queries == few.keys) == (how.queries == how.keys)
        assert few.whole_tiles == how.whole_tiles
    assert (few.longest[0] == 1) == (how.longest[0] == 1)


# PyTorch's functions


@pytest.fixture
def pytorch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(attention_libraries, "require_cuda", lambda torch: None)
    return torch


def test_pytorch_takes_what_its_own_attention_would(pytorch, monkeypatch):
    library = TorchAttention()
    q, k = (pytorch.zeros(8, heads, 64, dtype=pytorch.float16) for heads in (8, 2))
    asked = []

    def choice(*tensors, **options):
        asked.append(([tuple(x.shape) for x in tensors[:3]], tensors[3:], options))
        return 3

    square = Packed((0, 8), (0, 8), 0, True, 0, 0.5)

    def names(how):
        return [name for name, _ in library.choices(q, k, k, how)]

    assert names(square) == ["flash"]  # what is true of a CPU, by PyTorch's own function
    with monkeypatch.context() as on_hopper:
        on_hopper.setattr(attention_libraries, "from_hopper_on", lambda torch, tensor: True)
        assert names(square) == ["cudnn", "flash"]
    monkeypatch.setattr(pytorch, "_fused_sdp_choice", choice)
    assert names(square) == ["cudnn", "flash"]
    assert asked == [
        ([(1, 8, 8, 64), (1, 2, 8, 64), (1, 2, 8, 64)], (None, 0.0, True), {"scale": 0.5, "enable_gqa": True})
    ]
    for other in (
        replace(square, window=3),
        replace(square, keys=(0, 6), queries=(0, 4)),  # its causal mask begins in the other corner
        replace(square, queries=(0, 4, 8), keys=(0, 4, 8)),
    ):
        assert names(other) == ["flash"]


@pytest.mark.parametrize("name", ["_by_cudnn", "_by_flash"])
def test_pytorchs_functions_are_called_as_they_are(pytorch, name):
    """PyTorch's own rules of shapes, for calls without memory: every argument is in its place."""
    q, k = (pytorch.empty(heads, 40, 64, dtype=pytorch.float16, device="meta").permute(1, 0, 2) for heads in (8, 2))
    bounds = pytorch.empty(2, dtype=pytorch.int32, device="meta")
    for how in (KINDS[0], KINDS[1]) if name == "_by_cudnn" else KINDS:
        o, lse = getattr(TorchAttention(), name)(q, k, k, bounds, bounds, how)
        assert (tuple(o.shape), o.dtype) == ((40, 8, 64), pytorch.float16)
        assert (tuple(lse.shape), lse.dtype) == ((8, 40), pytorch.float32)
    schema = str(pytorch.ops.aten._flash_attention_forward.default._schema)
    for argument in ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "is_causal", "window_size_left", "softmax_logsumexp"):
        assert argument in schema


def test_a_pytorch_without_gpus_is_passed_over(monkeypatch):
    torch = types.SimpleNamespace(
        __version__="2.9", version=types.SimpleNamespace(cuda=None), cuda=types.SimpleNamespace(is_available=lambda: 0)
    )
    with pytest.raises(ImportError):
        attention_libraries.require_cuda(torch)
    torch.version.cuda = "12.8"
    with pytest.raises(Useless, match=r"PyTorch 2.9 finds no GPU"):
        attention_libraries.require_cuda(torch)
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, use_mem_pool=None, MemPool=object)
    with pytest.raises(Useless, match="no pools of memory that last"):
        attention_libraries.require_cuda(torch)


# What is taken


class FakeLibrary:
    name, version = "fake", "1.0"

    def __init__(self, attend=by_pytorch):
        self.attend, self.calls = attend, 0

    def choices(self, q, k, v, how):
        def attend(*given):
            self.calls += 1
            return self.attend(*given)

        return [("best", attend)]


@pytest.fixture
def torch(monkeypatch):
    """PyTorch on the CPU, which writes down what would be asked of CUDA; operands are where their addresses say."""
    real = pytest.importorskip("torch")
    log = []

    @contextlib.contextmanager
    def entering(*what):
        log.append(what)
        yield
        log.append(("end of", *what))

    class Pool:
        def use_count(self):
            return 1

    device = real.device
    cuda = {
        "synchronize": lambda device: log.append(("synchronize",)),
        "MemPool": Pool,
        "use_mem_pool": lambda pool, device: entering("pool", pool),
        "device": lambda device: contextlib.nullcontext(),
        "ExternalStream": lambda stream, device: stream,
        "stream": lambda stream: entering("stream", stream),
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(real.cuda, name, stand_in, raising=False)
    monkeypatch.setattr(real, "device", lambda *_: device("cpu"))

    def tensor(array, target):
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
        return real.from_numpy(np.frombuffer(memory, {"f16": "f2", "f32": "f4"}[array.dtype]).reshape(array.shape))

    monkeypatch.setattr(fused_attention, "_tensor", tensor)
    real.log = log
    return real


def given(monkeypatch, *libraries, notes=()):
    monkeypatch.setattr(attention_libraries, "libraries", lambda: (list(libraries), list(notes)))
    return Libraries()


CAUSAL = invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8))


def arguments(invocation=CAUSAL):
    return invocation.on(gpu(invocation.inputs), gpu(invocation.outputs)), TARGET


def test_a_launch_computes_on_its_stream_with_memory_of_its_pool_and_waits_for_nothing(torch, monkeypatch):
    libraries = given(monkeypatch, FakeLibrary())
    kernel = libraries.prepared(*arguments())
    assert (kernel.description.provider, kernel.description.variant) == ("fake", "attention f16, best")
    assert libraries.versions == {"fake": "1.0"}
    inputs, outputs = CAUSAL.inputs, CAUSAL.outputs
    launch = kernel.bind(0, 0)
    for array in outputs:
        array[:] = 9
    torch.log.clear()
    for stream in (41, 41, 42):
        launch(stream)
    pools = [entry[1] for entry in torch.log if entry[0] == "pool"]
    assert pools[0] is pools[1] is not pools[2]  # kernels of a stream follow one another, and share memory
    assert [entry[:2] for entry in torch.log[:4]] == [
        ("stream", 41), ("pool", pools[0]), ("end of", "pool"), ("end of", "stream"),
    ]  # fmt: skip
    assert ("synchronize",) not in torch.log
    how = packed(parse(CAUSAL))
    o, lse = library(*inputs, how)
    np.testing.assert_allclose(outputs[0].astype(float), o, atol=5e-3)
    np.testing.assert_allclose(outputs[1], lse, atol=1e-4)
    libraries.close()


def test_a_pool_that_does_not_last_is_an_error(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda.MemPool, "use_count", lambda self: 0)
    launch = given(monkeypatch, FakeLibrary()).prepared(*arguments()).bind(0, 0)
    with pytest.raises(RuntimeError, match="did not outlast"):
        launch(41)


def test_pools_of_a_lost_device_are_left_alone(torch, monkeypatch):
    gone = []
    monkeypatch.setattr(torch.cuda.MemPool, "__del__", lambda self: gone.append(1), raising=False)
    for lost in (False, True):
        libraries = given(monkeypatch, FakeLibrary())
        libraries.prepared(*arguments()).bind(0, 0)(41)
        if lost:
            monkeypatch.setattr(torch.cuda, "synchronize", None)
        torch.log.clear()
        libraries.close()
        assert gone == [1]


def test_libraries_that_are_wrong_are_passed_over_and_asked_once(torch, monkeypatch):
    def wrong(*given):
        o, lse = by_pytorch(*given)
        return o, lse / np.log(2)

    class Refusing(FakeLibrary):
        name = "refusing"

        def choices(self, q, k, v, how):
            raise ValueError("nothing of the kind")

    class Two(FakeLibrary):
        def choices(self, q, k, v, how):
            return [("bad", wrong), *super().choices(q, k, v, how)]

    bad, good = FakeLibrary(wrong), Two()
    good.name = "good"
    libraries = given(monkeypatch, Refusing(), bad, good, notes=["attention of old is not used: too old"])
    for _ in range(3):
        description = libraries.prepared(*arguments()).description
        assert (description.provider, description.variant) == ("good", "attention f16, best")
    assert (bad.calls, good.calls) == (1, 1)
    assert libraries.notes[0] == "attention of old is not used: too old"
    assert libraries.notes[1] == "attention of refusing 1.0 is not used: ValueError: nothing of the kind"
    assert libraries.notes[2].startswith("attention of fake 1.0 is not used: best: its lse of a small test is off by ")
    assert libraries.notes[3].startswith("attention of good 1.0 is not used: bad: its lse of a small test is off by ")
    assert len(libraries.notes) == 4


def test_after_giving_up_the_next_one_is_taken_until_there_is_none(torch, monkeypatch):
    class Two(FakeLibrary):
        def choices(self, q, k, v, how):
            return [*super().choices(q, k, v, how), ("second", by_pytorch)]

    libraries = given(monkeypatch, Two())
    assert not libraries.give_up("whatever")  # nothing was taken, so that nothing would be different
    for variant in ("best", "second"):
        assert libraries.prepared(*arguments()).description.variant == f"attention f16, {variant}"
        assert libraries.versions == {"fake": "1.0"}
        assert libraries.give_up("attention failed:\n  operation not permitted")
        assert not libraries.give_up("again, before anything was taken")
        assert not libraries.versions
    assert libraries.prepared(*arguments()) is None
    assert libraries.notes == [
        "attention of fake (best) is not used: attention failed: operation not permitted",
        "attention of fake (second) is not used: attention failed: operation not permitted",
    ]
    assert not libraries.give_up("again")


def test_nothing_is_imported_for_what_no_library_can_do(monkeypatch):
    def imported():
        raise AssertionError("libraries were looked for")

    monkeypatch.setattr(attention_libraries, "libraries", imported)
    single = invoked(attributes([8], [8]), (0, 8), (0, 8), np.float32)
    assert Libraries().prepared(*arguments(single)) is None


def test_libraries_are_in_the_order_of_the_environment(monkeypatch):
    made = []

    def module(name, error=None):
        class Made:
            version = "1"

            def __init__(self):
                made.append(name)
                if error is not None:
                    raise error

        Made.name = name
        return "json", Made

    monkeypatch.setattr(attention_libraries, "LIBRARIES", {"flash": module("flash"), "torch": module("torch")})
    for value, expected in {
        None: ["flash", "torch"],
        "torch, flash": ["torch", "flash"],
        "torch": ["torch"],
        "torch,einc,flash": ["torch"],
        "einc": [],
        "": [],
    }.items():
        if value is None:
            monkeypatch.delenv(ENVIRONMENT, raising=False)
        else:
            monkeypatch.setenv(ENVIRONMENT, value)
        made.clear()
        found, notes = attention_libraries.libraries()
        assert [library.name for library in found] == made == expected
        assert notes == []
    monkeypatch.setenv(ENVIRONMENT, "flsh")
    assert attention_libraries.libraries() == ([], ["EINC_ATTENTION names 'flsh', and there are flash, torch, einc"])
    monkeypatch.delenv(ENVIRONMENT)
    broken = {
        "flash": module("flash", RuntimeError("undefined\nsymbol")),
        "torch": module("torch", ImportError("a build for the CPU")),
        "other": ("a_module_that_is_not_there", None),
    }
    assert attention_libraries.passed_over("torch", Useless("no GPU")) == "attention of torch is not used: no GPU"
    monkeypatch.setattr(attention_libraries, "LIBRARIES", broken)
    assert attention_libraries.libraries() == (
        [],
        ["attention of flash is not used: RuntimeError: undefined symbol"],
    )


def test_a_pytorch_for_cpus_is_not_imported(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "torch")
    monkeypatch.setattr(attention_libraries, "find_spec", lambda module: module)
    made = []
    monkeypatch.setattr(attention_libraries, "LIBRARIES", {"torch": ("torch", lambda: made.append(1) or FakeLibrary())})
    for version, count in (("2.9.1+cpu", 0), ("2.9.1+cu130", 1), ("2.9.1", 2)):
        monkeypatch.setattr(attention_libraries.metadata, "version", lambda module, version=version: version)
        found, notes = attention_libraries.libraries()
        assert (len(made), len(found), notes) == (count, min(count, 1), [])


def test_flash_attn_is_called_as_its_function_is():
    calls = []
    module = types.ModuleType("flash_attn")

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        calls.append((max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, return_attn_probs))
        return "o", "lse", "probabilities"

    module.flash_attn_varlen_func = flash_attn_varlen_func
    library = object.__new__(attention_libraries.FlashAttention)
    library._forward = flash_attn_varlen_func
    ((variant, attend),) = library.choices(None, None, None, KINDS[2])
    assert (variant, attend(1, 2, 3, 4, 5, KINDS[2])) == ("varlen", ("o", "lse"))
    attend(1, 2, 3, 4, 5, KINDS[4])
    assert calls == [
        (300, 500, 0.0, 0.125, True, (-1, 0), True),
        (512, 512, 0.0, 3.0, True, (99, 0), True),
    ]
