"""Attention by libraries: what they can express, that their form means the same, and which one is used."""

from __future__ import annotations

import contextlib
import ctypes
import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.ops.sequence_packing import SequencePacking
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.cuda import attention_libraries, fused_attention
from einc_runtime.kernels.cuda.fused_attention import AttentionLibraries
from einc_runtime.kernels.cuda.varlen_attention import as_varlen, attend_by_definition
from einc_runtime.kernels.gpu import GpuArray, GpuTarget
from einc_runtime.kernels.registry import prepare
from einc_runtime.kernels.views import strides_of
from tests.support.library_attention import attributes, by_pytorch, invoked, library
from tests.support.property_examples import examples

BF16 = np.dtype(ml_dtypes.bfloat16)


@examples(120)
@given(st.data())
def test_the_varlen_form_means_the_same_attention(data):
    q_lens = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    k_lens = [data.draw(st.integers(1, 8)) for _ in q_lens]
    window = data.draw(st.sampled_from([0, 0, 1, 3]))
    a = attributes(q_lens, k_lens, causal=data.draw(st.booleans()), window=window)
    ranges = []
    for lens in (q_lens, k_lens):
        low = data.draw(st.sampled_from([0, 0, data.draw(st.integers(0, sum(lens) - 1))]))
        ranges.append((low, data.draw(st.sampled_from([sum(lens), data.draw(st.integers(low + 1, sum(lens)))]))))
    invocation = invoked(a, *ranges)
    how = as_varlen(AttentionCall.parse(invocation))
    if how is not None:
        means_the_same(invocation, how)


def means_the_same(invocation, how):
    inputs, outputs = invocation.inputs, invocation.outputs
    kernel = prepare(invocation)
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    o, lse = library(*inputs, how)
    np.testing.assert_allclose(outputs[0].astype(float), o, atol=5e-3)
    np.testing.assert_allclose(outputs[1], lse, atol=1e-4)
    q, k, v = (x.transpose(1, 0, 2) for x in inputs)
    keys = slice(how.first_key, how.first_key + how.keys[-1])
    for found, own in zip(attend_by_definition(q, k[keys], v[keys], how), (o.transpose(1, 0, 2), lse), strict=True):
        np.testing.assert_allclose(found, own, atol=1e-9)


@pytest.mark.parametrize("window", [0, 3])
def test_parts_of_queries_with_the_keys_that_they_see_fit(window):
    """Cuts of attention along its queries, inside of sequences and across them."""
    q_lens, k_lens = (7, 12), (9, 12)
    packing = SequencePacking(q_lens, k_lens, True, window)
    for queries in ((0, 4), (4, 11), (11, 15), (15, 19), (7, 13), (2, 19)):
        keys = packing.seen_keys(queries, 1)
        invocation = invoked(attributes(list(q_lens), list(k_lens), causal=True, window=window), queries, keys)
        how = as_varlen(AttentionCall.parse(invocation))
        assert how is not None
        assert (how.first_key, how.queries[-1], how.keys[-1]) == (0, queries[1] - queries[0], keys[1] - keys[0])
        means_the_same(invocation, how)


def test_prefill_and_decoding_of_whole_sequences_fit():
    assert as_varlen(AttentionCall.parse(invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8)))) is not None
    how = as_varlen(AttentionCall.parse(invoked(attributes([1, 1], [7, 9], causal=True), (0, 2), (0, 16))))
    assert how is not None
    assert (how.queries, how.keys, how.longest) == ((0, 1, 2), (0, 7, 16), (1, 9))


def test_invocations_that_libraries_cannot_express():
    whole = attributes([8], [8], causal=True)
    fits = invoked(whole, (0, 8), (0, 8))
    assert as_varlen(AttentionCall.parse(fits)) is not None
    assert as_varlen(AttentionCall.parse(invoked(whole, (0, 8), (0, 8), np.float32))) is None
    assert as_varlen(AttentionCall.parse(invoked(whole, (0, 8), (0, 8), width=12))) is None
    assert as_varlen(AttentionCall.parse(invoked(whole | {"softcap": 2.0}, (0, 8), (0, 8)))) is None
    assert (
        as_varlen(AttentionCall.parse(invoked(whole, (0, 4), (0, 8)))) is None
    )  # its last query does not see its last key
    assert as_varlen(AttentionCall.parse(invoked(whole, (4, 8), (4, 8)))) is not None
    assert as_varlen(AttentionCall.parse(invoked(attributes([8], [4], causal=True), (0, 8), (0, 4)))) is None
    assert (
        as_varlen(AttentionCall.parse(invoked(attributes([4, 4], [4, 4]), (0, 8), (0, 4)))) is None
    )  # nothing for the second
    crooked = [np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape) for x in fits.inputs]
    assert as_varlen(AttentionCall.parse(fits.on(crooked, fits.outputs))) is None  # no 16 bytes can be read at once
    far = np.lib.stride_tricks.as_strided(fits.inputs[0], strides=(1 << 31, 16, 2))
    assert as_varlen(AttentionCall.parse(fits.on([far, *fits.inputs[1:]], fits.outputs))) is None
    masked = attributes([8], [8], extras=["mask"])
    assert as_varlen(AttentionCall.parse(invoked(masked, (0, 8), (0, 8), extras=[np.ones(8, bool)]))) is None


def gpu(arrays):
    names = {"float16": "f16", "float32": "f32"}
    return [GpuArray(x.ctypes.data, x.shape, strides_of(x.shape, x.itemsize), names[x.dtype.name], 0) for x in arrays]


