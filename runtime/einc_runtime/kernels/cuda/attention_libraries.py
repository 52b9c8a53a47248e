"""Libraries that compute attention: FlashAttention 2, 3 and 4, PyTorch with the kernels behind its own attention, and
cuDNN through its own package (`cudnn_graphs.py`).

A library is imported only if EINC_ATTENTION names it; without the variable, all are tried. Before a library computes
invocations of a kind (type, width, causal, window, group), it must compute a small one correctly, together with its lse
(`varlen_attention.find_flaw`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Protocol

from einc_runtime import environment
from einc_runtime.kernels.cuda.cudnn_graphs import CudnnGraphs
from einc_runtime.kernels.cuda.varlen_attention import Attend, UnusableLibrary, VarlenAttention, require_cuda

EINC_KERNEL = "einc"
"""The name of our own kernel; names after it are ignored."""

_CUDNN = 3  # torch.nn.attention.SDPBackend.CUDNN_ATTENTION


class AttentionLibrary(Protocol):
    """A library that can compute attention."""

    name: str
    version: str

    def choices(self, q: Any, k: Any, v: Any, how: VarlenAttention) -> list[tuple[str, Attend]]:
        """The functions of the library that may compute operands like these, with their names; the best first."""


class TorchAttention:
    """PyTorch: cuDNN's kernel for one sequence without a window, on Hopper and later or where PyTorch's own
    scaled_dot_product_attention would use it; else PyTorch's build of flash-attn."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.version = str(torch.__version__)
        self._flash: Any = torch.ops.aten._flash_attention_forward
        self._flash_into: Any = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
        self._cudnn: Any = getattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", None)
        require_cuda(torch)

    def choices(self, q: Any, k: Any, v: Any, how: VarlenAttention) -> list[tuple[str, Attend]]:
        choices: list[tuple[str, Attend]] = [("flash", self._by_flash)]
        if self._cudnn is not None and how.one_square:
            operands = [_as_batch(x) for x in (q, k, v)]
            settings = {"scale": how.scale, "enable_gqa": True}
            chosen = self._torch._fused_sdp_choice(*operands, None, 0.0, how.causal, **settings)
            if chosen == _CUDNN or is_hopper_or_later(self._torch, q):
                choices.insert(0, ("cudnn", self._by_cudnn))
        return choices

    def _by_cudnn(self, q: Any, k: Any, v: Any, _: Any, __: Any, how: VarlenAttention, out: Any) -> tuple[Any, Any]:
        operands = [_as_batch(x) for x in (q, k, v)]
        results = self._cudnn(*operands, None, True, 0.0, how.causal, False, scale=how.scale)
        return results[0][0].permute(1, 0, 2), results[1].reshape(q.shape[1], q.shape[0])

    def _by_flash(
        self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: VarlenAttention, out: Any
    ) -> tuple[Any, Any]:
        limits: dict[str, Any] = {"scale": how.scale}
        if how.window:
            limits |= {"window_size_left": how.window - 1, "window_size_right": 0 if how.causal else -1}
        arguments = (q, k, v, q_bounds, k_bounds, *how.longest, 0.0, how.causal, False)
        if self._flash_into is not None:
            return out, self._flash_into(out, *arguments, **limits)
        results = self._flash(*arguments, **limits)
        return results[0], results[1]


class FlashAttention:
    """FlashAttention 2, the package flash-attn. Later versions differ in where it is, and in how it is called."""

    name = "flash-attn"
    variant = "varlen"

    def __init__(self) -> None:
        import torch

        self._forward, self.version = self._load()
        self._writes = _takes(self._forward, "out")
        require_cuda(torch)

    def choices(self, q: Any, k: Any, v: Any, how: VarlenAttention) -> list[tuple[str, Attend]]:
        return [(self.variant, self._attend)]

    def _attend(
        self, q: Any, k: Any, v: Any, q_bounds: Any, k_bounds: Any, how: VarlenAttention, out: Any
    ) -> tuple[Any, Any]:
        into = {"out": out} if self._writes else {}
        results = self._call((q, k, v), (q_bounds, k_bounds), how, softmax_scale=how.scale, causal=how.causal, **into)
        return results[0], results[1]

    def _load(self) -> tuple[Any, str]:
        """The function, and the version of its package."""
        import flash_attn

        return flash_attn.flash_attn_varlen_func, str(flash_attn.__version__)

    def _call(self, operands: Any, bounds: Any, how: VarlenAttention, **named: Any) -> Any:
        """The call of the function; `named` are the arguments that all versions have."""
        return self._forward(
            *operands, *bounds, *how.longest, 0.0, window_size=_window(how, -1), return_attn_probs=True, **named
        )


class FlashAttention3(FlashAttention):
    """FlashAttention 3, which is built for Hopper: the package flash-attn-3 with the module `flash_attn_interface`."""

    name = "flash-attn-3"

    def _load(self) -> tuple[Any, str]:
        import flash_attn_interface

        return flash_attn_interface.flash_attn_varlen_func, _find_version("flash-attn-3", "flash_attn_3")

    def _call(self, operands: Any, bounds: Any, how: VarlenAttention, **named: Any) -> Any:
        if _takes(self._forward, "return_attn_probs"):  # older ones return the lse always
            named["return_attn_probs"] = True
        return self._forward(*operands, *bounds, *how.longest, window_size=_window(how, -1), num_splits=1, **named)


