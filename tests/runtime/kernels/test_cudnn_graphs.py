"""Attention by cuDNN's graphs: our addresses, strides and workspace, on a stand-in that enforces its rules."""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.environment import ATTENTION
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.cuda import attention_libraries, cudnn_graphs, fused_attention
from einc_runtime.kernels.cuda.attention_libraries import find_libraries, sort_choices
from einc_runtime.kernels.cuda.cudnn_graphs import CudnnGraphs
from einc_runtime.kernels.cuda.fused_attention import AttentionLibraries
from einc_runtime.kernels.cuda.varlen_attention import VarlenAttention, as_varlen, attend_by_definition, find_flaw
from einc_runtime.kernels.gpu import GpuArray, GpuTarget
from tests.support import cudnn_fake
from tests.support.library_attention import attributes, invoked, library

TARGET = GpuTarget(0, "a GPU", (9, 0), 132)
NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


@pytest.fixture
def graphs(monkeypatch):
    pytest.importorskip("torch")
    cudnn_fake.reset()
    monkeypatch.setitem(sys.modules, "cudnn", cudnn_fake)
    monkeypatch.setattr(cudnn_graphs, "require_cuda", lambda torch: None)
    yield CudnnGraphs()
    cudnn_fake.reset()


def on_device(array):
    return GpuArray(array.ctypes.data, array.shape, array.strides, NAMES[array.dtype.name], 0)


def by_tokens(array):
    """The same in the order (tokens, heads, elements), between other bytes."""
    held = np.zeros((array.shape[1], array.shape[0] + 1, array.shape[2]), array.dtype)
    own = held[:, : array.shape[0]].transpose(1, 0, 2)
    own[...] = array
    return own


@pytest.mark.parametrize("dtype", [np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_lens", "k_lens", "queries", "keys"),
    [
        ([9], [9], (0, 9), (0, 9)),
        ([5], [12], (0, 5), (0, 12)),
        ([4, 4, 4], [7, 7, 7], (0, 12), (0, 21)),
        ([6, 6, 6], [6, 6, 6], (6, 18), (6, 18)),  # whole sequences after the first one
        ([1, 1], [8, 8], (0, 2), (0, 16)),
    ],
)
def test_results_are_written_where_the_plan_has_them(graphs, q_lens, k_lens, queries, keys, causal, dtype):
    invocation = invoked(attributes(q_lens, k_lens, causal=causal), queries, keys, dtype)
    inputs = [by_tokens(x) for x in invocation.inputs]
    o, lse = by_tokens(invocation.outputs[0]), np.zeros_like(invocation.outputs[1])
    how = as_varlen(AttentionCall.parse(invocation.on(inputs, [o, lse])))
    assert how.is_batch
    kernel = graphs.prepare(how, [*map(on_device, inputs)], [on_device(o), on_device(lse)], TARGET)
    assert kernel.workspace == cudnn_fake.WORKSPACE
    launch = kernel.bind(1 << 20, 0)
    launch(41)
    expected_o, expected_lse = library(*[x.astype("f8") for x in inputs], how)
    assert np.abs(o.astype("f8") - expected_o).max() < (2e-2 if dtype.itemsize == 2 and dtype != "f2" else 3e-3)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5)
    ((stream, workspace, addresses),) = cudnn_fake.state["log"]
    assert (stream, workspace) == (41, 1 << 20)
    assert addresses["O"] == o.ctypes.data
    assert addresses["Stats"] == lse.ctypes.data
    assert (o.base[:, -1] == 0).all()  # nothing beside it
    graphs.close()
    assert not cudnn_fake.state["handles"]


def prepared(graphs, tokens=8):
    invocation = invoked(attributes([tokens], [tokens], causal=True), (0, tokens), (0, tokens))
    how = as_varlen(AttentionCall.parse(invocation))
    arrays = [[*map(on_device, own)] for own in (invocation.inputs, invocation.outputs)]
    return invocation, graphs.prepare(how, *arrays, TARGET)


def test_a_capture_makes_no_handle_and_changes_no_stream(graphs):
    _, kernel = prepared(graphs)
    launch = kernel.bind(1 << 20, 0)
    for stream in (41, 42):
        launch(stream)
    cudnn_fake.state["capturing"] = True
    for stream in (42, 41, 41):
        launch(stream)
    assert [stream for stream, *_ in cudnn_fake.state["log"]] == [41, 42, 42, 41, 41]
    cudnn_fake.state["capturing"] = False
    graphs.close()
    assert not cudnn_fake.state["handles"]


def test_layers_share_a_graph_and_other_shapes_do_not(graphs):
    kept = [prepared(graphs, tokens) for tokens in (8, 8, 16)]
    assert len(graphs._graphs) == 2
    assert len({id(invocation) for invocation, _ in kept}) == 3
    graphs.close()


@pytest.mark.parametrize(
    "how",
    [
        VarlenAttention((0, 512), (0, 512), 0, True, 0, 0.125),
        VarlenAttention((0, 500), (0, 900), 0, True, 0, 0.125),
        VarlenAttention((0, 512, 1024), (0, 512, 1024), 0, True, 0, 0.125),
        VarlenAttention((0, 1, 2), (0, 70, 140), 0, True, 0, 0.125),
        VarlenAttention((0, 512), (0, 900), 0, False, 0, 0.0),
    ],
)
def test_a_small_invocation_of_every_kind_is_right(graphs, how):
    assert how.small.is_batch
    assert len(how.small.queries) == len(how.queries)
    assert (how.small.queries == how.small.keys) == (how.queries == how.keys)
    assert find_flaw(graphs._attend, how, "bf16" if how.causal else "f16", 4, 64, "cpu") is None
    graphs.close()


