"""Libraries of attention: wrong results are detected, and functions get the arguments that they expect."""

from __future__ import annotations

import inspect
import sys
import types
from dataclasses import replace

import pytest

from einc_runtime.environment import ATTENTION
from einc_runtime.kernels.cuda import attention_libraries
from einc_runtime.kernels.cuda.attention_libraries import TorchAttention
from einc_runtime.kernels.cuda.varlen_attention import UnusableLibrary, VarlenAttention, find_flaw
from tests.support.library_attention import KINDS, by_pytorch


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_library_that_is_right_has_no_flaw(how, kind):
    pytest.importorskip("torch")
    assert find_flaw(by_pytorch, how, kind, 4, 64, "cpu") is None


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
def test_a_library_with_another_meaning_is_found(how, mistake):
    pytest.importorskip("torch")

    def attend(*given):
        return by_pytorch(*given, **mistake)

    assert "of a small test is off by" in find_flaw(attend, how, "f16", 4, 64, "cpu")


def test_results_of_other_shapes_and_failures_are_flaws():
    torch = pytest.importorskip("torch")

    def turned(*given):
        o, lse = by_pytorch(*given)
        return o, lse.T

    def broken(*_):
        raise RuntimeError("no kernel image is available for execution on the device")

    def empty(*given):
        o, lse = by_pytorch(*given)
        return o * torch.nan, lse

    assert "its lse has the shape (128, 8), and not (8, 128)" in find_flaw(turned, KINDS[0], "f16", 4, 64, "cpu")
    assert "no kernel image" in find_flaw(broken, KINDS[0], "f16", 4, 64, "cpu")
    assert "off by nan" in find_flaw(empty, KINDS[0], "f16", 4, 64, "cpu")


@pytest.mark.parametrize("how", KINDS)
def test_small_tests_are_of_the_same_kind(how):
    few = how.small
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


def test_pytorch_uses_the_kernel_of_its_own_attention(pytorch, monkeypatch):
    library = TorchAttention()
    q, k = (pytorch.zeros(8, heads, 64, dtype=pytorch.float16) for heads in (8, 2))
    asked = []

    def choice(*tensors, **options):
        asked.append(([tuple(x.shape) for x in tensors[:3]], tensors[3:], options))
        return 3

    square = VarlenAttention((0, 8), (0, 8), 0, True, 0, 0.5)

    def names(how):
        return [name for name, _ in library.choices(q, k, k, how)]

    assert names(square) == ["flash"]  # what is true of a CPU, by PyTorch's own function
    with monkeypatch.context() as on_hopper:
        on_hopper.setattr(attention_libraries, "is_hopper_or_later", lambda torch, tensor: True)
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
def test_pytorchs_functions_get_the_arguments_in_order(pytorch, name):
    """PyTorch infers the shapes of calls without memory, which checks that every argument is in its place."""
    q, k = (pytorch.empty(heads, 40, 64, dtype=pytorch.float16, device="meta").permute(1, 0, 2) for heads in (8, 2))
    bounds = pytorch.empty(2, dtype=pytorch.int32, device="meta")
    for how in (KINDS[0], KINDS[1]) if name == "_by_cudnn" else KINDS:
        o, lse = getattr(TorchAttention(), name)(q, k, k, bounds, bounds, how, pytorch.empty_like(q))
        assert (tuple(o.shape), o.dtype) == ((40, 8, 64), pytorch.float16)
        assert (tuple(lse.shape), lse.dtype) == ((8, 40), pytorch.float32)
    schema = str(pytorch.ops.aten._flash_attention_forward.default._schema)
    for argument in ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "is_causal", "window_size_left", "softmax_logsumexp"):
        assert argument in schema