class FlashAttention4(FlashAttention):
    """FlashAttention 4, which compiles its kernels when they are first used: `flash_attn.cute`."""

    name = "flash-attn-4"
    variant = "cute"

    def _load(self) -> tuple[Any, str]:
        from flash_attn import cute

        return cute.flash_attn_varlen_func, _find_version("flash-attn-4", "flash-attn")

    def _call(self, operands: Any, bounds: Any, how: VarlenAttention, **named: Any) -> Any:
        if _takes(self._forward, "return_lse"):
            named["return_lse"] = True
        marks = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1]}
        return self._forward(*operands, window_size=_window(how, None), **marks, **named)


def _window(how: VarlenAttention, unlimited: int | None) -> tuple[int | None, int | None]:
    """How many keys before and after its own place a query sees."""
    return how.window - 1 if how.window else unlimited, 0 if how.causal else unlimited


LIBRARIES: dict[str, tuple[str, Callable[[], AttentionLibrary]]] = {
    "flash": ("flash_attn", FlashAttention),
    "torch": ("torch", TorchAttention),
    "flash3": ("flash_attn_interface", FlashAttention3),
    "flash4": ("flash_attn.cute", FlashAttention4),
    "cudnn": ("cudnn", CudnnGraphs),
}
"""Name in EINC_ATTENTION -> module, and the class of the library. Without the variable they are tried in this order,
except on GPUs that `_FASTEST_LIBRARIES` knows better."""

_FASTEST_LIBRARIES = {
    9: ("flash-attn-3", "flash-attn-4", "torch cudnn", "cudnn-frontend"),
    10: ("flash-attn-4", "torch cudnn", "cudnn-frontend", "flash-attn-3"),
}
"""By the first number of the architecture, libraries with kernels for its tensor cores, as "library" or "library
variant", the fastest first. FlashAttention 2 uses the instructions of Ampere: some 0.6 of their speed on Hopper."""


def sort_choices(
    choices: Sequence[tuple[AttentionLibrary, str, Attend]], capability: tuple[int, int]
) -> list[tuple[AttentionLibrary, str, Attend]]:
    """Functions with their libraries and names, the fastest for this architecture first, unless the user says."""
    fastest = _FASTEST_LIBRARIES.get(capability[0], ())
    if environment.read(environment.ATTENTION) is not None:
        return list(choices)

    def rank(choice: tuple[AttentionLibrary, str, Attend]) -> int:
        names = choice[0].name, f"{choice[0].name} {choice[1]}"
        return next((position for position, name in enumerate(fastest) if name in names), len(fastest))

    return sorted(choices, key=rank)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function of a library has a parameter of this name; it may be one that cannot be looked into."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _find_version(*packages: str) -> str:
    """The version of the first of these packages that is installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "unknown"


def is_hopper_or_later(torch: Any, tensor: Any) -> bool:
    """Whether the tensor's device has tensor cores that PyTorch's build of flash-attn (version 2) does not use."""
    return bool(tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0))


def find_libraries() -> tuple[list[AttentionLibrary], list[str]]:
    """The installed libraries that EINC_ATTENTION names, in their order, and notes on those that cannot be used."""
    libraries: list[AttentionLibrary] = []
    notes: list[str] = []
    named = environment.read(environment.ATTENTION)
    for name in LIBRARIES if named is None else named.split(","):
        name = name.strip()
        if name == EINC_KERNEL:
            break
        if name not in LIBRARIES:
            if name:
                notes.append(
                    f"{environment.ATTENTION} names '{name[:40]}', and there are {', '.join((*LIBRARIES, EINC_KERNEL))}"
                )
            continue
        module, make = LIBRARIES[name]
        try:
            if find_spec(module) is not None and not _is_cpu_build(module):
                libraries.append(make())
        except ImportError as error:
            if module == "flash_attn":  # built for another PyTorch; a PyTorch without CUDA needs no note
                notes.append(describe_rejection(name, error))
        except Exception as error:  # a library may raise anything when it is imported
            notes.append(describe_rejection(name, error))
    return libraries, notes


def _is_cpu_build(module: str) -> bool:
    """Whether the version says that the module is built for CPUs; importing it would take seconds."""
    try:
        return metadata.version(module).endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def describe_rejection(name: str, reason: object) -> str:
    """A line that says that a library is not used, and why."""
    named = isinstance(reason, Exception) and not isinstance(reason, UnusableLibrary)
    said = f"{type(reason).__name__}: {reason}" if named else str(reason)
    return f"attention of {name} is not used: {' '.join(said.split())[:200]}"


def _as_batch(tensor: Any) -> Any:
    """A tensor (tokens, heads, elements) as a batch of one (heads, tokens, elements)."""
    return tensor.permute(1, 0, 2)[None]
