"""Attention by cuDNN through NVIDIA's package nvidia-cudnn-frontend: operands, results and workspace are all ours.

PyTorch's way to the same kernels returns results in memory of its own. Here a graph of one operation is built for
strides, and executed with addresses: o and the lse are written where the plan has them, and nothing is allocated.
Sequences of equal lengths are one batch. Others are left to libraries that take packed sequences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einc_runtime.kernels.cuda.varlen_attention import Attend, VarlenAttention, require_cuda
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Launch


@dataclass(frozen=True, slots=True)
class HeadsView:
    """Rows of an operand: its address, heads, tokens and elements of a row, and the strides of the first two in
    elements. The elements of a row are one after another."""

    pointer: int
    heads: int
    tokens: int
    width: int
    head_stride: int
    token_stride: int

    @staticmethod
    def of(array: GpuArray, first: int = 0, count: int | None = None) -> HeadsView:
        """Of an array (heads, tokens, elements), or (heads, tokens) with one element each; some of the tokens."""
        heads, tokens, *width = array.shape
        by_head, by_token = array.strides[0], array.strides[1]
        taken = tokens - first if count is None else count
        strides = by_head // array.itemsize, by_token // array.itemsize
        return HeadsView(array.pointer + first * by_token, heads, taken, width[0] if width else 1, *strides)

    def shaped(self, batch: int) -> tuple[list[int], list[int]]:
        """Extents and strides for cuDNN, with tokens in so many equal sequences."""
        tokens = self.tokens // batch
        strides = [tokens * self.token_stride, self.head_stride, self.token_stride, 1]
        return [batch, self.heads, tokens, self.width], strides


Operands = Mapping[str, HeadsView]
"""q, k, v, o and lse."""


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph that can be executed, its tensors by the names of operands, and the bytes of workspace that it needs."""

    graph: Any
    tensors: Mapping[str, Any]
    workspace: int


class CudnnGraphs:
    """See `attention_libraries.AttentionLibrary`. One handle for every stream, so that none changes in a capture."""

    name = "cudnn-frontend"
    variant = "graph"

    def __init__(self) -> None:
        import torch

        require_cuda(torch)  # the test of a library takes its memory from PyTorch
        import cudnn

        self._cudnn: Any = cudnn
        self.version = f"{cudnn.__version__}, cuDNN {cudnn.backend_version()}"
        self._graphs: dict[object, BuiltGraph] = {}
        self._handles: dict[tuple[int, int], Any] = {}  # by device and stream

    def choices(self, q: Any, k: Any, v: Any, how: VarlenAttention) -> list[tuple[str, Attend]]:
        return [(self.variant, self._attend)] if how.is_batch else []

    def prepare(
        self, how: VarlenAttention, inputs: Sequence[GpuArray], outputs: Sequence[GpuArray], target: GpuTarget
    ) -> GpuKernel:
        """The kernel of an attention; whatever the library refuses is raised as it is. The device is current."""
        keys = how.first_key, how.keys[-1]
        operands = {
            "q": HeadsView.of(inputs[0]),
            "k": HeadsView.of(inputs[1], *keys),
            "v": HeadsView.of(inputs[2], *keys),
            "o": HeadsView.of(outputs[0]),
            "lse": HeadsView.of(outputs[1]),
        }
        built = self._build(operands, how, inputs[0].dtype, target.device)

        def bind(workspace: int, status: int) -> Launch:
            def launch(stream: int) -> None:
                self._execute(built, operands, workspace, target.device, stream)

            return launch

        variant = f"attention {inputs[0].dtype}, {self.variant}"
        return GpuKernel(bind, Description(self.name, self.version, variant), built.workspace)

    def close(self) -> None:
        """Releases the handles, also after errors; raises the first one at the end."""
        self._graphs.clear()
        with contextlib.ExitStack() as stack:
            while self._handles:
                stack.callback(self._cudnn.destroy_handle, self._handles.popitem()[1])

    def _attend(
        self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: VarlenAttention, out: Any
    ) -> tuple[Any, Any]:
        """The same on PyTorch's tensors, for tests of the library."""
        import torch

        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        operands = {name: _view_tensor(x) for name, x in {"q": q, "k": k, "v": v, "o": out}.items()}
        operands["lse"] = HeadsView(lse.data_ptr(), q.shape[1], q.shape[0], 1, q.shape[0], 1)
        device, stream = 0, 0
        if q.is_cuda:
            device, stream = q.device.index, torch.cuda.current_stream(q.device).cuda_stream
        built = self._build(operands, how, "bf16" if q.dtype == torch.bfloat16 else "f16", device)
        workspace = torch.empty(max(built.workspace, 1), dtype=torch.uint8, device=q.device)
        self._execute(built, operands, workspace.data_ptr(), device, stream)
        return out, lse

    def _execute(self, built: BuiltGraph, operands: Operands, workspace: int, device: int, stream: int) -> None:
        pointers = {built.tensors[name]: operand.pointer for name, operand in operands.items()}
        built.graph.execute(pointers, workspace, handle=self._handle(device, stream))

    def _handle(self, device: int, stream: int) -> Any:
        """The handle of a stream; it is made at the first launch, which is outside of any capture."""
        if (device, stream) not in self._handles:
            handle = self._cudnn.create_handle()
            self._handles[device, stream] = handle
            self._cudnn.set_stream(handle=handle, stream=stream)
        return self._handles[device, stream]

    def _build(self, operands: Operands, how: VarlenAttention, kind: str, device: int) -> BuiltGraph:
        """A graph for these strides; graphs are kept, since layers differ in addresses alone."""
        batch = len(how.queries) - 1
        shapes = {name: operand.shaped(batch) for name, operand in operands.items()}
        key = repr((shapes, how.causal, how.queries == how.keys, how.scale, kind, device))
        if key not in self._graphs:
            self._graphs[key] = self._build_graph(shapes, how, kind, self._handle(device, 0))
        return self._graphs[key]

    def _build_graph(
        self, shapes: Mapping[str, tuple[list[int], list[int]]], how: VarlenAttention, kind: str, handle: Any
    ) -> BuiltGraph:
        cudnn = self._cudnn
        stored = cudnn.data_type.BFLOAT16 if kind == "bf16" else cudnn.data_type.HALF
        wide = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            name="attention",
            io_data_type=stored,
            intermediate_data_type=wide,
            compute_data_type=wide,
            handle=handle,
        )
        tensors = {
            name: graph.tensor(name=name, dim=shapes[name][0], stride=shapes[name][1], data_type=stored)
            for name in ("q", "k", "v")
        }
        mask: dict[str, Any] = {}
        if how.causal:
            corner = cudnn.diagonal_alignment
            aligned = corner.TOP_LEFT if how.queries == how.keys else corner.BOTTOM_RIGHT
            mask = {"diagonal_alignment": aligned, "diagonal_band_right_bound": 0}
        results = graph.sdpa(name="sdpa", **tensors, generate_stats=True, attn_scale=how.scale, **mask)
        for name, tensor, dtype in (("o", results[0], stored), ("lse", results[1], wide)):
            extents, strides = shapes[name]
            tensors[name] = tensor.set_output(True).set_dim(extents).set_stride(strides).set_data_type(dtype)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        return BuiltGraph(graph, tensors, int(graph.get_workspace_size()))


def _view_tensor(x: Any) -> HeadsView:
    """Of a tensor (tokens, heads, elements)."""
    (tokens, heads, width), strides = x.shape, x.stride()
    return HeadsView(x.data_ptr(), heads, tokens, width, strides[1], strides[0])
