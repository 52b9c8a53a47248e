"""Attention by libraries, for those who ask: flash-attn, or the same algorithm as PyTorch ships it.

EINC_ATTENTION names providers in order, such as `flash,torch`; the kernel of `triton_attention` is always the last. A
library is taken for an invocation that it can express: 16-bit types, whole heads of one width, packed sequences whose
last query sees the last key, no mask and no positions of their own. It gets its own results from a pool of memory that
lives as long as the launch, so that a captured graph may go on using them, and copies them to where the plan has them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.bundle import Attribute, Block
from runtime.kernels.attention_signature import Signature, parse
from runtime.kernels.base import dtype_name
from runtime.kernels.gpu_base import Description, GpuArray, GpuKernel, Launch, Target
from runtime.kernels.triton_source import layout

ENVIRONMENT = "EINC_ATTENTION"
WIDEST = 256
"""Elements of a head."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences of queries and keys one behind the other: where each begins, and where the last one ends.

    Keys count from `first_key` of the block. Of a sequence the last query and the last key are at one place.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    first_key: int
    causal: bool
    window: int
    scale: float

    @property
    def longest(self) -> tuple[int, int]:
        return max(_gaps(self.queries)), max(_gaps(self.keys))


def packed(signature: Signature) -> Packed | None:
    """The invocation in those terms, or None if it has none."""
    s = signature
    width = s.q.shape[2]
    if dtype_name(s.q) not in ("f16", "bf16") or s.v.shape[2] != width or width % 8 or width > WIDEST:
        return None
    if (
        s.mask is not None
        or s.positions is not None
        or any(view.strides[-1] != view.itemsize for view in (s.q, s.k, s.v))
    ):
        return None
    queries: list[int] = [0]
    keys: list[int] = []
    for rows in s.sequences():
        own, (lo, up) = rows.queries.stop - rows.queries.start, rows.keys
        if lo == up or (keys and keys[-1] != lo):
            return None
        if s.visible.limited and rows.queries.start + rows.ahead - lo != (up - lo) - own:
            return None
        if s.visible.limited and own > up - lo:
            return None  # some queries would see nothing
        queries.append(rows.queries.stop)
        keys += [up] if keys else [lo, up]
    if not keys:
        return None
    first = keys[0]
    return Packed(
        tuple(queries), tuple(key - first for key in keys), first, s.visible.causal, s.visible.window, s.scale
    )


class Library(Protocol):
    """Tensors have tokens, heads and elements as their dimensions; results are o in that form, and lse by heads."""

    name: str
    version: str

    def attend(self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: Packed) -> tuple[Any, Any]: ...


class TorchAttention:
    """PyTorch's own build of the algorithm."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.version = str(torch.__version__)
        self._forward: Any = torch.ops.aten._flash_attention_forward

    def attend(self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: Packed) -> tuple[Any, Any]:
        limits: dict[str, int] = {}
        if how.window:
            limits = {"window_size_left": how.window - 1, "window_size_right": 0 if how.causal else -1}
        found = self._forward(
            q, k, v, q_bounds, k_bounds, *how.longest, 0.0, how.causal, False, scale=how.scale, **limits
        )
        return found[0], found[1]


class FlashAttention:
    """The package flash-attn."""

    name = "flash-attn"

    def __init__(self) -> None:
        import flash_attn

        self.version = str(flash_attn.__version__)
        self._forward: Any = flash_attn.flash_attn_varlen_func

    def attend(self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: Packed) -> tuple[Any, Any]:
        window = (how.window - 1 if how.window else -1, 0 if how.causal else -1)
        found = self._forward(
            q, k, v, q_bounds, k_bounds, *how.longest, 0.0, softmax_scale=how.scale, causal=how.causal,
            window_size=window, return_attn_probs=True,
        )  # fmt: skip
        return found[0], found[1]


LIBRARIES: Mapping[str, type[TorchAttention] | type[FlashAttention]] = {
    "flash": FlashAttention,
    "torch": TorchAttention,
}


def libraries() -> list[Library]:
    """Those that are asked for and installed."""
    found: list[Library] = []
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        make = LIBRARIES.get(name.strip())
        if make is not None:
            try:
                found.append(make())
            except (ImportError, AttributeError, OSError):
                continue
    return found


def prepare(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[GpuArray],
    outputs: Sequence[GpuArray],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
    target: Target,
    candidates: Sequence[Library],
) -> GpuKernel | None:
    """A kernel by the first library that fits and works on this device, or None."""
    if not candidates:
        return None
    views, results = [layout(x) for x in inputs], [layout(x) for x in outputs]
    how = packed(parse(attributes, views, results, input_blocks, output_blocks))
    if how is None:
        return None
    for library in candidates:
        if _works(library, inputs[0].dtype, inputs[0].shape[2], target):

            def bind(workspace: int, status: int, library: Library = library) -> Launch:
                return _bound(library, how, inputs, outputs, target)

            return GpuKernel(bind, Description(library.name, library.version, f"attention {inputs[0].dtype}"))
    return None


def _works(library: Library, kind: str, width: int, target: Target) -> bool:
    """Whether it has code for this device: it is asked for a small result."""
    import torch

    try:
        device = torch.device("cuda", target.device)
        q = torch.zeros((16, 1, width), dtype=torch.float16 if kind == "f16" else torch.bfloat16, device=device)
        bounds = torch.tensor([0, 16], dtype=torch.int32, device=device)
        how = Packed((0, 16), (0, 16), 0, True, 0, 1.0)
        _, lse = library.attend(q, q, q, bounds, bounds, how)
        torch.cuda.synchronize(device)
        return tuple(lse.shape) == (1, 16)
    except Exception:  # whatever a library says of a device that it has nothing for
        return False


def _bound(
    library: Library, how: Packed, inputs: Sequence[GpuArray], outputs: Sequence[GpuArray], target: Target
) -> Launch:
    import torch

    device = torch.device("cuda", target.device)
    q, k, v, o = (_tensor(array, device).permute(1, 0, 2) for array in (*inputs[:3], outputs[0]))
    lse = _tensor(outputs[1], device)
    last = how.first_key + how.keys[-1]
    k, v = k[how.first_key : last], v[how.first_key : last]
    bounds = [torch.tensor(marks, dtype=torch.int32, device=device) for marks in (how.queries, how.keys)]
    torch.cuda.synchronize(device)
    pool = torch.cuda.MemPool()

    def launch(stream: int) -> None:
        own = torch.cuda.ExternalStream(stream, device=device)
        with torch.cuda.stream(own), torch.cuda.use_mem_pool(pool), torch.no_grad():
            result, logs = library.attend(q, k, v, bounds[0], bounds[1], how)
            o.copy_(result)
            lse.copy_(logs)

    return launch


def _tensor(array: GpuArray, device: Any) -> Any:
    import torch

    tensor = torch.as_tensor(array, device=device)
    return tensor.view(torch.bfloat16) if array.dtype == "bf16" else tensor


def _gaps(marks: Sequence[int]) -> list[int]:
    return [up - lo for lo, up in itertools.pairwise(marks)]