def test_a_pytorch_without_gpus_is_skipped(monkeypatch):
    torch = types.SimpleNamespace(
        __version__="2.9", version=types.SimpleNamespace(cuda=None), cuda=types.SimpleNamespace(is_available=lambda: 0)
    )
    with pytest.raises(ImportError):
        attention_libraries.require_cuda(torch)
    torch.version.cuda = "12.8"
    with pytest.raises(UnusableLibrary, match=r"PyTorch 2.9 finds no GPU"):
        attention_libraries.require_cuda(torch)
    torch._C = types.SimpleNamespace()
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, MemPool=object)
    with pytest.raises(UnusableLibrary, match="no pools of memory that last"):
        attention_libraries.require_cuda(torch)


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
            monkeypatch.delenv(ATTENTION, raising=False)
        else:
            monkeypatch.setenv(ATTENTION, value)
        made.clear()
        found, notes = attention_libraries.find_libraries()
        assert [library.name for library in found] == made == expected
        assert notes == []
    monkeypatch.setenv(ATTENTION, "flsh")
    assert attention_libraries.find_libraries() == (
        [],
        ["EINC_ATTENTION names 'flsh', and there are flash, torch, einc"],
    )
    monkeypatch.delenv(ATTENTION)
    broken = {
        "flash": module("flash", RuntimeError("undefined\nsymbol")),
        "torch": module("torch", ImportError("a build for the CPU")),
        "other": ("a_module_that_is_not_there", None),
    }
    assert (
        attention_libraries.describe_rejection("torch", UnusableLibrary("no GPU"))
        == "attention of torch is not used: no GPU"
    )
    monkeypatch.setattr(attention_libraries, "LIBRARIES", broken)
    assert attention_libraries.find_libraries() == (
        [],
        ["attention of flash is not used: RuntimeError: undefined symbol"],
    )


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), ["flash-attn varlen", "torch flash", "torch cudnn", "flash-attn-3 varlen", "flash-attn-4 cute"]),
        ((9, 0), ["flash-attn-3 varlen", "flash-attn-4 cute", "torch cudnn", "flash-attn varlen", "torch flash"]),
        ((10, 3), ["flash-attn-4 cute", "torch cudnn", "flash-attn-3 varlen", "flash-attn varlen", "torch flash"]),
    ],
)
def test_the_order_of_libraries_is_that_of_the_architecture(monkeypatch, capability, expected):
    monkeypatch.delenv(ATTENTION, raising=False)
    there = {
        "flash-attn": ["varlen"],
        "torch": ["flash", "cudnn"],
        "flash-attn-3": ["varlen"],
        "flash-attn-4": ["cute"],
    }
    choices = [(types.SimpleNamespace(name=name), variant, None) for name, own in there.items() for variant in own]
    found = attention_libraries.sort_choices(choices, capability)
    assert [f"{library.name} {variant}" for library, variant, _ in found] == expected
    monkeypatch.setenv(ATTENTION, "flash,torch")
    assert attention_libraries.sort_choices(choices, capability) == choices


def stand_in(results, *names):
    """A function with these keywords beside those that every version has; it records what it is given."""
    calls = []

    def forward(*arguments, **keywords):
        calls.append((arguments, keywords))
        return results

    forward.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return forward, calls


def test_later_versions_of_flash_attention_are_asked_for_the_lse(monkeypatch):
    monkeypatch.setattr(attention_libraries, "require_cuda", lambda torch: None)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    how = VarlenAttention((0, 5), (0, 9), 0, True, 4, 0.5)
    third, calls = stand_in(("o", "lse"), "return_attn_probs")
    module = types.ModuleType("flash_attn_interface")
    module.flash_attn_varlen_func = third
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    ((_, attend),) = attention_libraries.FlashAttention3().choices(None, None, None, how)
    assert attend("q", "k", "v", "q marks", "k marks", how, "own") == ("o", "lse")
    assert calls == [
        (
            ("q", "k", "v", "q marks", "k marks", 5, 9),
            {"softmax_scale": 0.5, "causal": True, "window_size": (3, 0), "num_splits": 1, "return_attn_probs": True},
        )
    ]
    fourth, calls = stand_in(("o", "lse"), "return_lse", "out")
    package, cute = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.cute")
    package.cute, cute.flash_attn_varlen_func = cute, fourth
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    ((_, attend),) = attention_libraries.FlashAttention4().choices(None, None, None, how)
    assert attend("q", "k", "v", "q marks", "k marks", how, "own") == ("o", "lse")
    assert calls == [
        (
            ("q", "k", "v"),
            {
                "cu_seqlens_q": "q marks", "cu_seqlens_k": "k marks", "softmax_scale": 0.5, "causal": True,
                "window_size": (3, 0), "return_lse": True, "out": "own",
            },
        )
    ]  # fmt: skip


def test_a_pytorch_for_cpus_is_not_imported(monkeypatch):
    monkeypatch.setenv(ATTENTION, "torch")
    monkeypatch.setattr(attention_libraries, "find_spec", lambda module: module)
    made = []
    monkeypatch.setattr(attention_libraries, "LIBRARIES", {"torch": ("torch", lambda: made.append(1) or object())})
    for version, count in (("2.9.1+cpu", 0), ("2.9.1+cu130", 1), ("2.9.1", 2)):
        monkeypatch.setattr(attention_libraries.metadata, "version", lambda module, version=version: version)
        found, notes = attention_libraries.find_libraries()
        assert (len(made), len(found), notes) == (count, min(count, 1), [])


def test_flash_attn_gets_the_arguments_by_name():
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
    library._forward, library._writes = flash_attn_varlen_func, False
    ((variant, attend),) = library.choices(None, None, None, KINDS[2])
    assert (variant, attend(1, 2, 3, 4, 5, KINDS[2], None)) == ("varlen", ("o", "lse"))
    attend(1, 2, 3, 4, 5, KINDS[4], None)
    assert calls == [
        (300, 500, 0.0, 0.125, True, (-1, 0), True),
        (512, 512, 0.0, 3.0, True, (99, 0), True),
    ]