TARGET = GpuTarget(0, "a GPU", (9, 0), 132)


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
    """PyTorch on the CPU, which records calls of CUDA; operands are read at their addresses."""
    real = pytest.importorskip("torch")
    log = []

    @contextlib.contextmanager
    def entering(*what):
        log.append(what)
        yield
        log.append(("end of", *what))

    numbers = itertools.count()

    class Pool:
        def __init__(self):
            self.id = (0, next(numbers))

        def use_count(self):
            return 1

    def refuse(pool, device):
        raise RuntimeError("this capture is not PyTorch's own")

    device = real.device
    cuda = {
        "synchronize": lambda device: log.append(("synchronize",)),
        "MemPool": Pool,
        "use_mem_pool": refuse,
        "device": lambda device: contextlib.nullcontext(),
        "ExternalStream": lambda stream, device: stream,
        "stream": lambda stream: entering("stream", stream),
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(real.cuda, name, stand_in, raising=False)
    pool_calls = {
        "_cuda_beginAllocateCurrentThreadToPool": "pool",
        "_cuda_endAllocateToPool": "end of",
        "_cuda_releasePool": "release",
    }
    for name, event in pool_calls.items():
        monkeypatch.setattr(
            real._C, name, lambda device, pool, event=event: log.append((event, pool, device)), raising=False
        )
    monkeypatch.setattr(real, "device", lambda *_: device("cpu"))

    def tensor(array, target):
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
        return real.from_numpy(np.frombuffer(memory, {"f16": "f2", "f32": "f4"}[array.dtype]).reshape(array.shape))

    monkeypatch.setattr(fused_attention, "_as_tensor", tensor)
    real.log = log
    return real


def given(monkeypatch, *libraries, notes=()):
    monkeypatch.setattr(attention_libraries, "find_libraries", lambda: (list(libraries), list(notes)))
    return AttentionLibraries()


CAUSAL = invoked(attributes([5, 3], [5, 3], causal=True), (0, 8), (0, 8))


def arguments(invocation=CAUSAL):
    return invocation.on(gpu(invocation.inputs), gpu(invocation.outputs)), TARGET


def test_a_launch_computes_on_its_stream_with_memory_of_its_pool_and_waits_for_nothing(torch, monkeypatch):
    libraries = given(monkeypatch, FakeLibrary())
    kernel = libraries.prepare(*arguments())
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
    assert pools[0] == pools[1] != pools[2]  # kernels of a stream follow one another, and share memory
    assert [entry[:2] for entry in torch.log[:5]] == [
        ("stream", 41), ("pool", pools[0]), ("end of", pools[0]), ("release", pools[0]), ("end of", "stream"),
    ]  # fmt: skip
    assert ("synchronize",) not in torch.log
    how = as_varlen(AttentionCall.parse(CAUSAL))
    o, lse = library(*inputs, how)
    np.testing.assert_allclose(outputs[0].astype(float), o, atol=5e-3)
    np.testing.assert_allclose(outputs[1], lse, atol=1e-4)
    libraries.close()


def test_a_pool_that_does_not_last_is_an_error(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda.MemPool, "use_count", lambda self: 0)
    launch = given(monkeypatch, FakeLibrary()).prepare(*arguments()).bind(0, 0)
    with pytest.raises(RuntimeError, match="did not outlast"):
        launch(41)


def test_pools_of_a_lost_device_are_left_alone(torch, monkeypatch):
    gone = []
    monkeypatch.setattr(torch.cuda.MemPool, "__del__", lambda self: gone.append(1), raising=False)
    for lost in (False, True):
        libraries = given(monkeypatch, FakeLibrary())
        libraries.prepare(*arguments()).bind(0, 0)(41)
        if lost:
            monkeypatch.setattr(torch.cuda, "synchronize", None)
        torch.log.clear()
        libraries.close()
        assert gone == [1]


def test_libraries_with_wrong_results_are_skipped_and_tested_once(torch, monkeypatch):
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
        description = libraries.prepare(*arguments()).description
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
        assert libraries.prepare(*arguments()).description.variant == f"attention f16, {variant}"
        assert libraries.versions == {"fake": "1.0"}
        assert libraries.give_up("attention failed:\n  operation not permitted")
        assert not libraries.give_up("again, before anything was taken")
        assert not libraries.versions
    assert libraries.prepare(*arguments()) is None
    assert libraries.notes == [
        "attention of fake (best) is not used: attention failed: operation not permitted",
        "attention of fake (second) is not used: attention failed: operation not permitted",
    ]
    assert not libraries.give_up("again")


def test_nothing_is_imported_for_what_no_library_can_do(monkeypatch):
    def imported():
        raise AssertionError("libraries were looked for")

    monkeypatch.setattr(attention_libraries, "find_libraries", imported)
    single = invoked(attributes([8], [8]), (0, 8), (0, 8), np.float32)
    assert AttentionLibraries().prepare(*arguments(single)) is None


def test_a_library_that_can_writes_where_the_plan_has_its_result(torch, monkeypatch):
    seen, copied, copy = [], [], torch.Tensor.copy_

    def attend(*operands):
        result, lse = by_pytorch(*operands)
        operands[-1][...] = result
        seen.append(operands[-1].data_ptr())
        return operands[-1], lse

    def count(tensor, other):
        copied.append(tuple(tensor.shape))
        return copy(tensor, other)

    launch = given(monkeypatch, FakeLibrary(attend)).prepare(*arguments()).bind(0, 0)
    CAUSAL.outputs[0][:] = 9
    monkeypatch.setattr(torch.Tensor, "copy_", count)
    launch(41)
    assert seen[-1] == CAUSAL.outputs[0].ctypes.data
    assert copied == [CAUSAL.outputs[1].shape]  # the lse alone
    o, _ = library(*CAUSAL.inputs, as_varlen(AttentionCall.parse(CAUSAL)))
    np.testing.assert_allclose(CAUSAL.outputs[0].astype(float), o, atol=5e-3)