def test_sequences_of_other_lengths_and_windows_are_left_to_others(graphs):
    for how in (
        VarlenAttention((0, 5, 12), (0, 5, 12), 0, True, 0, 1.0),
        VarlenAttention((0, 5, 10), (0, 5, 12), 0, True, 0, 1.0),
        VarlenAttention((0, 5), (0, 5), 0, True, 3, 1.0),
    ):
        assert not graphs.choices(None, None, None, how)
    assert graphs.choices(None, None, None, VarlenAttention((0, 5, 10), (0, 6, 12), 0, True, 0, 1.0))


def test_what_cudnn_refuses_after_all_is_computed_by_the_next_library(graphs, monkeypatch):
    class Next:
        name, version = "next", "1"

        def choices(self, q, k, v, how):
            return [("plain", None)]

    monkeypatch.setattr(attention_libraries, "find_libraries", lambda: ([graphs, Next()], []))
    monkeypatch.setattr(fused_attention, "_as_tensors", lambda how, inputs, target: (None, None, None))
    monkeypatch.setenv(ATTENTION, "cudnn,next")
    monkeypatch.setattr(AttentionLibraries, "_is_right", lambda *_: True)
    invocation = invoked(attributes([8], [8], causal=True), (0, 8), (0, 8))
    given = invocation.on([*map(on_device, invocation.inputs)], [*map(on_device, invocation.outputs)])
    libraries = AttentionLibraries()
    assert libraries.prepare(given, TARGET).description.provider == "cudnn-frontend"
    assert libraries.give_up("it failed in a capture")
    assert libraries.prepare(given, TARGET).description.provider == "next"
    libraries.close()
    cudnn_fake.state["refuses"] = "no engine for this"
    libraries = AttentionLibraries()
    assert libraries.prepare(given, TARGET).description.provider == "next"
    assert any("no engine for this" in note for note in libraries.notes)
    assert libraries.versions == {"next": "1"}
    libraries.close()
    assert not cudnn_fake.state["handles"]


def test_it_comes_after_pytorchs_way_to_cudnn_unless_it_is_named(graphs, monkeypatch):
    class Other:
        version = "1"

        def __init__(self, name):
            self.name = name

    choices = [
        (graphs, "graph", None), (Other("torch"), "flash", None), (Other("torch"), "cudnn", None),
        (Other("flash-attn-3"), "varlen", None),
    ]  # fmt: skip

    def order(capability):
        return [f"{library.name} {variant}" for library, variant, _ in sort_choices(choices, capability)]

    assert order((9, 0)) == ["flash-attn-3 varlen", "torch cudnn", "cudnn-frontend graph", "torch flash"]
    assert order((10, 0)) == ["torch cudnn", "cudnn-frontend graph", "flash-attn-3 varlen", "torch flash"]
    monkeypatch.setenv(ATTENTION, "cudnn")
    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: object() if name == "cudnn" else None)
    found, notes = find_libraries()
    assert [type(one) for one in found] == [CudnnGraphs]
    assert not notes


def test_without_the_package_there_is_no_library_and_no_note(monkeypatch):
    monkeypatch.setattr(attention_libraries, "find_spec", lambda name: None)
    assert find_libraries() == ([], [])


@pytest.mark.skipif(find_spec("cudnn") is None, reason="nvidia-cudnn-frontend is not installed")
def test_the_stand_in_takes_what_the_package_takes():
    import cudnn

    own = inspect.signature(cudnn_fake.pygraph.sdpa).parameters.keys() - {"self"}
    assert all(f"{name}:" in cudnn._pybind_module.backend_graph.sdpa.__doc__ for name in own)
    assert all(hasattr(cudnn.pygraph, step) for step in (*cudnn_fake.STEPS, "execute", "get_workspace_size", "tensor"))
    for enum in ("data_type", "heur_mode", "diagonal_alignment"):
        assert set(getattr(cudnn_fake, enum).__members__) <= set(getattr(cudnn, enum).__members__)
    assert list(inspect.signature(cudnn.set_stream).parameters) == ["handle", "stream"]


def test_the_definition_agrees_with_a_batch(graphs):
    """Equal sequences one after another: as one batch, and as packed sequences."""
    import torch

    how = VarlenAttention((0, 6, 12), (0, 9, 18), 0, True, 0, 0.5)
    q, k, v = (torch.randn(tokens, heads, 16).half() for tokens, heads in ((12, 4), (18, 2), (18, 2)))
    o, lse = graphs._attend(q, k, v, None, None, how, torch.empty_like(q))
    expected = attend_by_definition(*(x.double().numpy() for x in (q, k, v)), how)
    np.testing.assert_allclose(o.double().numpy(), expected[0], atol=2e-3)
    np.testing.assert_allclose(lse.double().numpy(), expected[1], atol=1e-5)
    graphs.close()
